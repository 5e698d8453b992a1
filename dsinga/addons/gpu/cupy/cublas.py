"""Calls cuBLAS with ctypes, because CuPy refuses matrix products on a stream that is being captured.

Each thread has its own handle and workspace, so a product needs no lock, allocates nothing during a capture, and gives
the same bits whatever other streams compute.
"""

from __future__ import annotations

import ctypes
import functools
import threading
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.addons.gpu.cupy.library import cupy, missing_library
from dsinga.ops.types import Array

WORKSPACE = 32 * 2**20  # bytes, as NVIDIA recommends for Hopper
_P, _I, _L = ctypes.c_void_p, ctypes.c_int, ctypes.c_longlong
_FIRST = (_P, _I, _I, _I, _I, _I, _P)  # handle, transa, transb, m, n, k, alpha
PROTOTYPES: dict[str, Sequence[Any]] = {
    "cublasCreate_v2": (_P,),
    "cublasDestroy_v2": (_P,),
    "cublasSetStream_v2": (_P, _P),
    "cublasSetWorkspace_v2": (_P, _P, ctypes.c_size_t),
    # A, its type and leading dimension, the same for B; beta; the same for C; compute type and algorithm
    "cublasGemmEx": (*_FIRST, _P, _I, _I, _P, _I, _I, _P, _P, _I, _I, _I, _I),
    # the same, with the stride of each kind of matrix after its leading dimension, and their number
    "cublasGemmStridedBatchedEx": (*_FIRST, _P, _I, _I, _L, _P, _I, _I, _L, _P, _P, _I, _I, _L, _I, _I, _I),
}
"""The arguments of cuBLAS's functions, as in cublas_v2.h; each returns a status, 0 for success."""


@functools.cache
def find_library() -> ctypes.CDLL:
    """Return the cuBLAS that CuPy has loaded into this process."""
    library = load("libcublas.so")
    assert library is not None, "CuPy has loaded cuBLAS"
    return declare(library, PROTOTYPES)


def load(name: str) -> ctypes.CDLL | None:
    """Return the library ``name`` that CuPy loaded with cuBLAS, or None."""
    try:
        cupy.cuda.device.get_cublas_handle()  # loads it
    except ImportError as error:
        raise missing_library(cupy.cuda, error) from error
    lines = Path("/proc/self/maps").read_text().splitlines()
    paths = [line.split(maxsplit=5)[-1] for line in lines if name in line]
    return ctypes.CDLL(paths[0]) if paths else None


def declare(library: ctypes.CDLL, prototypes: Mapping[str, Sequence[Any]]) -> ctypes.CDLL:
    """Declare the argument types of a library's functions to ctypes; return the library."""
    for name, types in prototypes.items():
        function = getattr(library, name)
        function.argtypes, function.restype = types, ctypes.c_int
    return library


class _ThreadHandle(threading.local):
    """The calling thread's handle, 0 until created, and its last stream."""

    handle = 0
    stream = -1


class CuBlas:
    """Calls cuBLAS's matrix products for one worker, with a handle and a workspace for each thread."""

    def __init__(self) -> None:
        self._thread = _ThreadHandle()
        self._workspaces: list[Array] = []  # of all threads; graphs that were captured use them
        self._gemm: Any = None
        self._batched: Any = None

    def workspace(self, stream: int) -> int:
        """Return the calling thread's workspace address, for products on ``stream``."""
        if self._thread.stream != stream:
            self._set_stream(stream)
        return int(self._thread.workspace.data.ptr)

    def gemm(self, *arguments: int) -> None:
        """Call cublasGemmEx with ``arguments`` after the handle, on the current stream."""
        thread, stream = self._thread, cupy.cuda.get_current_stream().ptr
        if thread.stream != stream:
            self._set_stream(stream)
        status = self._gemm(thread.handle, *arguments)
        if status:
            _fail("cublasGemmEx", status)

    def gemm_batched(self, *arguments: int) -> None:
        """Call cublasGemmStridedBatchedEx with ``arguments`` after the handle, on the current stream."""
        thread, stream = self._thread, cupy.cuda.get_current_stream().ptr
        if thread.stream != stream:
            self._set_stream(stream)
        status = self._batched(thread.handle, *arguments)
        if status:
            _fail("cublasGemmStridedBatchedEx", status)

    def _set_stream(self, stream: int) -> None:
        """Set the handle's stream, and its workspace, which cuBLAS forgets with each new stream."""
        library, thread = find_library(), self._thread
        if not thread.handle:
            handle = ctypes.c_void_p()
            _check(library.cublasCreate_v2, ctypes.addressof(handle))
            self._gemm, self._batched = library.cublasGemmEx, library.cublasGemmStridedBatchedEx
            thread.handle, thread.workspace = handle.value or 0, cupy.empty(WORKSPACE, np.uint8)
            self._workspaces.append(thread.workspace)
        _check(library.cublasSetStream_v2, thread.handle, stream)
        _check(library.cublasSetWorkspace_v2, thread.handle, thread.workspace.data.ptr, WORKSPACE)
        thread.stream = stream


def _check(function: Callable[..., int], *arguments: int) -> None:
    status = function(*arguments)
    if status:
        _fail(getattr(function, "__name__", "cuBLAS"), status)


def _fail(function: str, status: int) -> None:
    raise RuntimeError(f"{function} returned status {status} (cublasStatus_t)")
