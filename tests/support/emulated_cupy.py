"""An emulated device on the CPU: the parts of CuPy and cuBLAS that the cupy backend uses, by numpy and C++.

The backend runs unchanged on arrays of a subclass of numpy's. The kernels of ``dsinga/ops/cupy/*.cu`` are compiled as
C++, each thread is a fiber (emulation/cuda.h), and the type of each argument is checked. Streams execute immediately
and record the order of their operations in :data:`log`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

HEADER = Path(__file__).parent / "emulation" / "cuda.h"
CUBLAS = Path(__file__).parent / "emulation" / "cublas.cpp"
WAITS = re.compile(r"__syncthreads|block_sum|block_max|sum_columns")

log: list[tuple[Any, ...]] = []
"""The operations of streams: (stream, "kernel" | "copy" | "record" | "wait", name or event)."""


class DeviceArray(np.ndarray):
    """An array of the device: ``data.ptr`` is its address, ``get()`` returns a copy on the host.

    Like CuPy's arrays, it does not compute with arrays of the host, and its results are never Python numbers.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        arrays = (*inputs, *(out or ()))
        if any(isinstance(array, np.ndarray) and array.ndim and not isinstance(array, DeviceArray) for array in arrays):
            raise TypeError(f"{ufunc} was called with arrays of the host and of the device")
        plain = [value.view(np.ndarray) if isinstance(value, DeviceArray) else value for value in inputs]
        note(f"cupy.{ufunc.__name__}")
        if out:
            options["out"] = tuple(array.view(np.ndarray) for array in out)
        result = getattr(ufunc, method)(*plain, **options)
        return out[0] if out else _device(np.asarray(result))

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, np.ndarray) and not isinstance(part, DeviceArray) for part in indices):
            raise TypeError("an array of the host cannot be the index of an array of the device")
        result = _device(np.asarray(super().__getitem__(index)))
        if any(isinstance(part, np.ndarray) for part in indices):
            note("cupy.take")
        return result

    def __setitem__(self, index: Any, value: Any) -> None:
        note("cupy.copyto")
        super().__setitem__(index, value)

    def astype(self, *arguments: Any, **options: Any) -> Any:
        result = super().astype(*arguments, **options)
        if result is not self:
            note("cupy.astype")
        return result

    def copy(self, order: Any = "C") -> Any:
        note("cupy.copy")
        return super().copy(order)

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream: Any = None, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        host = np.empty(self.shape, self.dtype) if out is None else out
        np.copyto(host, self.view(np.ndarray))
        log.append((stream or current(), "copy", "down"))
        return host

    def set(self, array: np.ndarray, stream: Any = None) -> None:
        np.copyto(self.view(np.ndarray), array)
        log.append((stream or current(), "copy", "up"))


class Event:
    """An event, done as soon as it is recorded."""

    done = True

    def __init__(self, disable_timing: bool = False):
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        (stream or current()).record(self)

    def synchronize(self) -> None:
        log.append((None, "wait", self))


class Stream:
    """A stream that records its operations in the log."""

    def __init__(self, null: bool = False, non_blocking: bool = False):
        self.null, self.non_blocking, self.ptr = null, non_blocking, 0 if null else id(self)
        self._before: list[Stream] = []

    def __enter__(self) -> Stream:
        self._before.append(current())
        return self.use()

    def __exit__(self, *_: Any) -> None:
        self._before.pop().use()

    def use(self) -> Stream:
        _thread.stream = self
        return self

    def record(self, event: Event) -> Event:
        event.at = time.perf_counter()
        log.append((self, "record", event))
        return event

    def wait_event(self, event: Event) -> None:
        log.append((self, "wait", event))

    def synchronize(self) -> None:
        log.append((self, "wait", "host"))


class Device:
    """Device 0."""

    def __init__(self, number: int):
        self.number = number

    def __enter__(self) -> Device:
        return self

    def __exit__(self, *_: Any) -> None:
        pass

    def use(self) -> None:
        pass


Stream.null = Stream(null=True)  # type: ignore[attr-defined]
_thread = threading.local()


def current() -> Stream:
    """Return the stream of the calling thread."""
    return getattr(_thread, "stream", Stream.null)  # type: ignore[attr-defined]


def note(kernel: str) -> None:
    """Record the launch of one of CuPy's own kernels."""
    log.append((current(), "kernel", kernel))


@functools.cache
def compiled(code: str, options: tuple[str, ...]) -> ctypes.PyDLL:
    """Return a source compiled as C++, from a cache of the user's: a PyDLL, which runs one launch at a time."""
    code = code.replace("extern __shared__ double memory[]", "static double memory[6144]")
    names = re.findall(r"^KERNEL (\w+)\(", code, re.M) + re.findall(r"^IMAGES\((\w+),", code, re.M)
    text = "\n".join([f'#include "{HEADER.name}"', code, *(f"EMULATE({name})" for name in names)])
    macros = tuple(option for option in options if option.startswith("-D"))
    return ctypes.PyDLL(str(built(text, ("-O1", f"-I{HEADER.parent}", *macros), HEADER.read_text())))


def built(text: str, options: tuple[str, ...], headers: str = "") -> Path:
    """Return the shared library of a C++ source, from a cache of the user's."""
    digest = hashlib.sha256("".join((text, headers, *options)).encode()).hexdigest()
    cache = Path(os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache") / "dsinga-tests"
    target = cache / f"{digest}.so"
    if not target.exists():
        cache.mkdir(parents=True, exist_ok=True)
        command = ["g++", "-std=c++17", "-w", "-shared", "-fPIC", *options]
        with tempfile.TemporaryDirectory(dir=cache) as folder:  # other processes may compile the same source
            library = Path(folder) / target.name
            subprocess.run(
                [*command, "-x", "c++", "-", "-o", str(library)], input=text, text=True, check=True, timeout=110
            )
            library.replace(target)
    return target


class Kernel:
    """One kernel of a source."""

    def __init__(self, code: str, options: tuple[str, ...], name: str):
        body = re.search(rf"^KERNEL {name}\(.*?^}}", code, re.M | re.S)  # kernels defined by a macro do not wait
        self._name, self._waits = name, bool(body and WAITS.search(body[0]))
        self._launch = getattr(compiled(code, options), f"launch_{name}")

    def __call__(self, grid: tuple[int, ...], block: tuple[int, ...], arguments: tuple, shared_mem: int = 0) -> None:
        log.append((current(), "kernel", self._name))
        assert all(0 < side < 2**31 for side in grid)
        assert shared_mem <= 48 * 1024
        assert block[0] % 32 == 0
        cells, kinds = [], []
        for argument in arguments:
            if isinstance(argument, DeviceArray):
                cells.append(ctypes.c_void_p(argument.data.ptr))
                kinds.append((b"p", argument.itemsize))
            elif type(argument) is int:
                cells.append(ctypes.c_longlong(argument))
                kinds.append((b"i", 8))
            else:
                assert type(argument) is float, f"{self._name} has the argument {argument!r}"
                cells.append(ctypes.c_double(argument))
                kinds.append((b"d", 8))
        addresses = (ctypes.c_void_p * len(cells))(*(ctypes.addressof(cell) for cell in cells))
        types = (ArgumentKind * len(kinds))(*kinds)
        fault = self._launch(addresses, types, len(cells), grid[0], (*grid, 1)[1], block[0], self._waits)
        faults = "its arguments have other types", "its threads wait for each other"
        assert not fault, f"{self._name}: {faults[fault - 1]}"


class ArgumentKind(ctypes.Structure):
    _fields_ = (("kind", ctypes.c_char), ("size", ctypes.c_int))


class RawModule:
    """A source that is compiled when one of its kernels is requested."""

    def __init__(self, code: str, options: tuple[str, ...] = ()):
        self._code, self._options = code, options

    def get_function(self, name: str) -> Kernel:
        return Kernel(self._code, self._options, name)


class RuntimeFailure(RuntimeError):
    pass


class Cublas:
    """emulation/cublas.cpp in place of cuBLAS; products are recorded as "gemm" and the way of computing."""

    def __init__(self, declare: Any):
        self._library = declare(ctypes.CDLL(str(built(CUBLAS.read_text(), ("-O2",)))))

    def __getattr__(self, name: str) -> Any:
        function = getattr(self._library, name)
        return functools.partial(gemm, function) if "Gemm" in name else function


def gemm(function: Any, *arguments: int) -> int:
    """Call a function that multiplies matrices; return its status."""
    log.append((current(), "kernel", f"gemm {arguments[-2]}"))
    return int(function(*arguments))


def _device(array: Any) -> Any:
    return array.view(DeviceArray) if isinstance(array, np.ndarray) else array


def make_cupy() -> ModuleType:
    """Return a module in place of CuPy."""
    cupy = ModuleType("cupy")
    cublas = SimpleNamespace(
        CUBLAS_COMPUTE_32F=68, CUBLAS_COMPUTE_64F=70, CUBLAS_COMPUTE_32F_FAST_TF32=77, CUBLAS_GEMM_DEFAULT=-1
    )
    runtime = SimpleNamespace(
        getDeviceCount=lambda: 1,
        CUDARuntimeError=RuntimeFailure,
        memGetInfo=lambda: (10**9, 2 * 10**9),
        runtimeGetVersion=lambda: 13000,
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: {"name": b"a device on the CPU"},
        **{"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16BF": 14},
    )
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime, cublas=cublas, Stream=Stream, Event=Event, Device=Device, get_current_stream=current,
        alloc_pinned_memory=bytearray,
        get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
    )  # fmt: skip
    cupy.__version__ = "14.0.1"
    cupy.ndarray, cupy.RawModule = DeviceArray, RawModule  # type: ignore[attr-defined]
    cupy.get_default_memory_pool = lambda: SimpleNamespace(free_bytes=lambda: 5, total_bytes=lambda: 7)  # type: ignore[attr-defined]
    for name in (
        "empty zeros asarray ascontiguousarray concatenate arange argsort flatnonzero stack split moveaxis broadcast_to"
    ).split():
        setattr(cupy, name, functools.partial(_call, getattr(np, name)))
    cupy.__getattr__ = lambda name: functools.partial(_call, getattr(np, name))  # type: ignore[method-assign]
    cupy.argsort = lambda x: _device(np.argsort(x, kind="stable"))  # type: ignore[attr-defined]
    cupy.empty_like = lambda x, dtype=None: _device(np.empty_like(x, dtype=dtype))  # type: ignore[attr-defined]
    return cupy


VIEWS = {"empty", "empty_like", "broadcast_to", "moveaxis", "split", "reshape", "transpose"}
"""Functions that launch no kernel."""


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    if function is np.ascontiguousarray and not isinstance(arguments[0], DeviceArray):
        raise TypeError("ascontiguousarray takes an array of the device")
    result = function(*arguments, **options)
    if function is np.asarray and arguments and not isinstance(arguments[0], DeviceArray):
        result = np.array(result, order="C")  # a copy to the device is C-contiguous
        log.append((current(), "copy", "up"))
    elif isinstance(function, np.ufunc) or function.__name__ in VIEWS:
        pass  # ufuncs are recorded by DeviceArray
    elif not (function in (np.asarray, np.ascontiguousarray) and np.may_share_memory(result, arguments[0])):
        note(f"cupy.{function.__name__}")
    return [_device(array) for array in result] if isinstance(result, list) else _device(result)


@functools.cache
def load(cudnn: Any = None) -> Any:
    """Return the cupy backend on the emulated device; skip the test if there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed; it compiles the kernels of the cupy backend for the CPU")
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.split(".")[0] in ("cupy", "cudnn") or name.startswith("dsinga.ops.cupy")
    }
    sys.modules["cupy"], sys.modules["cudnn"] = make_cupy(), cudnn  # None: not installed
    try:
        from dsinga.ops.cupy import cublas, library
        from dsinga.ops.cupy.cupy_ops import CupyOps

        library.cudnn()  # its result is cached
        library.cublas = Cublas(cublas.declare)
        cublas.find_library = lambda: library.cublas
        ops = CupyOps()
        ops.library = library  # for tests of its messages
        return ops
    finally:
        for name in list(sys.modules):
            if name in ("cupy", "cudnn") or name.startswith("dsinga.ops.cupy"):
                del sys.modules[name]
        sys.modules.update(hidden)
