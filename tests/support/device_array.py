"""A device of the imagination: arrays that host code cannot touch, and a backend that records what goes up and down.

What runs over it touches host memory by no accident: a numpy function on a :class:`DeviceArray`, an array of either
kind in an expression with the other, or an index from the other side raise TypeError, as CuPy's do. Strict where CuPy
is lenient: numpy's functions do not dispatch to the device, only its ufuncs do.
"""

from __future__ import annotations

import operator
import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np

from dsinga.errors import UserError
from dsinga.ops.async_copy import AsyncCopy
from dsinga.ops.interface import Ops
from dsinga.ops.numpy_ops import NumpyOps
from dsinga.ops.update import Update

METHODS = ("reshape", "transpose", "astype", "copy", "sum", "min", "max", "repeat", "all", "any", "argmax", "ravel")
FACTS = ("shape", "dtype", "ndim", "size", "nbytes", "strides")
OPERATORS = (
    "add", "sub", "mul", "truediv", "floordiv", "mod", "pow", "and_", "or_", "xor",
    "lt", "le", "gt", "ge", "eq", "ne",
)  # fmt: skip
INPLACE = ("iadd", "isub", "imul", "itruediv")


class DeviceArray:
    """An array of a device: a numpy array that only the methods and operators of CuPy's arrays reach."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, held: np.ndarray, syncs: list[str]):
        assert isinstance(held, np.ndarray), type(held)
        self._held, self._syncs = held, syncs

    def __getattr__(self, name: str) -> Any:
        if name in FACTS:
            return getattr(self._held, name)
        if name not in METHODS:
            raise AttributeError(f"an array of a device has no {name!r}")
        method = getattr(self._held, name)
        return lambda *arguments, **named: self._wrap(method(*map(_plain, arguments), **named))

    def _wrap(self, result: Any) -> DeviceArray:
        return DeviceArray(np.asarray(result), self._syncs)

    def __array__(self, *arguments: Any, **named: Any) -> np.ndarray:
        raise TypeError("an array of a device does not become a numpy array by itself: use ops.to_numpy")

    def __array_function__(self, function: Callable[..., Any], *rest: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called on an array of a device: use ops.xp")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        out = named.pop("out", (None,))[0]
        result = ufunc(*(unwrap(one) for one in inputs), out=None if out is None else unwrap(out), **named)
        return self._wrap(result) if out is None else out

    def __getitem__(self, index: Any) -> DeviceArray:
        return self._wrap(self._held[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._held[_index(index)] = unwrap(value)

    def __len__(self) -> int:
        return len(self._held)

    def __neg__(self) -> DeviceArray:
        return self._wrap(-self._held)

    def __invert__(self) -> DeviceArray:
        return self._wrap(~self._held)

    def _to_host(self, kind: type) -> Any:
        self._syncs.append(kind.__name__)
        return kind(self._held)

    def __float__(self) -> float:
        return self._to_host(float)

    def __int__(self) -> int:
        return self._to_host(int)

    def __bool__(self) -> bool:
        return self._to_host(bool)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a loop over an array of a device copies number by number")


def _binary(name: str, swapped: bool = False) -> Callable[[DeviceArray, Any], DeviceArray]:
    function = getattr(operator, name)

    def apply(self: DeviceArray, other: Any) -> DeviceArray:
        mine, theirs = self._held, unwrap(other)
        return self._wrap(function(theirs, mine) if swapped else function(mine, theirs))

    return apply


def _inplace(name: str) -> Callable[[DeviceArray, Any], DeviceArray]:
    function = getattr(operator, name)

    def apply(self: DeviceArray, other: Any) -> DeviceArray:
        function(self._held, unwrap(other))
        return self

    return apply


for _name in OPERATORS:
    setattr(DeviceArray, f"__{_name.strip('_')}__", _binary(_name))
    if _name not in ("lt", "le", "gt", "ge", "eq", "ne"):
        setattr(DeviceArray, f"__r{_name.strip('_')}__", _binary(_name, swapped=True))
for _name in INPLACE:
    setattr(DeviceArray, f"__{_name}__", _inplace(_name))


def _plain(argument: Any) -> Any:
    """Refuse what a method of a device's arrays does not take: arrays."""
    if isinstance(argument, (np.ndarray, DeviceArray)):
        raise TypeError("an array was given to a method of an array of a device")
    return argument


def unwrap(value: Any) -> Any:
    """Return what a device would compute with; refuse numpy arrays."""
    if isinstance(value, DeviceArray):
        return value._held
    if isinstance(value, np.ndarray):
        raise TypeError("a numpy array was mixed with an array of a device: use ops.asarray or ops.upload")
    if type(value) in (tuple, list):  # a workspace of its own kind is nobody's business
        return type(value)(map(unwrap, value))
    return value


def _index(index: Any) -> Any:
    return tuple(map(unwrap, index)) if isinstance(index, tuple) else unwrap(index)


class DeviceModule:
    """What cupy is to numpy: its functions, on arrays of a device alone."""

    def __init__(self, syncs: list[str]):
        self._syncs = syncs

    def __getattr__(self, name: str) -> Any:
        function = getattr(np, name)
        if isinstance(function, type) or not callable(function):
            return function

        def call(*arguments: Any, **named: Any) -> Any:
            result = function(*map(unwrap, arguments), **{key: unwrap(value) for key, value in named.items()})
            return _wrapped(result, self._syncs)

        return call


def _wrapped(result: Any, syncs: list[str]) -> Any:
    if isinstance(result, (np.ndarray, np.generic)):
        return DeviceArray(np.asarray(result), syncs)
    if type(result) in (tuple, list):
        return type(result)(_wrapped(one, syncs) for one in result)
    return result


class PendingCopy(AsyncCopy):
    """A copy that is under way until somebody asks for it."""

    def __init__(self, arrive: Callable[[], Any]):
        self._arrive, self._result = arrive, None

    def result(self) -> Any:
        if self._result is None:
            self._result = self._arrive()
        return self._result


@dataclass
class Record:
    """What has been asked of a stub: kernels by name, copies as (thread, dtype, shape), numbers that were waited for.

    ``placed`` and ``fetched`` are the copies of ``asarray`` and ``to_numpy``, for which the caller waits.
    """

    kernels: list[str] = field(default_factory=list)
    uploads: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    downloads: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    placed: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    fetched: list[tuple[str, str, tuple[int, ...]]] = field(default_factory=list)
    reads: list[int] = field(default_factory=list)
    syncs: list[str] = field(default_factory=list)
    workers: list[tuple[int | None, str]] = field(default_factory=list)
    entered: list[str] = field(default_factory=list)

    def clear(self) -> None:
        """Forget all of it."""
        for noted in vars(self).values():
            noted.clear()


def _entry(array: Any) -> tuple[str, str, tuple[int, ...]]:
    return threading.current_thread().name, str(array.dtype), tuple(array.shape)


TAKES_HOST_ARRAYS = {
    "images", "bernoulli", "dropout_mask", "recurrent", "crf_decode", "batch_norm_sums", "batch_norm_grad",
}  # fmt: skip
"""Kernels some of whose arguments may be in host memory: records, random numbers, lengths, where to cut."""


class StubOps(NumpyOps):
    """The kernels of numpy for arrays of a device that is not there, and a record of what was asked of them.

    ``devices`` and ``memory`` (bytes left on each) are what it pretends to have.
    """

    name = "stub"

    def __init__(self, devices: int = 2, memory: int = 2**40):
        self.record = Record()
        self.devices, self.memory, self.missing = devices, memory, ""
        self._inner = NumpyOps()
        self.xp = DeviceModule(self.record.syncs)

    def __getattribute__(self, name: str) -> Any:
        if name in KERNELS:
            return _Kernel(name, object.__getattribute__(self, "_inner"), object.__getattribute__(self, "record"))
        return object.__getattribute__(self, name)

    def _up(self, array: Any) -> DeviceArray:
        return DeviceArray(np.array(array), self.record.syncs)

    def asarray(self, array: Any) -> Any:
        if isinstance(array, DeviceArray):
            return array
        self.record.placed.append(_entry(np.asarray(array)))
        return self._up(array)

    def to_numpy(self, array: Any) -> Any:
        if not isinstance(array, DeviceArray):
            return array
        self.record.fetched.append(_entry(array))
        return array._held.copy(order="K")

    def upload(self, array: Any) -> AsyncCopy:
        assert isinstance(array, np.ndarray), type(array)
        self.record.uploads.append(_entry(array))
        there = self._up(array)
        return PendingCopy(lambda: there)

    def download(self, array: Any) -> AsyncCopy:
        assert isinstance(array, DeviceArray), type(array)
        self.record.downloads.append(_entry(array))
        return PendingCopy(lambda: array._held.copy(order="K"))

    def read(self, numbers: Sequence[Any]) -> list[float]:
        self.record.reads.append(len(numbers))
        return [float(unwrap(number)) for number in numbers]

    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        self.record.kernels.append("update")
        plain = [Update(one.formula, *map(unwrap, one[1:])) for one in updates]
        self._inner.update(plain, clip_norm)

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if (device or 0) >= self.devices:
            raise UserError(f"there is no GPU {device}: this machine has {self.devices}")
        self.record.workers.append((device, precision))
        return self

    def device_count(self) -> int:
        return self.devices

    def describe(self) -> str:
        return "a device of the imagination"

    def lacks(self) -> str:
        return self.missing

    def enter(self) -> None:
        self.record.entered.append(threading.current_thread().name)

    def free_memory(self) -> int | None:
        return self.memory


class _Kernel:
    """A kernel of numpy that takes and gives arrays of a device."""

    def __init__(self, name: str, inner: NumpyOps, record: Record):
        self._name, self._inner, self._record = name, inner, record

    def __call__(self, *arguments: Any, **named: Any) -> Any:
        self._record.kernels.append(self._name)
        take = self._host_too if self._name in TAKES_HOST_ARRAYS else unwrap
        result = getattr(self._inner, self._name)(*map(take, arguments), **{k: take(v) for k, v in named.items()})
        wrapped = _wrapped(result, self._record.syncs)
        if self._name in ("softmax_loss", "hits"):  # whose numbers stay on the device
            return self._numbers(wrapped)
        return wrapped

    def _host_too(self, value: Any) -> Any:
        return value if isinstance(value, np.ndarray) else unwrap(value)

    def _numbers(self, value: Any) -> Any:
        if isinstance(value, tuple):
            return tuple(map(self._numbers, value))
        return DeviceArray(np.asarray(value), self._record.syncs) if isinstance(value, (int, float)) else value


HOST = {
    "asarray", "to_numpy", "read", "set_threads", "for_worker", "enter", "upload", "download", "synchronize",
    "free_memory", "device_count", "describe", "lacks", "update",
}  # fmt: skip
KERNELS = frozenset(Ops.__abstractmethods__ - HOST)
