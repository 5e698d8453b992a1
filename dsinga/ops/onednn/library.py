"""Finds and loads the library oneDNN 3 (libdnnl), declares its C API, and describes arrays to it."""

from __future__ import annotations

import ctypes
import sys
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.ops.onednn.waiting import limit_spinning
from dsinga.ops.types import BFLOAT16, FLOAT32

# data types, format tags, kinds of propagation
BF16, F32 = 2, 3
ANY = 1
TRAINING, INFERENCE, BACKWARD = 64, 96, 128

# flags of batch and layer normalisation
USE_GLOBAL_STATS, USE_SCALE, USE_SHIFT, FUSE_RELU = 1, 2, 4, 8

# algorithms
CONVOLUTION = 0x1
RELU, TANH, LINEAR, LOGISTIC, SWISH, GELU, HARD_SWISH = 0x20, 0x21, 0x26, 0x29, 0x2C, 0x31, 0x34
RELU_FROM_OUTPUT, LOGISTIC_FROM_OUTPUT = 0x100, 0x104
MAX_POOLING, AVG_POOLING = 0x1FF, 0x2FF  # the mean counts padding
LRN_ACROSS_CHANNELS = 0xAFF
ADD, MULTIPLY, MAX = 0x1FFF0, 0x1FFF1, 0x1FFF2
SUM = 0  # no algorithm of the library: a post-operation that adds the result to what was there
SOFTMAX = 0x30000

# arguments of an execution
SRC, SRC_1, DST, WEIGHTS, BIAS, WORKSPACE, SCRATCHPAD = 1, 2, 17, 33, 41, 64, 80
MEAN, VARIANCE, SCALE, SHIFT = 49, 50, 51, 52
DIFF_SRC, DIFF_DST, DIFF_WEIGHTS, DIFF_SCALE, DIFF_SHIFT = 129, 145, 161, 255, 256
POST_OP = 32768  # times (index + 1), or-ed with SRC_1: the operand of a binary post-operation

# instruction sets
AVX512_CORE, AVX512_BF16 = 0x27, 0xE7

# queries
IMPLEMENTATION, ARGUMENT = 8, 255

# statuses
UNSUPPORTED = (2, 3, 4)  # "invalid arguments" also means a case that a primitive does not have; 4: no further one


def library_paths() -> Iterator[str]:
    """Yield where to look for oneDNN: in the Python environment, in the PyPI wheel, on the loader's path."""
    for name in ("libdnnl.so.3", "libdnnl.3.dylib"):
        yield str(Path(sys.prefix, "lib", name))
    from importlib import metadata  # of the wheel in another folder, such as the user's

    try:
        for file in metadata.files("onednn-cpu-gomp") or ():
            if file.name == "libdnnl.so.3":
                yield str(Path(str(file.locate())).resolve())
    except metadata.PackageNotFoundError:
        pass
    from ctypes.util import find_library

    path = find_library("dnnl")  # last, since it starts a process
    if path:
        yield path


def load_library(paths: Iterable[str]) -> tuple[ctypes.CDLL, ctypes.PyDLL]:
    """Load oneDNN twice: one copy releases the interpreter's lock during a call, the other keeps it."""
    for path in paths:
        try:
            library = ctypes.CDLL(path)
            library.dnnl_version.restype = ctypes.POINTER(ctypes.c_int)
            if library.dnnl_version()[0] == 3 and hasattr(library, "omp_set_num_threads"):
                return library, ctypes.PyDLL(path)
        except (OSError, AttributeError):
            continue
    raise UserError("the kernel backend 'onednn' needs oneDNN 3 built for OpenMP: pip install onednn-cpu-gomp")


limits_spinning = limit_spinning()  # before OpenMP is loaded, which reads the environment then
lib, quick = load_library(library_paths())

_pointer, _int, _long, _float = ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_float

execute = lib.dnnl_primitive_execute
execute.argtypes = [_pointer, _pointer, _int, _pointer]

sgemm = lib.dnnl_sgemm
sgemm.argtypes = [
    *(ctypes.c_char, ctypes.c_char, _long, _long, _long, _float),
    *(_pointer, _long, _pointer, _long, _float, _pointer, _long),
]

# The same functions, which keep the interpreter's lock.
quick_execute, quick_sgemm = quick.dnnl_primitive_execute, quick.dnnl_sgemm
quick_execute.argtypes, quick_sgemm.argtypes = execute.argtypes, sgemm.argtypes

set_data_handle = quick.dnnl_memory_set_data_handle
set_data_handle.argtypes = [_pointer, _pointer]

set_omp_threads = quick.omp_set_num_threads
get_omp_threads = quick.omp_get_max_threads

get_instructions = quick.dnnl_get_effective_cpu_isa

lib.dnnl_primitive_desc_query.argtypes = [_pointer, _int, _int, _pointer]
lib.dnnl_primitive_desc_query_md.argtypes = [_pointer, _int, _int]
lib.dnnl_primitive_desc_query_md.restype = _pointer
lib.dnnl_memory_desc_get_size.argtypes = [_pointer]
lib.dnnl_memory_desc_get_size.restype = ctypes.c_size_t


def version() -> str:
    """Return oneDNN's version, such as "3.2.0"."""
    return ".".join(map(str, lib.dnnl_version()[:3]))


class Unsupported(Exception):
    """Error: oneDNN has no kernel for this case."""


def check(status: int, function: str) -> None:
    """Raise Unsupported or RuntimeError if a call of oneDNN returned an error ``status``."""
    if status in UNSUPPORTED:
        raise Unsupported(function)
    if status:
        raise RuntimeError(f"oneDNN: {function} failed with status {status}")


class Handle:
    """Owns an object of the C library, made by ``function`` from ``arguments``, and destroys it in the end."""

    def __init__(self, kind: str, function: str, *arguments: Any):
        self._as_parameter_ = ctypes.c_void_p()  # ctypes passes this in place of the Handle
        self._destroy: Callable[[Any], int] = getattr(lib, f"dnnl_{kind}_destroy")
        check(getattr(lib, f"dnnl_{function}")(ctypes.byref(self._as_parameter_), *arguments), function)

    def __del__(self) -> None:
        if self._as_parameter_:
            self._destroy(self._as_parameter_)


engine = Handle("engine", "engine_create", 1, ctypes.c_size_t(0))
"""The CPU."""

_Dims = ctypes.c_int64 * 12


def dims(*values: int) -> Any:
    """Convert sizes, strides or pads to a C array for oneDNN."""
    return _Dims(*values)


CODES = {FLOAT32: F32, BFLOAT16: BF16}  # looked up by equality: an unpickled array has a dtype object of its own


def _code(dtype: np.dtype) -> int:
    if dtype not in CODES:
        raise Unsupported(f"arrays of {dtype}")
    return CODES[dtype]


def strided(shape: Sequence[int], strides: Sequence[int], dtype: np.dtype = FLOAT32) -> Handle:
    """Describe a float32 or bfloat16 array to oneDNN by its strides, counted in elements."""
    layout = len(shape), dims(*shape), _code(dtype), dims(*strides)
    return Handle("memory_desc", "memory_desc_create_with_strides", *layout)


def form_of(x: np.ndarray) -> tuple[tuple[int, ...], tuple[int, ...]]:
    """Return the shape of an array and its strides, counted in elements."""
    return x.shape, tuple(stride // x.itemsize for stride in x.strides)


def dense(shape: Sequence[int], dtype: np.dtype = FLOAT32) -> Handle:
    """Describe a C-contiguous array to oneDNN."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strided(shape, strides, dtype)


def image(shape: Sequence[int], dtype: np.dtype = FLOAT32) -> Handle:
    """Describe an image (B, C, H, W), or a volume (B, C, D, H, W), in channels-last memory to oneDNN."""
    strides = [shape[1]]
    for size in reversed(shape[2:]):
        strides.insert(0, strides[0] * size)
    return strided(shape, (strides[0], 1, *strides[1:]), dtype)


def free(shape: Sequence[int], dtype: np.dtype = FLOAT32) -> Handle:
    """Describe an array to oneDNN with a layout that the primitive chooses."""
    return Handle("memory_desc", "memory_desc_create_with_tag", len(shape), dims(*shape), _code(dtype), ANY)
