"""The kernel contract passes a user's right backend and fails a wrong one; a missing library is one clear sentence."""

from __future__ import annotations

import subprocess
import sys

import numpy as np
import pytest

from dsinga.errors import UserError
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.testing import KernelContract
from dsinga.testing.kernel_backend import KernelBackend


class RowMajorOps(NumpyOps):
    """Keeps images in rows (B, C, H, W), as the interface allows."""

    def unflatten(self, x, shape):
        return np.ascontiguousarray(x.reshape(shape))

    def avg_pool(self, x, kernel, stride, pad):
        return np.ascontiguousarray(super().avg_pool(x, kernel, stride, pad))


class TestRowMajorOps(KernelContract):
    make_ops = RowMajorOps
    dtypes = (np.float64,)


class WrongGradient(NumpyOps):
    def sigmoid_grad(self, y, dy):
        return dy * y


class WritesToItsArgument(NumpyOps):
    def relu(self, x, slope=0.0):
        x[x < 0] *= slope
        return x


class WrongDtype(NumpyOps):
    def softmax(self, x):
        return super().softmax(x).astype(np.float64)


class OtherRandomNumbers(NumpyOps):
    def uniform(self, key, first, step, rows, columns):
        return super().uniform(key, first + 1, step, rows, columns)


@pytest.mark.parametrize(
    ("ops", "check"),
    [
        (WrongGradient, "test_elementwise_kernels"),
        (WrongDtype, "test_softmax"),
        (OtherRandomNumbers, "test_random_numbers_are_those_of_numpy_to_the_bit"),
    ],
)
def test_a_wrong_kernel_fails_its_check(ops, check):
    with pytest.raises(AssertionError):
        getattr(KernelContract(), check)(backend=KernelBackend(ops, np.float32))


def test_a_kernel_that_writes_to_its_argument_fails():
    with pytest.raises(ValueError, match="read-only"):
        KernelBackend(WritesToItsArgument, np.float32).run("relu", np.ones((2, 3)))


def test_images_in_rows_fail_where_channels_last_are_declared():
    class Contract(KernelContract):
        channels_last = True

    with pytest.raises(AssertionError):
        Contract().test_avg_pool(backend=KernelBackend(RowMajorOps, np.float32))


def test_a_backend_that_cannot_load_is_skipped():
    def refuse():
        raise UserError("the kernel backend 'mine' needs a library")

    with pytest.raises(pytest.skip.Exception, match="needs a library"):
        _ = KernelBackend(refuse, np.float32).ops


@pytest.mark.parametrize(
    ("library", "statement", "sentence"),
    [
        (
            *("pytest", "from dsinga.testing import LayerCase"),
            "dsinga.testing.LayerCase needs pytest; install it by 'pip install pytest'",
        ),
        (
            *("hypothesis", "from dsinga.testing import KernelContract"),
            "dsinga.testing.KernelContract needs hypothesis; install it by 'pip install hypothesis'",
        ),
    ],
)
def test_a_missing_library_is_one_clear_sentence(library, statement, sentence):
    code = f"import sys; sys.modules[{library!r}] = None; {statement}"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, timeout=110, check=False)
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
