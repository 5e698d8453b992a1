"""Random shapes, layouts and numbers for the kernel contract, and its assertions on memory layouts."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import numpy as np
from hypothesis import HealthCheck, settings
from hypothesis import given as hypothesis_given
from hypothesis import strategies as st

from dsinga.ops.layout import is_channels_last
from dsinga.testing import kernel_backend

LAYOUTS = st.sampled_from(kernel_backend.LAYOUTS)
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
    """Decorate a test method of the contract to run with random arguments, the same in every run."""
    return lambda test: SETTINGS(hypothesis_given(**strategies)(test))


def normal(seed: int, *shape: int) -> np.ndarray:
    """Return normally distributed float64 numbers of ``shape``, the same for a seed and shape."""
    return np.random.default_rng([seed, *shape]).standard_normal(shape)


def distinct(seed: int, *shape: int) -> np.ndarray:
    """Return numbers at least 0.01 apart: a small step of a numerical gradient does not change a maximum."""
    size = int(np.prod(shape))
    return (np.random.default_rng([seed, *shape]).permutation(size) * 0.01 - size * 0.005 + 0.003).reshape(shape)


@st.composite
def windowed(draw: st.DrawFn) -> dict[str, Any]:
    """Draw an image or a volume, and windows that fit it: any kernel, stride, and a pad smaller than the kernel."""
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
    """Assertions on the memory layout of results, for backends whose images are channels-last."""

    channels_last: ClassVar[bool] = False

    def assert_image(self, x: Any) -> None:
        """Assert that an image is channels-last in memory."""
        if self.channels_last:
            assert is_channels_last(x)

    def assert_same_layout(self, result: Any, x: Any) -> None:
        """Assert that a result has the layout of the argument ``x``, if that is without gaps."""
        if not self.channels_last:
            return
        if x.flags.c_contiguous:
            assert result.flags.c_contiguous
        elif is_channels_last(x):
            self.assert_image(result)
