"""The backend of GPUs passes the kernel contract and that of captures: on a GPU, and on an emulated one."""

import numpy as np
import pytest

from dsinga.ops import BACKENDS
from dsinga.testing import CaptureContract, KernelContract
from tests.support import emulated_cupy


@pytest.mark.gpu
class TestCupy(KernelContract, CaptureContract):
    make_ops = BACKENDS["cupy"]
    dtypes = (np.float32, np.float64)
    channels_last = True


@pytest.mark.slow
class TestEmulatedCupy(KernelContract):
    make_ops = emulated_cupy.load
    dtypes = (np.float32, np.float64)
    channels_last = True


class TestEmulatedCapture(CaptureContract):
    make_ops = emulated_cupy.load
