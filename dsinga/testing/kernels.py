"""KernelContract: tests that every kernel backend must pass."""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from typing import Any, ClassVar

import numpy as np
import pytest

from dsinga.ops import Ops
from dsinga.testing.kernel_arrays import ArrayKernels, ElementwiseKernels
from dsinga.testing.kernel_backend import KernelBackend
from dsinga.testing.kernel_fields import FieldKernels
from dsinga.testing.kernel_images import ImageKernels, NormalisationKernels
from dsinga.testing.kernel_sequences import AttentionKernels, CRFKernels, SequenceKernels


class KernelContract(
    ArrayKernels,
    ImageKernels,
    NormalisationKernels,
    FieldKernels,
    ElementwiseKernels,
    SequenceKernels,
    CRFKernels,
    AttentionKernels,
):
    """The tests that every kernel backend must pass; a subclass, named ``Test...``, sets ``make_ops``.

    A backend must:

    - compute the formulas of :class:`dsinga.ops.Ops`, and their derivatives, for arrays of any shape and memory layout,
      including empty ones;
    - leave its arguments unchanged;
    - return numpy's random numbers bit for bit;
    - give concurrent threads the bits that each would get alone.

    >>> from dsinga.testing import KernelContract
    >>> from dsinga.ops.interface import NumpyOps
    >>> class TestNumpy(KernelContract):  # in a file test_numpy.py, run by pytest
    ...     make_ops = NumpyOps

    ``dsinga.ops.BACKENDS["mine"] = MyOps`` names a backend for ``DSINGA_OPS``. A backend that records and replays
    passes (``Ops.capture``) also passes :class:`dsinga.testing.CaptureContract`.

    ``make_ops`` is a class, or a function without arguments that is no method. It is called once for each of
    ``dtypes``. Tests are skipped if it raises UserError, as for a missing library. With ``channels_last``, images made
    by the backend must be channels-last in memory.
    """

    make_ops: ClassVar[Callable[[], Ops]]
    dtypes: ClassVar[Sequence[Any]] = (np.float32,)

    @classmethod
    def pytest_generate_tests(cls, metafunc: pytest.Metafunc) -> None:
        """Run each test in each dtype (called by pytest)."""
        if "backend" in metafunc.fixturenames:
            backends = [backend_of(cls.make_ops, dtype) for dtype in cls.dtypes]
            names = [np.dtype(dtype).name for dtype in cls.dtypes]
            metafunc.parametrize("backend", backends, ids=names, scope="class")


@functools.cache
def backend_of(make_ops: Callable[[], Ops], dtype: Any) -> KernelBackend:
    """Return the backend to test for a factory and a dtype, shared by all tests."""
    return KernelBackend(make_ops, dtype)
