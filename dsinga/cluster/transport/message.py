"""Describes arrays by plain values (dtype, shape, memory layout) next to their bytes, and restores them unpickled."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import msgpack
import numpy as np

from dsinga.base.errors import Diverged, RunError, UserError, WorkerLost
from dsinga.cluster.transport.interface import Items
from dsinga.ops import Array, SparseRows
from dsinga.ops.sparse import fault
from dsinga.ops.types import BFLOAT16

ALIGNMENT = 64  # bytes: a cache line
ROWS = "rows"
MOST_BYTES = 1 << 48  # of an array; what seems to be a larger one is none

# What arrays may consist of: numbers of a known size. numpy would take any text for a dtype, of any size.
_CODES = np.typecodes["AllInteger"] + np.typecodes["AllFloat"] + "?"
_DTYPES = {dtype.str: dtype for code in _CODES for dtype in (np.dtype(f"<{code}"), np.dtype(f">{code}"))}
_DTYPES[BFLOAT16.str] = BFLOAT16

_ERRORS = {kind.__name__: kind for kind in (Diverged, RunError, UserError, WorkerLost)}


def flatten(items: Items) -> tuple[list[Any], list[np.ndarray]]:
    """Return plain descriptions of arrays, and the C-contiguous arrays of their bytes, to send them."""
    layouts: list[Any] = []
    buffers: list[np.ndarray] = []
    for item in items:
        if isinstance(item, SparseRows):
            inner, carried = flatten([item.rows.astype(np.int32), item.values])
            layouts.append([ROWS, list(item.shape), inner])
            buffers += carried
        else:
            order = sorted(range(item.ndim), key=lambda axis: -item.strides[axis])  # stable: ties stay in order
            buffers.append(np.ascontiguousarray(item.transpose(order)).reshape(-1))
            layouts.append([item.dtype.str, [item.shape[axis] for axis in order], order])
    return layouts, buffers


def restore(layouts: Sequence[Any], buffers: Iterator[Any]) -> list[Array | SparseRows]:
    """Restore the arrays that :func:`flatten` described, as views of buffers of exactly their bytes.

    Raises ValueError for faulty descriptions.
    """
    try:
        return _restore(layouts, buffers)
    except (TypeError, LookupError, OverflowError, StopIteration) as error:
        raise ValueError(f"no description of arrays: {error!r}") from error


def _restore(layouts: Sequence[Any], buffers: Iterator[Any]) -> list[Array | SparseRows]:
    items: list[Array | SparseRows] = []
    for kind, shape, rest in layouts:
        if kind == ROWS:
            rows, values = (np.asarray(array) for array in _restore_pair(rest, buffers))
            items.append(SparseRows(rows.astype(np.int64), values, tuple(shape)))
            if reason := fault(items[-1]):
                raise ValueError(f"a sparse array with a fault: {reason}")
        else:
            items.append(np.frombuffer(next(buffers), _DTYPES[kind]).reshape(shape).transpose(np.argsort(rest)))
    return items


def _restore_pair(layouts: Sequence[Any], buffers: Iterator[Any]) -> list[Array | SparseRows]:
    if any(kind == ROWS for kind, _, _ in layouts):
        raise ValueError("a sparse array in a sparse array")
    return _restore(layouts, buffers)


def sizes(layouts: Sequence[Any]) -> Iterator[int]:
    """Yield the number of bytes of each described buffer. Raises ValueError for faulty descriptions."""
    try:
        for kind, shape, rest in layouts:
            if kind == ROWS:
                yield from (_size(inner, inner_shape) for inner, inner_shape, _ in rest)
            else:
                yield _size(kind, shape)
    except (TypeError, LookupError) as error:
        raise ValueError(f"no description of arrays: {error!r}") from error


def _size(kind: str, shape: Sequence[int]) -> int:
    size = math.prod(shape) * _DTYPES[kind].itemsize
    if type(size) is not int or not 0 <= size <= MOST_BYTES:  # numpy refuses whatever else is wrong with a shape
        raise ValueError(f"no shape of an array: {str(shape)[:100]}")
    return size


def aligned(size: int) -> int:
    """Round a size up to whole cache lines."""
    return -(-size // ALIGNMENT) * ALIGNMENT


def aligned_size(arrays: Sequence[np.ndarray]) -> int:
    """Return the bytes of memory that :func:`copy_into` needs."""
    return sum(aligned(array.nbytes) for array in arrays)


def copy_into(memory: np.ndarray, arrays: Sequence[np.ndarray]) -> None:
    """Copy 1-d arrays into ``memory``, uint8, each at the start of a cache line."""
    at = 0
    for array in arrays:
        memory[at : at + array.nbytes] = array.view(np.uint8)
        at += aligned(array.nbytes)


def pack(value: Any) -> bytes:
    """Convert plain values to bytes."""
    packed: bytes = msgpack.packb(value)
    return packed


def unpack(packed: Any) -> Any:
    """Restore the plain values of :func:`pack`. Raises ValueError for anything else."""
    try:
        return msgpack.unpackb(packed, strict_map_key=False)
    except (msgpack.UnpackException, TypeError, OverflowError, MemoryError, RecursionError) as error:
        raise ValueError(f"no plain values: {error!r}") from error


def describe_error(error: BaseException) -> list[str]:
    """Return an error as plain values: its class in :mod:`dsinga.base.errors`, by name, and the message."""
    for kind in type(error).__mro__:
        if kind.__name__ in _ERRORS:
            return [kind.__name__, str(error)]
    return [RunError.__name__, f"{type(error).__name__}: {error}"]


def restore_error(description: Sequence[str]) -> Exception:
    """Restore an error from :func:`describe_error`. Raises ValueError for anything else."""
    kind, text = description
    if not isinstance(kind, str) or not isinstance(text, str):
        raise ValueError("no description of an error")
    return _ERRORS.get(kind, RunError)(text)
