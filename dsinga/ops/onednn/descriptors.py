"""Handles of the library's objects, and descriptors of arrays: shape, layout, data type."""

from __future__ import annotations

import ctypes
from collections.abc import Callable, Sequence
from typing import Any

from dsinga.ops.onednn.library import ANY, F32, UNSUPPORTED, lib


class Unsupported(Exception):
    """The library has no kernel for this case."""


def check(status: int, function: str) -> None:
    """Raise Unsupported, or RuntimeError, unless ``status`` means success."""
    if status in UNSUPPORTED:
        raise Unsupported(function)
    if status:
        raise RuntimeError(f"oneDNN: {function} failed with status {status}")


class Handle:
    """An object of the library, made by ``function`` from ``arguments`` and destroyed with its last reference."""

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
    """Return ``values`` as the library's array of sizes, strides or pads."""
    return _Dims(*values)


def strided(shape: Sequence[int], strides: Sequence[int], dtype: int = F32) -> Handle:
    """Describe an array by its strides, counted in elements."""
    return Handle("memory_desc", "memory_desc_create_with_strides", len(shape), dims(*shape), dtype, dims(*strides))


def dense(shape: Sequence[int], dtype: int = F32) -> Handle:
    """Describe a C-contiguous array."""
    strides = [1]
    for size in reversed(shape[1:]):
        strides.insert(0, strides[0] * size)
    return strided(shape, strides, dtype)


def image(shape: Sequence[int], dtype: int = F32) -> Handle:
    """Describe an image (B, C, H, W) in channels-last memory."""
    _, channels, height, width = shape
    return strided(shape, (height * width * channels, 1, width * channels, channels), dtype)


def free(shape: Sequence[int]) -> Handle:
    """Describe a float32 array whose layout the primitive chooses."""
    return Handle("memory_desc", "memory_desc_create_with_tag", len(shape), dims(*shape), F32, ANY)
