"""A stub of a device: arrays that host code cannot access, and a backend that records kernels and copies.

Code that runs on it cannot mix memory of host and device: a numpy function on a :class:`DeviceArray`, an expression
with arrays of both kinds, or an index of the other kind raise TypeError, as CuPy's do. It is stricter than CuPy: of
numpy's functions only the ufuncs dispatch to the device.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import pytest

import dsinga.ops
from dsinga.base.errors import UserError
from dsinga.ops.interface import NumpyOps, Ops
from dsinga.ops.types import AsyncCopy
from dsinga.ops.update import Update

METHODS = "reshape transpose astype copy sum min max repeat all any argmax ravel view".split()
ATTRIBUTES = "shape dtype ndim size nbytes strides flags".split()


class DeviceArray(np.lib.mixins.NDArrayOperatorsMixin):
    """An array of a device: a numpy array with the methods and operators of CuPy's arrays, and no others."""

    __hash__ = None  # type: ignore[assignment]

    def __init__(self, array: np.ndarray, syncs: list[str]):
        assert isinstance(array, np.ndarray), type(array)
        self._array, self._syncs = array, syncs

    def __getattr__(self, name: str) -> Any:
        if name in ATTRIBUTES:
            return getattr(self._array, name)
        if name not in METHODS:
            raise AttributeError(f"arrays of the device have no attribute {name!r}")
        method = getattr(self._array, name)
        return lambda *arguments, **named: self._wrap(method(*map(_plain, arguments), **named))

    def _wrap(self, result: Any) -> DeviceArray:
        return DeviceArray(np.asarray(result), self._syncs)

    def __array__(self, *arguments: Any, **named: Any) -> np.ndarray:
        raise TypeError("an array of the device is not converted to numpy implicitly: use ops.to_numpy")

    def __array_function__(self, function: Callable[..., Any], *rest: Any) -> Any:
        raise TypeError(f"numpy.{function.__name__} was called on an array of the device: use ops.xp")

    def __array_ufunc__(self, ufunc: np.ufunc, method: str, *inputs: Any, **named: Any) -> Any:
        if method != "__call__":
            return NotImplemented
        out = named.pop("out", (None,))[0]
        result = ufunc(*map(unwrap, inputs), out=None if out is None else unwrap(out), **named)
        return self._wrap(result) if out is None else out

    def __getitem__(self, index: Any) -> DeviceArray:
        return self._wrap(self._array[_index(index)])

    def __setitem__(self, index: Any, value: Any) -> None:
        self._array[_index(index)] = unwrap(value)

    def __len__(self) -> int:
        return len(self._array)

    def _to_host(self, kind: type) -> Any:
        self._syncs.append(kind.__name__)
        return kind(self._array)

    def __float__(self) -> float:
        return self._to_host(float)

    def __int__(self) -> int:
        return self._to_host(int)

    def __bool__(self) -> bool:
        return self._to_host(bool)

    def __iter__(self) -> Iterator[Any]:
        raise TypeError("a loop over an array of the device copies it number by number")


def _plain(argument: Any) -> Any:
    """Return an argument of a method of a device's array; raise TypeError for an array."""
    if isinstance(argument, (np.ndarray, DeviceArray)):
        raise TypeError("an array was passed to a method of an array of the device")
    return argument


def unwrap(value: Any) -> Any:
    """Return the numpy array of an array of the device, other values unchanged; raise TypeError for numpy arrays."""
    if isinstance(value, DeviceArray):
        return value._array
    if isinstance(value, np.ndarray):
        raise TypeError("a numpy array was mixed with an array of the device: use ops.asarray or ops.upload")
    if type(value) in (tuple, list):  # not a workspace, which is a named tuple
        return type(value)(map(unwrap, value))
    return value


def _index(index: Any) -> Any:
    return tuple(map(unwrap, index)) if isinstance(index, tuple) else unwrap(index)


class DeviceModule:
    """A module like cupy: numpy's functions on arrays of the device alone."""

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
        return type(result)(_wrapped(array, syncs) for array in result)
    return result


class PendingCopy(AsyncCopy):
    """A copy that is made when its result is first requested."""

    def __init__(self, copy: Callable[[], Any]):
        self._copy, self._result = copy, None

    def result(self) -> Any:
        if self._result is None:
            self._result = self._copy()
        return self._result


@dataclass
class Record:
    """The calls of a stub: kernels by name, copies as (thread, dtype, shape), numbers for which the caller waited.

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
        """Empty all lists."""
        for calls in vars(self).values():
            calls.clear()


def _entry(array: Any) -> tuple[str, str, tuple[int, ...]]:
    return threading.current_thread().name, str(array.dtype), tuple(array.shape)


TAKES_HOST_ARRAYS = {
    "images", "bernoulli", "dropout_mask", "recurrent", "attention", "attention_grad", "attention_weights",
    "crf_decode", "batch_norm_sums", "rectified_batch_norm_sums", "batch_norm_grad",
}  # fmt: skip
"""Kernels some of whose arguments may be in host memory: records, random numbers, lengths."""


class StubOps(NumpyOps):
    """Numpy's kernels on arrays of a stub of a device, with a record of all calls.

    ``devices`` is the number of devices that it claims to have, ``memory`` the free bytes of each.
    """

    name = "stub"

    def __init__(self, devices: int = 2, memory: int = 2**40):
        self.record = Record()
        self.devices, self.memory, self.missing = devices, memory, ""
        self._inner = NumpyOps()
        self.xp = DeviceModule(self.record.syncs)

    def __getattribute__(self, name: str) -> Any:
        return self.kernel(name) if name in KERNELS else object.__getattribute__(self, name)

    def kernel(self, name: str) -> Any:
        """Return a kernel of numpy with arguments and results on the device."""
        kernel, convert = self._inner.kernel(name), _host_too if name in TAKES_HOST_ARRAYS else unwrap

        def call(*arguments: Any, **named: Any) -> Any:
            self.record.kernels.append(name)
            result = kernel(*map(convert, arguments), **{key: convert(value) for key, value in named.items()})
            wrapped = _wrapped(result, self.record.syncs)
            # The numbers of these stay on the device.
            return _numbers(wrapped, self.record.syncs) if name in ("softmax_loss", "hits") else wrapped

        return call

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
        return array._array.copy(order="K")

    def upload(self, array: Any) -> AsyncCopy:
        assert isinstance(array, np.ndarray), type(array)
        self.record.uploads.append(_entry(array))
        copy = self._up(array)
        return PendingCopy(lambda: copy)

    def download(self, array: Any) -> AsyncCopy:
        assert isinstance(array, DeviceArray), type(array)
        self.record.downloads.append(_entry(array))
        return PendingCopy(lambda: array._array.copy(order="K"))

    def read(self, numbers: Sequence[Any]) -> list[float]:
        self.record.reads.append(len(numbers))
        return [float(unwrap(number)) for number in numbers]

    def update(self, updates: Sequence[Update], clip_norm: float = 0.0) -> None:
        self.record.kernels.append("update")
        plain = [Update(update.formula, *map(unwrap, update[1:])) for update in updates]
        self._inner.update(plain, clip_norm)

    def for_worker(self, device: int | None = None, precision: str = "float32") -> Ops:
        if (device or 0) >= self.devices:
            raise UserError(f"there is no GPU {device}: this machine has {self.devices}")
        self.record.workers.append((device, precision))
        return self

    def device_count(self) -> int:
        return self.devices

    def describe(self) -> str:
        return "a stub of a device"

    def lacks(self) -> str:
        return self.missing

    def choices(self) -> str:
        return ""

    def enter(self) -> None:
        self.record.entered.append(threading.current_thread().name)

    def free_memory(self) -> int | None:
        return self.memory


def load_backends(patch: pytest.MonkeyPatch, **backends: Ops | None) -> None:
    """Let these kernel backends count as loaded, or with None as not loaded yet, until the test is over."""
    patch.delenv("DSINGA_OPS", raising=False)
    loaded = dsinga.ops._loaded
    for name, backend in backends.items():
        if backend is None:
            patch.delitem(loaded, name, raising=False)
        else:
            patch.setitem(loaded, name, backend)


def _host_too(value: Any) -> Any:
    return value if isinstance(value, np.ndarray) else unwrap(value)


def _numbers(value: Any, syncs: list[str]) -> Any:
    """Return arrays of the device in place of numbers."""
    if isinstance(value, tuple):
        return tuple(_numbers(number, syncs) for number in value)
    return DeviceArray(np.asarray(value), syncs) if isinstance(value, (int, float)) else value


HOST = {
    "asarray", "to_numpy", "read", "set_threads", "for_worker", "enter", "upload", "download", "synchronize",
    "free_memory", "device_count", "describe", "update", "kernel",
}  # fmt: skip
GENERIC = {
    "as_factor", "attention", "attention_grad", "batch_norm_training", "batch_norm_training_grad", "cast_like",
    "check_recordable", "defer_read", "capture", "hand_over", "lacks_bf16", "rectified_affine",
    "rectified_batch_norm_grad", "rectified_batch_norm_sums", "rectified_convolution", "rectified_inner_product",
    "rounded_inner_product", "row_affine", "row_affine_grad", "row_moments", "row_sums", "serialised", "step_number",
    "to_float32", "to_numpy_bf16", "with_equal_rows", "with_fast_rounding",
}  # fmt: skip
"""Methods of the interface that call others, or the array module, so that they work on arrays of any backend."""
KERNELS = frozenset(name for name in dir(Ops) if not name.startswith("_") and callable(getattr(Ops, name)))
KERNELS -= HOST | GENERIC
