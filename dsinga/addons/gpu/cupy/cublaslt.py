"""Calls cuBLASLt with ctypes: a matrix product, its bias and a rectifier in one launch.

It is used if the precision rounds factors anyway; cuBLASLt's heuristic chooses an algorithm once a shape. Addresses do
not matter, so equal shapes give equal bits.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Sequence
from typing import Any, NamedTuple

from dsinga.addons.gpu.cupy.cublas import WORKSPACE, CuBlas, declare, load
from dsinga.addons.gpu.cupy.library import cupy

ALIGNMENT = 16  # bytes, for the kernels' vector loads
_P, _I, _SIZE = ctypes.c_void_p, ctypes.c_int, ctypes.c_size_t
_MATRICES = (_P, _P, _P, _P)
_SET = (_P, _I, _P, _SIZE)  # descriptor, attribute, address of its value, bytes
PROTOTYPES: dict[str, Sequence[Any]] = {
    "cublasLtCreate": (_P,),
    "cublasLtMatmulDescCreate": (_P, _I, _I),  # compute type, type of factors alpha and beta
    "cublasLtMatmulDescSetAttribute": _SET,
    "cublasLtMatrixLayoutCreate": (_P, _I, ctypes.c_uint64, ctypes.c_uint64, ctypes.c_int64),  # type, rows, columns, ld
    "cublasLtMatmulPreferenceCreate": (_P,),
    "cublasLtMatmulPreferenceSetAttribute": _SET,
    # handle, descriptor, layouts of A, B, C, D, preference, how many results, results, how many were written
    "cublasLtMatmulAlgoGetHeuristic": (_P, _P, *_MATRICES, _P, _I, _P, _P),
    # handle, descriptor, alpha, A, its layout, B, its layout, beta, C and D, algorithm, workspace, its bytes, stream
    "cublasLtMatmul": (_P, _P, _P, *_MATRICES, _P, *_MATRICES, _P, _P, _SIZE, _P),
}
"""The arguments of cuBLASLt's functions, as in cublasLt.h; each returns a status, 0 for success."""
TRANSPOSES_A, TRANSPOSES_B, EPILOGUE, BIAS = 3, 4, 7, 8  # attributes of a descriptor (cublasLtMatmulDescAttributes_t)
WITH_BIAS, WITH_BIAS_RECTIFIED = 4, 6  # epilogues (cublasLtEpilogue_t)
WORKSPACE_BYTES, ALIGNMENTS = 1, (5, 6, 7, 8)  # attributes of a preference (cublasLtMatmulPreferenceAttributes_t)


class HeuristicResult(ctypes.Structure):
    """cublasLtMatmulHeuristicResult_t: an algorithm, its workspace's bytes, and whether it can be used."""

    _fields_ = (
        ("algorithm", ctypes.c_uint64 * 8),
        ("workspace", _SIZE),
        ("state", _I),
        ("waves", ctypes.c_float),
        ("reserved", _I * 4),
    )


class LtProblem(NamedTuple):
    """A product D = op(A)·op(B) + bias of column-major matrices of the sizes m x k and k x n, perhaps rectified.

    ``steps`` are the leading dimensions of A, B and D, ``types`` their types as cuBLAS's numbers; ``factors`` is the
    type of alpha and beta.
    """

    transposes: tuple[bool, bool]
    sizes: tuple[int, int, int]
    steps: tuple[int, int, int]
    types: tuple[int, int, int]
    compute: int
    factors: int
    rectified: bool


class _Plan(NamedTuple):
    descriptor: int
    layouts: tuple[int, int, int]
    result: HeuristicResult


class _ThreadProducts(threading.local):
    handle = preference = 0

    def __init__(self) -> None:
        self.plans: dict[LtProblem, _Plan | None] = {}


@functools.cache
def find_library() -> ctypes.CDLL | None:
    """Return the cuBLASLt loaded by cuBLAS; None if it lacks a function."""
    library = load("libcublasLt.so")
    if library is None or not all(hasattr(library, name) for name in PROTOTYPES):
        return None
    return declare(library, PROTOTYPES)


class CuBlasLt:
    """The cuBLASLt of one worker; it computes in the workspaces of ``cublas``."""

    def __init__(self, cublas: CuBlas):
        self._cublas, self._thread = cublas, _ThreadProducts()

    def multiply(self, problem: LtProblem, addresses: tuple[int, int, int, int], one: int, zero: int) -> bool:
        """Compute a product on the current stream; return whether that was possible.

        ``addresses`` are of A, B, the bias of m numbers and D; ``one`` and ``zero`` are addresses of factors.
        """
        library, plans = find_library(), self._thread.plans
        if library is None or any(address % ALIGNMENT for address in addresses):
            return False
        if problem not in plans:
            plans[problem] = self._plan(library, problem)
        plan = plans[problem]
        if plan is None:
            return False
        a, b, bias, d = addresses
        a_layout, b_layout, d_layout = plan.layouts
        stream = cupy.cuda.get_current_stream().ptr
        status = _set(library.cublasLtMatmulDescSetAttribute, plan.descriptor, BIAS, ctypes.c_void_p(bias))
        status = status or library.cublasLtMatmul(
            *(self._thread.handle, plan.descriptor, one, a, a_layout, b, b_layout),
            *(zero, d, d_layout, d, d_layout, ctypes.addressof(plan.result)),
            *(self._cublas.workspace(stream), plan.result.workspace, stream),
        )
        if status:
            plans[problem] = None
        return not status

    def count(self) -> tuple[int, int]:
        """Return how many problems of the calling thread have, and lack, an algorithm."""
        found = sum(plan is not None for plan in self._thread.plans.values())
        return found, len(self._thread.plans) - found

    def _plan(self, library: ctypes.CDLL, problem: LtProblem) -> _Plan | None:
        (m, n, k), (turns_a, turns_b), thread = problem.sizes, problem.transposes, self._thread
        try:
            if not thread.preference:
                thread.handle = _create(library.cublasLtCreate)
                thread.preference = self._new_preference(library)
            descriptor = _create(library.cublasLtMatmulDescCreate, problem.compute, problem.factors)
            epilogue = WITH_BIAS_RECTIFIED if problem.rectified else WITH_BIAS
            attributes = (TRANSPOSES_A, turns_a), (TRANSPOSES_B, turns_b), (EPILOGUE, epilogue)
            set_attribute = library.cublasLtMatmulDescSetAttribute
            for attribute, value in attributes:
                _check(_set(set_attribute, descriptor, attribute, ctypes.c_int32(value)))
            # the heuristic takes from this address only how biases are aligned
            _check(_set(set_attribute, descriptor, BIAS, ctypes.c_void_p(ALIGNMENT)))
            shapes = ((k, m) if turns_a else (m, k)), ((n, k) if turns_b else (k, n)), (m, n)
            a, b, d = (
                _create(library.cublasLtMatrixLayoutCreate, kind, *shape, step)
                for kind, shape, step in zip(problem.types, shapes, problem.steps, strict=True)
            )
            result, count = HeuristicResult(), ctypes.c_int()
            places = ctypes.addressof(result), ctypes.addressof(count)
            ask = library.cublasLtMatmulAlgoGetHeuristic
            _check(ask(thread.handle, descriptor, a, b, d, d, thread.preference, 1, *places))
        except _RefusedError:
            return None
        return _Plan(descriptor, (a, b, d), result) if count.value and not result.state else None

    def _new_preference(self, library: ctypes.CDLL) -> int:
        preference = _create(library.cublasLtMatmulPreferenceCreate)
        set_attribute = library.cublasLtMatmulPreferenceSetAttribute
        _check(_set(set_attribute, preference, WORKSPACE_BYTES, ctypes.c_uint64(WORKSPACE)))
        for attribute in ALIGNMENTS:
            _check(_set(set_attribute, preference, attribute, ctypes.c_uint32(ALIGNMENT)))
        return preference


class _RefusedError(Exception):
    """Raised when cuBLASLt refuses a call."""


def _check(status: int) -> None:
    if status:
        raise _RefusedError


def _create(function: Any, *arguments: int) -> int:
    place = ctypes.c_void_p()
    _check(function(ctypes.addressof(place), *arguments))
    return place.value or 0


def _set(function: Any, descriptor: int, attribute: int, value: Any) -> int:
    return int(function(descriptor, attribute, ctypes.addressof(value), ctypes.sizeof(value)))
