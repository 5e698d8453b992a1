"""The backends on CPUs pass the kernel contract."""

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.ops.layout import contiguous, output_sizes
from dsinga.testing import CaptureContract, KernelContract


class TestNumpy(KernelContract):
    make_ops = BACKENDS["numpy"]
    dtypes = (np.float64,)
    channels_last = True


@pytest.mark.ci
class TestNumpyInFloat32(KernelContract, CaptureContract):
    """The same examples; each layer is computed in float32, too, and TestOnednn has what oneDNN does not override."""

    make_ops = BACKENDS["numpy"]
    channels_last = True


class TestOnednn(KernelContract, CaptureContract):
    make_ops = BACKENDS["onednn"]
    channels_last = True


def test_a_window_larger_than_the_image_is_refused():
    with pytest.raises(AssertionError, match="a window of 4 does not fit 3 pixels"):
        output_sizes((1, 1, 3, 3), (4, 1), (1, 1), (0, 0))


@pytest.mark.parametrize("axes", [(0, 2, 1), (2, 0, 1), (1, 2, 0)])
def test_an_array_with_rows_of_far_numbers_is_copied(axes):
    x = np.arange(40 * 16 * 256, dtype=np.float32).reshape(40, 16, 256).transpose(axes)
    copy = contiguous(x)
    assert copy.flags.c_contiguous
    np.testing.assert_array_equal(copy, x)
