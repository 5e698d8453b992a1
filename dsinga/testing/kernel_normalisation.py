"""The contract of the kernels of batch normalisation that compute several of its steps at once."""

from __future__ import annotations

from typing import Any

from hypothesis import strategies as st

from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_cases import BATCHES, CHANNELS, LAYOUTS, given, normal
from dsinga.testing.kernel_formulas import assert_close

EPSILON, SHARE, UNBIAS = 1e-5, 0.25, 1.5


class NormalisationKernels:
    """Checks of batch normalisation in training."""

    @given(batch=BATCHES, channels=CHANNELS, image=st.booleans(), layout=LAYOUTS)
    def test_batch_norm_of_a_whole_batch(
        self, backend: KernelBackend, batch: int, channels: int, image: bool, layout: str
    ) -> None:
        """What is computed at once is what the kernels compute one by one."""
        shape, ops = (batch, channels, 3, 4) if image else (batch, channels), backend.ops
        x, dy = backend.place(normal(1, *shape), layout), backend.place(normal(2, *shape), "rows")
        params = [backend.asarray(normal(3 + number, channels)) for number in range(4)]
        moments, affine, moved = ops.batch_norm_training(x, params, SHARE, UNBIAS, EPSILON)
        exact = ops.channel_moments(x)
        pairs = zip(params[2:], exact, (1.0, UNBIAS), strict=True)
        running = [ops.moving_average(before, new, SHARE, factor) for before, new, factor in pairs]
        by_steps = *exact, *ops.batch_norm_affine(params[0], params[1], *exact, EPSILON), *running
        compare(backend, (*moments, *affine, *moved), by_steps)
        size = max(batch * (12 if image else 1), 1)
        slopes, gradients = ops.batch_norm_training_grad(x, dy, params[0], exact, size, EPSILON)
        sums = ops.batch_norm_sums(x, dy, *exact, EPSILON)
        expected = *ops.batch_norm_slopes(params[0], *exact, sums, size, EPSILON), *sums[::-1]
        compare(backend, (*slopes, *gradients), expected)
        feature = backend.place(normal(7, *shape), layout)
        masked, rectified = ops.rectified_batch_norm_sums(x, feature, dy, *exact, EPSILON)
        compare(backend, (masked,), (ops.relu_grad(feature, dy),))
        if rectified:
            compare(backend, rectified, ops.batch_norm_sums(x, masked, *exact, EPSILON))
        assert all(array.dtype == backend.dtype for array in gradients)


def compare(backend: KernelBackend, results: tuple[Any, ...], expected: tuple[Any, ...]) -> None:
    """Assert that arrays are equal but for rounding."""
    for result, exact in zip(backend.host(results), backend.host(expected), strict=True):
        assert_close(result.astype(backend.dtype), exact, backend.dtype)
