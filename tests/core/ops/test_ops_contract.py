"""The backends on CPUs pass the kernel contract."""

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.ops.layout import output_sizes
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
