"""Random arguments for the kernel contract, and a backend that runs its kernels in one dtype."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
import pytest
from hypothesis import HealthCheck, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.ops import Ops
from dsinga.ops.layout import is_channels_last

LAYOUTS = st.sampled_from(["channels last", "rows", "gaps", "reversed"])
MATRIX_LAYOUTS = st.sampled_from(["rows", "gaps", "reversed"])
BATCHES = st.integers(0, 5)
CHANNELS = st.sampled_from([1, 2, 3, 5, 8, 16, 17, 20, 32])
SEEDS = st.integers(0, 2**32 - 1)

SETTINGS = settings(
    deadline=None,  # the speed of the machine does not decide whether a test passes
    derandomize=True,
    database=None,
    max_examples=40,
    suppress_health_check=[HealthCheck.differing_executors],  # several classes inherit a test
)


def given(**strategies: Any) -> Callable[[Any], Any]:
    """Run a test method with random arguments, which are the same in every run of the tests."""
    return lambda test: SETTINGS(hypothesis_given(**strategies)(test))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Return normally distributed float64 numbers, determined by seed and shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def distinct(seed: int, *shape: int) -> np.ndarray:
    """Return numbers at least 0.01 apart, so that a numerical gradient's small step changes no maximum."""
    size = int(np.prod(shape))
    return (np.random.default_rng([seed, *shape]).permutation(size) * 0.01 - size * 0.005 + 0.003).reshape(shape)


@st.composite
def windowed(draw: st.DrawFn) -> dict[str, Any]:
    """Draw a random image or volume, and pooling windows that fit it."""
    batch, channels = draw(BATCHES), draw(CHANNELS)
    sizes = draw(st.tuples(st.integers(1, 9), st.integers(1, 9)) | st.tuples(*[st.integers(1, 5)] * 3))
    kernel, pad = [], []
    for size in sizes:
        kernel.append(draw(st.integers(1, min(5, size + 2))))
        least = max(0, -(-(kernel[-1] - size) // 2))
        pad.append(draw(st.integers(least, max(least, kernel[-1] - 1))))
    stride = draw(st.tuples(*[st.integers(1, 3)] * len(sizes)))
    return {
        "shape": (batch, channels, *sizes),
        "window": (tuple(kernel), stride, tuple(pad)),
        "layout": draw(LAYOUTS),
        "seed": draw(SEEDS),
    }


class LayoutChecks:
    """Assertions on the memory layout of results, for backends with channels-last images."""

    channels_last: ClassVar[bool] = False

    def assert_image(self, x: Any) -> None:
        """Assert that an image is channels-last in memory."""
        if self.channels_last:
            assert is_channels_last(x)

    def assert_same_layout(self, result: Any, x: Any) -> None:
        """Assert that a result has the memory layout of ``x``, if ``x`` has no gaps."""
        if not self.channels_last:
            return
        if x.flags.c_contiguous:
            assert result.flags.c_contiguous
        elif is_channels_last(x):
            self.assert_image(result)


WITH_WORKSPACE = ("max_pool", "lrn", "layer_norm", "rms_norm", "recurrent", "crf", "attention", "attention_weights")
"""Kernels that return a workspace last, which only their gradient can read."""


class KernelBackend:
    """A kernel backend under test in one dtype, made when a test first uses it."""

    def __init__(self, make_ops: Callable[[], Ops], dtype: Any):
        self.make_ops, self.dtype = make_ops, dtype

    @functools.cached_property
    def ops(self) -> Ops:
        """The backend's kernels; the test is skipped if making them raises UserError."""
        try:
            return self.make_ops()
        except UserError as error:
            pytest.skip(str(error))

    def run(self, kernel: str, *arguments: Any) -> Any:
        """Call a kernel on arrays of the backend's dtype, and assert that it leaves them unchanged."""
        placed = [self.asarray(argument) if isinstance(argument, np.ndarray) else argument for argument in arguments]
        copies = [self.host(argument).copy() if is_array(argument) else None for argument in placed]
        try:
            compute = self.ops.kernel(kernel)
        except UserError as error:  # the kernel's add-on is not installed
            pytest.skip(str(error))
        result = compute(*placed)
        for argument, copy in zip(placed, copies, strict=True):
            if copy is not None:
                np.testing.assert_array_equal(self.host(argument), copy)
        if kernel in WITH_WORKSPACE:
            return (*map(self.host, result[:-1]), result[-1])
        return self.host(result)

    def host(self, result: Any) -> Any:
        """Copy arrays, also in sequences, to host memory with their layout; return other values unchanged."""
        if isinstance(result, tuple | list):
            return type(result)(map(self.host, result))
        if self.ops.xp is np or not is_array(result):
            return result
        order = axes_in_memory(result)
        return self.ops.to_numpy(result.transpose(order)).transpose(np.argsort(order).tolist())

    def asarray(self, array: np.ndarray) -> Any:
        """Copy ``array`` to the backend, floats in its dtype; read-only in host memory."""
        if self.ops.xp is not np and isinstance(array, self.ops.xp.ndarray):
            return array
        if array.dtype.kind == "f" and array.dtype != self.dtype:
            array = array.astype(self.dtype)
        if self.ops.xp is not np:
            order = axes_in_memory(array)
            transposed = self.ops.asarray(np.ascontiguousarray(array.transpose(order)))
            return transposed.transpose(np.argsort(order).tolist())
        array = array.view()
        array.flags.writeable = False
        return self.ops.asarray(array)

    def place(self, values: np.ndarray, layout: str) -> Any:
        """Copy ``values`` to the backend in one of several layouts: channels last, rows, gaps or reversed."""
        array, xp = self.ops.asarray(values.astype(self.dtype, order="C")), self.ops.xp
        if layout == "channels last":
            return xp.ascontiguousarray(xp.moveaxis(array, 1, -1)).transpose(0, -1, *range(1, array.ndim - 1))
        if layout == "gaps":
            wide = xp.zeros((*array.shape[:-1], 2 * array.shape[-1]), self.dtype)
            wide[...] = np.nan
            wide[..., ::2] = array
            return wide[..., ::2]
        if layout == "reversed":
            return xp.ascontiguousarray(array[..., ::-1])[..., ::-1]
        assert layout == "rows"
        return array


def axes_in_memory(array: Any) -> list[int]:
    """Return the axes of an array in the order of its memory, longest stride first."""
    return np.argsort([-abs(stride) for stride in array.strides], kind="stable").tolist()


def is_array(value: Any) -> bool:
    """Whether ``value`` is a host or device array."""
    return hasattr(value, "strides")
