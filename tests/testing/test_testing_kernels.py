"""The kernel contract passes a user's right backend and fails a wrong one; a missing library is one clear sentence."""

from contextlib import nullcontext

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.ops.interface import NumpyOps
from dsinga.testing import KernelContract
from dsinga.testing.kernel_backend import KernelBackend
from tests.support.programs import python


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


ELEMENTWISE = {"shape": (3, 2), "layouts": ("rows", "rows"), "slope": 0.0}
RANDOM = {"key": (1, 2), "first": 0, "step": 3, "rows": 2, "columns": 5}


@pytest.mark.parametrize(
    ("ops", "check", "example"),
    [
        (WrongGradient, "test_elementwise_kernels", ELEMENTWISE),
        (WrongDtype, "test_softmax", {"rows": 2, "columns": 3, "layout": "rows"}),
        (OtherRandomNumbers, "test_random_numbers_are_those_of_numpy_to_the_bit", RANDOM),
    ],
)
def test_a_wrong_kernel_fails_its_check(ops, check, example):
    """With a single example, of which Hypothesis seeks no smaller one."""
    contract = KernelContract()
    getattr(contract, check).hypothesis.inner_test(contract, backend=KernelBackend(NumpyOps, np.float32), **example)
    with pytest.raises(AssertionError):
        getattr(contract, check).hypothesis.inner_test(contract, backend=KernelBackend(ops, np.float32), **example)


def test_mistakes_are_named_with_their_remedies() -> None:
    with pytest.raises(ValueError, match="read-only"):
        KernelBackend(WritesToItsArgument, np.float32).run("relu", np.ones((2, 3)))

    def refuse():
        raise UserError("the kernel backend 'mine' needs a library")

    with pytest.raises(pytest.skip.Exception, match="needs a library"):
        _ = KernelBackend(refuse, np.float32).ops


def test_images_in_rows_fail_where_channels_last_are_declared():
    class Contract(KernelContract):
        channels_last = True

    case = {"seed": 0, "shape": (2, 3, 4, 4), "window": ((2, 2), (1, 1), (0, 0)), "layout": "rows"}
    for ops, failure in ((NumpyOps, nullcontext()), (RowMajorOps, pytest.raises(AssertionError))):
        with failure:
            Contract.test_avg_pool.hypothesis.inner_test(Contract(), KernelBackend(ops, np.float32), case=case)


def test_a_missing_library_is_one_clear_sentence():
    code = "import sys; sys.modules['hypothesis'] = None; from dsinga.testing import KernelContract"
    done = python("-c", code, fails=True)
    sentence = "dsinga.testing.KernelContract needs hypothesis; install it by 'pip install hypothesis'"
    assert done.stderr.splitlines()[-1] == f"ModuleNotFoundError: {sentence}"
