"""Describes recorded calls to a compiled loop: C functions, the inner loops of numpy's ufuncs, picks and checks."""

from __future__ import annotations

import ctypes
import operator
from collections.abc import Callable, Iterator, Sequence
from functools import cache, lru_cache, partial
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.buffers import address
from dsinga.ops.recorded_array import store_result
from dsinga.ops.recorded_checks import Check, FiniteCheck

WORDS = 32  # integers of a record: a kind, a function, its 11 integers and 2 floats, how often; then OPERANDS
TIMES, OPERANDS, STEPS, MOVES, LENGTH = 15, 16, 20, 24, 28  # places: of a ufunc, for at most four operands
CALL, REPEAT, TAKE, PUT, PICK, LARGEST, WIDEN, COUNT, FINITE = range(9)  # kinds of records
LARGEST_PRODUCT = 1 << 19  # multiplications; a product of more is worth the lock, and threads of BLAS
BUFFER = 8192  # numbers of which numpy, before 2.3 or in converting them, makes a sum at a time
_KEEPS_LOCK = 0x4  # FUNCFLAG_PYTHONAPI of ctypes
_C_TYPES = {ctypes.c_void_p, ctypes.c_int, ctypes.c_int64, ctypes.c_ssize_t, ctypes.c_char, ctypes.c_float}
SUMMED = [np.dtype(kind) for kind in (np.float32, np.float64, np.int64, bool)]


class _UfuncObject(ctypes.Structure):
    """The fields of numpy's C struct PyUFuncObject after those of every object; its loops are by types."""

    _fields_ = [
        ("counts", ctypes.c_int * 4), ("functions", ctypes.POINTER(ctypes.c_void_p)),
        ("data", ctypes.POINTER(ctypes.c_void_p)), ("types", ctypes.c_int),
    ]  # fmt: skip


class CallRecord(NamedTuple):
    """What a compiled loop reads of a call, and the arrays that must live as long."""

    kind: int
    words: dict[int, int]
    memory: tuple[Any, ...] = ()


def records_of(call: Callable[[], Any]) -> list[CallRecord] | None:
    """Describe a call by records; None if only Python can call it."""
    try:
        return list(_records(call))
    except (TypeError, ValueError, LookupError, AttributeError, ArithmeticError):  # of what is not described here
        return None


class _Unknown(TypeError):
    """Error: a call, or the layout of its arrays, has no record."""


def _require(condition: Any) -> None:
    if not condition:
        raise _Unknown


def _records(call: Any) -> Iterator[CallRecord]:
    if isinstance(call, Check):
        _require(call.is_of_bytes)
        array, expected = call.array, call.expected
        yield _function(CALL, _libc("memcmp"), [address(array), address(expected), expected.nbytes], array, expected)
        return
    if isinstance(call, FiniteCheck):
        for vector in call.vectors:
            _require(vector.dtype == np.float32 and vector.flags.c_contiguous)
            yield CallRecord(FINITE, {2: address(vector), 3: vector.size}, (vector,))
        return
    _require(isinstance(call, partial))
    function, arguments, options = call.func, call.args, {**call.keywords}
    if isinstance(out := options.get("out"), tuple):
        (options["out"],) = out
    ufunc = function if isinstance(function, np.ufunc) else getattr(function, "__self__", None)
    if hasattr(function, "argtypes"):
        yield _c_call(function, arguments)
    elif isinstance(ufunc, np.ufunc) and function.__name__ == "reduce":
        names = dict(zip(("axis", "dtype", "out", "keepdims"), arguments[1:], strict=False)) | options
        _require(names.keys() <= {"axis", "dtype", "out", "keepdims"})
        yield from _reduction(ufunc, arguments[0], names.get("axis", 0), names.get("dtype"), names["out"])
    elif function in DESCRIBED:
        yield DESCRIBED[function](*arguments, **options)
    elif isinstance(ufunc, np.ufunc):
        _require(options.keys() <= {"out"} and function in (ufunc, ufunc.__call__))
        yield _elementwise(ufunc, (*arguments, *options.values()))
    else:
        raise _Unknown


@cache
def _libc(name: str) -> int:
    """Return the address of a function of the C library."""
    return ctypes.cast(getattr(ctypes.CDLL(None), name), ctypes.c_void_p).value or 0


def _function(kind: int, function: int, integers: Sequence[int], *memory: Any) -> CallRecord:
    return CallRecord(kind, {1: function, TIMES: 1, **dict(enumerate(integers, 2))}, memory)


def _c_call(function: Any, arguments: tuple[Any, ...]) -> CallRecord:
    """Describe a call of a C function that keeps the interpreter's lock and returns a status."""
    _require(function._flags_ & _KEEPS_LOCK and function.restype is ctypes.c_int)
    _require(function.argtypes and _C_TYPES.issuperset(function.argtypes))
    floats = [each.value for each in arguments if isinstance(each, ctypes.c_float)]
    integers = [each.value for each in arguments if not isinstance(each, ctypes.c_float)]
    words = [ord(each) if isinstance(each, bytes) else each or 0 for each in integers]
    record = _function(CALL, ctypes.cast(function, ctypes.c_void_p).value or 0, words, arguments)
    _require(len(words) <= 11 and len(floats) <= 2)
    record.words.update(enumerate(np.array(floats, np.float32).view(np.uint32).tolist(), 13))
    return record


@lru_cache(1024)
def _inner_loop(ufunc: np.ufunc, signature: str) -> tuple[int, int]:
    """Return the addresses of a ufunc's C loop for these types, such as "ff->f", and of its data."""
    index, start = ufunc.types.index(signature), id(ufunc) + object.__basicsize__
    fields = _UfuncObject.from_address(start)
    _require((*fields.counts[:3], fields.types) == (ufunc.nin, ufunc.nout, ufunc.nargs, len(ufunc.types)))
    function, data = fields.functions[index], fields.data[index] if fields.data else 0
    _require(function)
    return function, data or 0


def _elementwise(ufunc: np.ufunc, operands: Sequence[Any]) -> CallRecord:
    """Describe a ufunc's call, whose last operand takes the result."""
    _require(ufunc.nout == 1 and ufunc.signature is None and len(operands) == ufunc.nargs <= 4)
    *inputs, out = operands
    kinds = (type(each) if type(each) in (int, float) else each.dtype for each in inputs)
    dtypes = ufunc.resolve_dtypes((*kinds, None))
    arrays = [
        np.array(each, dtype) if type(each) in (int, float) else np.asarray(each)
        for each, dtype in zip(operands, dtypes, strict=True)
    ]
    _require(all(each.dtype == dtype and each.flags.aligned for each, dtype in zip(arrays, dtypes, strict=True)))
    chars = [dtype.char for dtype in dtypes]
    return _repeated(ufunc, f"{''.join(chars[:-1])}->{chars[-1]}", arrays)


def _product(a: np.ndarray, b: np.ndarray, out: np.ndarray) -> CallRecord:
    """Describe a small product of matrices, by the loop of ``matmul``.

    It has the bits of ``dot`` where BLAS takes the matrices' strides: it copies no matrix, as ``dot`` does.
    """
    _require(all(each.ndim == 2 and each.dtype == np.float32 and each.flags.aligned for each in (a, b, out)))
    _require(_is_of_blas(a) and _is_of_blas(b) and _is_of_blas(out) and out.size * a.shape[1] <= LARGEST_PRODUCT)
    _require(not np.may_share_memory(a, out) and not np.may_share_memory(b, out))
    function, data = _inner_loop(np.matmul, "ff->f")
    operands, sizes = np.array([address(each) for each in (a, b, out)]), np.array([1, *a.shape, b.shape[1]])
    steps = np.array([0, 0, 0, *a.strides, *b.strides, *out.strides])
    arrays = operands, sizes, steps
    return _function(REPEAT, function, [*map(address, arrays), data], *arrays, a, b, out)


def _is_of_blas(matrix: np.ndarray) -> bool:
    """Whether rows or columns of a float32 matrix are contiguous, and do not overlap."""
    (rows, columns), (down, right) = matrix.shape, matrix.strides
    return (right == 4 and down >= 4 * columns) or (down == 4 and right >= 4 * rows)


def _repeated(ufunc: np.ufunc, signature: str, arrays: Sequence[np.ndarray]) -> CallRecord:
    """Describe a ufunc's loop over the elements of arrays, the last of which is the result."""
    out = arrays[-1]
    strides = [(each if each.shape == out.shape else np.broadcast_to(each, out.shape)).strides for each in arrays]
    for each, own in zip(arrays[:-1], strides, strict=False):
        _require((address(each) == address(out) and own == out.strides) or not np.may_share_memory(each, out))
    axes = [axis for axis in zip(out.shape, *strides, strict=True) if axis[0] != 1]
    axes.sort(key=lambda axis: -abs(axis[-1]))
    joined: list[tuple[int, ...]] = []
    for count, *steps in axes:
        if joined and all(before == count * step for before, step in zip(joined[-1][1:], steps, strict=True)):
            count *= joined.pop()[0]
        joined.append((count, *steps))
    (times, *moves), (length, *steps) = [(1, *[0] * len(arrays))] * (2 - len(joined)) + joined  # at most two axes
    return _loop(ufunc, signature, arrays, length, steps, times, moves)


def _loop(
    ufunc: np.ufunc, signature: str, arrays: Sequence[np.ndarray], length: int, steps: Sequence[int],
    times: int = 1, moves: Sequence[int] = (), skipped: Sequence[int] = (0, 0, 0, 0),
) -> CallRecord:  # fmt: skip
    """Describe ``times`` runs of a ufunc's loop, between which the operands move by ``moves`` bytes."""
    function, data = _inner_loop(ufunc, signature)
    words = {1: function, 5: data, TIMES: times, LENGTH: length, **dict(enumerate(steps, STEPS))}
    words |= {OPERANDS + k: address(each) + skipped[k] for k, each in enumerate(arrays)}
    return CallRecord(REPEAT, words | dict(enumerate(moves, MOVES)), (ufunc, *arrays))


def _reduction(ufunc: np.ufunc, array: np.ndarray, axis: Any, dtype: Any, out: np.ndarray) -> Iterator[CallRecord]:
    """Describe a reduction in numpy's order, of all numbers or along the first or last axis."""
    _require(type(array) is np.ndarray and array.flags.c_contiguous and out.flags.c_contiguous and array.size)
    _require(out.dtype in SUMMED and (dtype is None or np.dtype(dtype) == out.dtype) and array.dtype.isnative)
    _require(array.flags.aligned and out.flags.aligned and not np.may_share_memory(array, out))
    char, rows = out.dtype.char, array.shape[0] if array.ndim else 1
    is_whole = axis is None or array.ndim == 1 or array.size == rows
    _require(is_whole or axis in (0, array.ndim - 1, -1))
    run = array.size if is_whole else 1 if axis == 0 else array.shape[-1]
    _require(run <= BUFFER)  # older numpys cut longer ones
    if array.dtype != out.dtype:
        kind = {"fd": WIDEN, "?l": COUNT}[array.dtype.char + char]
        _require(is_whole and ufunc is np.add)
        wide = np.empty(array.shape, out.dtype)
        yield CallRecord(kind, {2: address(array), 3: address(wide), 4: array.size}, (array, wide))
        array = wide
    size, signature, begun = out.itemsize, f"{char}{char}->{char}", ufunc.identity is None
    count, width = (1, array.size) if is_whole else (rows, array.size // rows)
    first = array if begun else np.full(out.shape, ufunc.identity, out.dtype)
    _require(not begun or is_whole or axis == 0)
    _require(out.size == (1 if is_whole else width if axis == 0 else array.size // array.shape[-1]))
    yield _function(REPEAT, _libc("memcpy"), [address(out), address(first), out.nbytes], out, first)
    if is_whole:
        steps, skipped = (0, size, 0), (0, size * begun, 0)
        yield _loop(ufunc, signature, (out, array, out), width - begun, steps, skipped=skipped)
    elif axis == 0:
        moves, skipped = (0, size * width, 0), (0, size * width * begun, 0)
        yield _loop(ufunc, signature, (out, array, out), width, (size,) * 3, count - begun, moves, skipped)
    else:
        columns = array.shape[-1]
        moves = (size, size * columns, size)
        yield _loop(ufunc, signature, (out, array, out), columns, (0, size, 0), out.size, moves)


def _copied(target: np.ndarray, source: Any, casting: str = "unsafe") -> CallRecord:
    """Describe a copy between arrays of one type."""
    is_number = type(source) in (int, float)
    _require(is_number or isinstance(source, (np.ndarray, np.generic)))
    source = np.asarray(source, target.dtype if is_number else None)
    _require(target.dtype == source.dtype and target.dtype.char in "fdl" and target.dtype.isnative)
    _require(target.flags.aligned and source.flags.aligned)
    return _repeated(np.positive, f"{target.dtype.char}->{target.dtype.char}", (source, target))


def _assignment(target: np.ndarray, index: Any, value: Any) -> CallRecord:
    """Describe ``target[index] = value``."""
    parts = index if isinstance(index, tuple) else (index,)
    if all(type(part) in (int, slice, type(None), type(Ellipsis)) for part in parts):
        view = target[(*parts, ...)] if Ellipsis not in parts else target[index]
        return _copied(view, value)
    return _at_places(PUT, target, parts, value)


def _at_places(kind: int, table: np.ndarray, places: Sequence[Any], numbers: np.ndarray) -> CallRecord:
    """Describe how numbers are put into a list at places or a table at rows and columns, or are picked."""
    if len(places) == 1:
        _require(table.ndim == 1)
        table, places = table[np.newaxis], [np.zeros(len(places[0]), np.int64), *places]
    rows, columns = places
    _require(table.ndim == 2 and table.dtype == np.float32 and table.flags.aligned)
    _require(_is_list(rows, np.int64) and _is_list(columns, np.int64) and _is_list(numbers, np.float32))
    _require(rows.shape == columns.shape == numbers.shape)
    _require(not any(np.may_share_memory(table, each) for each in (rows, columns, numbers)))
    _require(not any(np.may_share_memory(numbers, each) for each in (rows, columns)))
    sizes = rows.size, *table.shape, *(stride // table.itemsize for stride in table.strides)
    words = dict(enumerate([*map(address, (table, rows, columns, numbers)), *sizes], 2))
    return CallRecord(kind, words, (table, rows, columns, numbers))


def _stored(results: Sequence[np.ndarray], made: Any) -> CallRecord:
    """Describe a result that replaces the recorded one: zeros, or numbers picked of a table."""
    (result,) = results
    if made.func is np.zeros_like:
        return _copied(result, 0)
    _require(made.func is operator.getitem)
    table, places = made.args
    return _at_places(PICK, table, places, result)


def _taken(
    source: np.ndarray, places: np.ndarray, axis: Any = None, out: Any = None, mode: str = "raise"
) -> CallRecord:
    """Describe the numbers that ``take`` picks of a list."""
    _require(_is_list(source, np.float32) and _is_list(places, np.int64) and source.size)
    _require(axis in (None, 0) and mode == "clip" and _is_list(out, np.float32))
    _require(not np.may_share_memory(source, out) and not np.may_share_memory(places, out))
    words = {2: address(source), 3: address(places), 4: address(out), 5: places.size, 6: source.size}
    return CallRecord(TAKE, words, (source, places, out))


def _argmax(table: np.ndarray, axis: Any = None, out: Any = None) -> CallRecord:
    """Describe the places of the largest numbers of rows."""
    _require(table.ndim == 2 and axis in (1, -1) and table.dtype == np.float32 and table.flags.c_contiguous)
    words = {2: address(table), 3: address(out), 4: table.shape[0], 5: table.shape[1]}
    _require(_is_list(out, np.int64) and table.size and not np.may_share_memory(table, out))
    return CallRecord(LARGEST, words, (table, out))


def _is_list(array: Any, dtype: Any) -> bool:
    return type(array) is np.ndarray and array.ndim == 1 and array.dtype == dtype and array.flags.c_contiguous


DESCRIBED: dict[Any, Callable[..., CallRecord]] = {
    operator.setitem: _assignment, np.copyto: _copied, store_result: _stored, np.dot: _product, np.matmul: _product,
    np.take: _taken, np.ndarray.take: _taken, np.argmax: _argmax, np.ndarray.argmax: _argmax,
}  # fmt: skip
