"""Records all numpy calls of a pass on its arrays, so that the pass can be replayed without Python's layers.

A recorded array is no numpy array: code that would read it without a record, or write its numbers to a numpy array,
raises :class:`~dsinga.ops.types.NotCapturable`. Where Python decides by a number, as for valid labels, a check is
recorded.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterable, Iterator
from functools import partial
from typing import Any

import numpy as np
from numpy.lib.mixins import NDArrayOperatorsMixin

from dsinga.base import buffers
from dsinga.ops.recorded_checks import Check, Deviated
from dsinga.ops.types import NotCapturable

FACTS = {"shape", "dtype", "ndim", "size", "nbytes", "strides", "itemsize", "flags"}
"""Attributes of arrays that do not depend on their numbers."""
OF_SHAPES = {"shape", "ndim", "size", "result_type", "can_cast", "iscomplexobj", "broadcast_shapes"}
"""Functions of numpy with results that do not depend on the numbers of arrays."""
WITH_OUT = {
    "all", "any", "argmax", "argmin", "clip", "concatenate", "cumsum", "dot", "einsum", "max", "min", "prod", "stack",
    "sum", "take",
}  # fmt: skip
"""Functions and methods that can write to a given array of a shape that does not depend on numbers."""
REDUCTIONS = {
    "all": np.logical_and, "any": np.logical_or, "max": np.maximum, "min": np.minimum, "prod": np.multiply,
    "sum": np.add,
}  # fmt: skip
"""The ufuncs with which numpy computes some of them."""
IN_PLACE = {
    "copyto", "fill", "fill_diagonal", "partition", "place", "put", "put_along_axis", "putmask", "setflags", "sort",
}  # fmt: skip
"""Functions and methods that change their first argument."""
COPIES = {"astype", "copy"}
POWERS = {2: np.square, 1: np.positive, 0.5: np.sqrt, -1: np.reciprocal}
"""The ufuncs by which the operator ``**`` computes some powers of floats."""
VIEWS_BY_NUMBERS = {"real_if_close", "trim_zeros"}
"""Functions that return a view of an argument, chosen by its numbers."""
OUT_BY_NAME = {np.maximum, np.minimum}  # of which numpy refuses a result array by position


# Bytes of the arrays of a pass: those of a larger one would all be in memory at once, where calls free features as soon
# as no layer needs them, and their kernels take so long that a replay saves nothing.
LARGEST = 1 << 24


class Recorder:
    """Collects the calls of a pass, and the arrays that they read and write.

    ``rows`` are the rows of the batch that it computes: first, stop and total.

    Attributes:
        first_row: the first row of the batch in this replay.
        calls: functions without arguments, to be called in order.
        nbytes: bytes of the arrays made during the recording.
        numbers: metrics, arrays () in reading order.
        calls_library: whether some calls use the kernel library.
    """

    def __init__(self, rows: tuple[int, int, int] = (0, 0, 0)) -> None:
        self._rows, self.first_row = rows, rows[0]
        self.calls: list[Callable[[], Any]] = []
        self.nbytes = self.step = 0
        self.numbers: list[np.ndarray] = []
        self.calls_library = False
        self._memory: list[Any] = []  # what calls know by its address alone

    def add(self, call: Callable[[], Any], *memory: Any) -> None:
        """Record a completed call; keep ``memory``, because the call knows only addresses."""
        self.calls.append(call)
        self._memory += memory

    def made(self, result: Any) -> RecordedArray:
        """Wrap a numpy array or number that was computed in the recording, so that its uses are recorded."""
        array = np.asarray(result)
        self.nbytes += array.nbytes
        if self.nbytes > LARGEST:
            raise NotCapturable(f"its arrays take more than {LARGEST >> 20} MB, which are freed while it is called")
        return RecordedNumber(array) if isinstance(result, np.generic) else RecordedArray(array)

    def of_step(self, compute: Callable[[Any], Any]) -> RecordedArray:
        """Return ``compute(step)`` as an array that each later step computes again."""
        return self.array_of(lambda: compute(self.step))

    def first_of(self, first: int, count: int) -> int:
        """Return the first of ``count`` numbered items of the rows, which was ``first``, in this replay."""
        start, stop, _ = self._rows
        return first + (self.first_row - start) * count // max(stop - start, 1)

    def array_of(self, compute: Callable[..., Any], *arguments: Any) -> RecordedArray:
        """Return the array ``compute(*arguments)``, which each replay computes again."""
        call = partial(compute, *plain(arguments))
        array = np.array(call())
        self.add(lambda: np.copyto(array, call()))
        return self.made(array)

    def result_of(self, compute: Callable[..., Any], *arguments: Any) -> RecordedResult:
        """Return an object with each replay's ``compute(*arguments)``, as for a gradient of few rows."""
        result = RecordedResult(partial(compute, *plain(arguments)))
        self.add(result.renew)
        return result


class RecordedResult:
    """The result of a function in the last replay, as ``value`` of constant shape and dtype."""

    def __init__(self, compute: Callable[[], Any]):
        self._compute = compute
        self.renew()
        self.shape, self.dtype = self.value.shape, self.value.dtype

    def renew(self) -> None:
        """Compute the value for this replay."""
        self.value = self._compute()


class _Thread(threading.local):
    recorder: Recorder | None = None


_thread = _Thread()


def recorder() -> Recorder | None:
    """Return the calling thread's recorder, None without a recording."""
    return _thread.recorder


def set_recorder(recorder: Recorder | None) -> None:
    """Start or, with None, end recording the calling thread's work on recorded arrays."""
    _thread.recorder = recorder
    buffers.set_hook(None if recorder is None else recorder.made)


def host_array(value: Any) -> Any:
    """Convert a value to an array in host memory, like ``np.asarray``; recorded arrays are unchanged."""
    return value if isinstance(value, RecordedArray) else np.asarray(value)


def check_equal_lengths(lengths: Any, steps: int = -1) -> None:
    """Raise NotCapturable in a recording unless all sequences have ``steps`` steps; -1: always."""
    if isinstance(lengths, RecordedArray) and (steps < 0 or (lengths < steps).any()):
        raise NotCapturable("sequences have different lengths")


def plain(value: Any) -> Any:
    """Replace recorded arrays by numpy arrays in a value, or in nested tuples, lists and dicts."""
    if isinstance(value, RecordedArray):
        return value.array
    if isinstance(value, tuple):
        parts = map(plain, value)
        return type(value)(*parts) if hasattr(value, "_fields") else tuple(parts)
    if type(value) is list:
        return [plain(part) for part in value]
    if isinstance(value, dict):
        result = type(value)()
        result.update((key, plain(part)) for key, part in value.items())
        return result
    return value


class RecordedArray(NDArrayOperatorsMixin):
    """An array of a recorded pass: each numpy call with it is recorded for replays."""

    __slots__ = ("array",)
    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray):
        self.array = array

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        if method == "at":
            raise NotCapturable(f"it calls {ufunc.__name__}.at")
        function, inputs, options = getattr(ufunc, method), plain(inputs), plain(options)
        if out is not None and not isinstance(out[0], RecordedNumber):
            written = tuple(map(_written, out))
            function(*inputs, out=written, **options)
            _note(_ufunc_call(ufunc, function, method, inputs, written, options))
            return out[0] if len(out) == 1 else out
        result = function(*inputs, **options)
        recorded = tuple(map(_made, result if isinstance(result, tuple) else (result,)))
        _note(_ufunc_call(ufunc, function, method, inputs, plain(recorded), options))
        return recorded if isinstance(result, tuple) else recorded[0]

    def __array_function__(self, function: Any, types: Any, arguments: Any, options: Any) -> Any:
        return _call(function, arguments, options)

    def __getattr__(self, name: str) -> Any:
        if name in FACTS:
            return getattr(self.array, name)
        if name == "T":
            return self.transpose()
        method = getattr(np.ndarray, name, None)
        if name.startswith("_") or not callable(method):
            raise AttributeError(f"an array of a recorded pass has no {name!r}")
        return lambda *arguments, **options: _call(method, (self, *arguments), options)

    def __pow__(self, exponent: Any) -> Any:
        quick = self._quick_power(exponent)
        return super().__pow__(exponent) if quick is None else quick(self)

    def __ipow__(self, exponent: Any) -> Any:
        quick = self._quick_power(exponent)
        return super().__ipow__(exponent) if quick is None else quick(self, out=self)

    def _quick_power(self, exponent: Any) -> Any:
        """Return the function by which numpy's operator, not its ``power``, computes a power, which has other bits."""
        is_number = isinstance(self, RecordedNumber) or not isinstance(exponent, (int, float, np.number))
        return None if is_number or self.array.dtype.kind != "f" else POWERS.get(exponent)

    def __len__(self) -> int:
        return len(self.array)

    def __iter__(self) -> Iterator[Any]:
        return (self[k] for k in range(len(self)))

    def __getitem__(self, index: Any) -> Any:
        parts = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, RecordedNumber) and part.dtype.kind in "iu" for part in parts):  # numpy gives a view
            parts = tuple(int(part) if isinstance(part, RecordedNumber) else part for part in parts)
        if any(isinstance(part, (np.ndarray, list, RecordedArray)) for part in parts):
            return _call(operator.getitem, (self, parts), {})
        view = self.array[parts]
        if isinstance(view, np.ndarray) and not isinstance(self, RecordedNumber):
            return RecordedArray(view)
        return _call(operator.getitem, (self, parts), {})

    def __setitem__(self, index: Any, value: Any) -> None:
        call = partial(operator.setitem, self.array, plain(index), plain(value))
        call()
        _note(call)

    def __bool__(self) -> bool:
        return bool(self._decide(bool))

    def __index__(self) -> int:
        return int(self._decide(operator.index))

    __int__ = __index__

    def _decide(self, kind: Callable[[Any], Any]) -> Any:
        """Return a number that decides a branch in Python; record a check that it stays the same."""
        check = Check(self.array, kind)
        _note(check)
        return check.decided

    def __array__(self, *_: Any, **__: Any) -> np.ndarray:
        raise NotCapturable("it makes an array of numpy's of one that is computed in each pass")

    def __float__(self) -> float:
        raise NotCapturable("it reads a number")

    def __str__(self) -> str:
        raise NotCapturable("it writes a number as text")

    def __reduce_ex__(self, _: Any) -> Any:
        raise NotCapturable("it copies or pickles an array without numpy")


class RecordedNumber(RecordedArray):
    """A recorded array () for an immutable numpy number: += makes another number."""

    __slots__ = ()


def _call(function: Callable[..., Any], arguments: Any, options: Any) -> Any:
    """Call a numpy function, and record the call unless its result is a view."""
    given, named = plain(tuple(arguments)), plain(dict(options))
    name = getattr(function, "__name__", "")
    if name in IN_PLACE or "out" in options:
        _written(arguments[0] if name in IN_PLACE else options["out"])
    result = function(*given, **named)
    if name == "count_nonzero" and type(result) is int:  # of numpy before 2.3
        result = np.intp(result)
    if name == "astype" and result is given[0]:  # which copies nothing
        return arguments[0]
    written = [each for each in (*arguments, *options.values()) if result is not None and plain(each) is result]
    if result is None or written:  # of the second, an argument takes the result
        _written(arguments[0] if result is None else written[0])
        _note(partial(function, *given, **named))
        return None if result is None else written[0]
    if name in OF_SHAPES:
        return result
    is_one = not isinstance(result, (tuple, list))
    results = (result,) if is_one else result
    if not all(isinstance(each, (np.ndarray, np.generic)) for each in results):
        raise NotCapturable(f"it reads numbers, by numpy's {name}")
    sources = [*_arrays_in(given), *_arrays_in(named)]
    if all(_is_view(each, sources) for each in results):
        if name in VIEWS_BY_NUMBERS or not all(_is_view(each, results) for each in sources):
            raise NotCapturable(f"numbers say which part of an array numpy's {name} returns")
        if any(isinstance(each, RecordedNumber) for each in arguments):
            raise NotCapturable(f"it makes an array of a number, by numpy's {name}")
        recorded = list(map(RecordedArray, results))
    else:
        recorded = list(map(_made, results))
        made = plain(recorded)
        if is_one and name in WITH_OUT:
            _note(_call_with_out(function, name, given, named, made[0]))
        elif name in COPIES:
            _note(partial(np.copyto, made[0], given[0], "unsafe"))
        elif name != "empty_like":
            _note(partial(store_result, made, partial(function, *given, **named)))
    return recorded[0] if is_one else type(result)(recorded) if type(result) in (tuple, list) else tuple(recorded)


def _call_with_out(
    function: Callable[..., Any], name: str, given: tuple[Any, ...], named: dict[str, Any], out: np.ndarray
) -> Callable[[], Any]:
    """Return a numpy call that writes to ``out``; reductions use their ufunc."""
    if name in REDUCTIONS and len(given) == 1 and named.keys() <= {"axis", "dtype", "keepdims"}:
        axis, dtype, keepdims = named.get("axis"), named.get("dtype"), named.get("keepdims", False)
        return partial(REDUCTIONS[name].reduce, given[0], axis, dtype, out, keepdims)
    return partial(function, *given, **named, out=out)


def _written(array: Any) -> np.ndarray:
    """Return a written array's memory; raise NotCapturable if older than the pass."""
    if not isinstance(array, RecordedArray) or isinstance(array, RecordedNumber):
        raise NotCapturable("it writes to an array that was made before the pass")
    return array.array


def _ufunc_call(
    ufunc: Any, function: Any, method: str, inputs: tuple[Any, ...], out: tuple[Any, ...], options: Any
) -> Callable[[], Any]:
    """Return a call of a ufunc that writes to ``out``; positional arguments are fastest."""
    if method != "__call__" or options or ufunc in OUT_BY_NAME:
        return partial(function, *inputs, out=out, **options)
    return partial(ufunc, *(_prepared(ufunc, inputs, k, out) for k in range(len(inputs))), *out)


def _prepared(ufunc: Any, inputs: tuple[Any, ...], k: int, out: tuple[Any, ...]) -> Any:
    """Convert a ufunc's input once, which saves the time in each later call."""
    value, (result, *_) = inputs[k], out
    if type(value) is float:
        kinds = [type(each) if type(each) in (int, float) else np.result_type(each) for each in inputs]
        return np.array(value, ufunc.resolve_dtypes((*kinds, *(None for _ in out)))[k])
    is_longer = isinstance(value, np.ndarray) and value.ndim < result.ndim and value.size == result.size
    return value.reshape(result.shape) if is_longer and ufunc.signature is None else value


def store_result(arrays: Iterable[np.ndarray], call: Callable[[], Any]) -> None:
    """Copy what a call returns to arrays; raise Deviated if it has another shape."""
    result = call()
    for array, new in zip(arrays, result if isinstance(result, (tuple, list)) else (result,), strict=True):
        if array.shape != getattr(new, "shape", ()):
            raise Deviated
        array[...] = new


def _arrays_in(value: Any) -> Iterator[np.ndarray]:
    if isinstance(value, np.ndarray):
        yield value
    elif isinstance(value, (tuple, list, dict)):
        for part in value.values() if isinstance(value, dict) else value:
            yield from _arrays_in(part)


def _is_view(result: Any, sources: Iterable[np.ndarray]) -> bool:
    return isinstance(result, np.ndarray) and any(np.may_share_memory(result, source) for source in sources)


def _made(result: Any) -> RecordedArray:
    return (_thread.recorder or Recorder()).made(result)


def _note(call: Callable[[], Any]) -> None:
    if (recorder := _thread.recorder) is not None:
        recorder.add(call)
