"""An emulated device on the CPU: the parts of CuPy and cuBLAS that the cupy backend uses, by numpy and C++.

The backend runs unchanged on arrays of a subclass of numpy's. The kernels of ``dsinga/addons/gpu/cupy/*.cu`` are
compiled as C++, each thread is a fiber (emulation/cuda.h), and the type of each argument is checked. Streams execute
immediately and record the order of their operations in :data:`log`.
"""

from __future__ import annotations

import ctypes
import functools
import hashlib
import os
import platform
import re
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest

from tests.support import emulated_graphs as graphs

HEADER = Path(__file__).parent / "emulation" / "cuda.h"
CUBLAS = Path(__file__).parent / "emulation" / "cublas.cpp"
CUBLASLT = Path(__file__).parent / "emulation" / "cublaslt.cpp"
WAITS = re.compile(r"__syncthreads|block_sum|block_max|sum_columns")

log: list[tuple[Any, ...]] = []
"""The operations of streams: (stream, "kernel" | "copy" | "record" | "wait", name or event)."""
traffic: Counter[str] = Counter()
"""The bytes of all arrays that launches were given or returned, by the name of the kernel."""


class DeviceArray(np.ndarray):
    """An array of the device: ``data.ptr`` is its address, ``get()`` returns a copy on the host.

    Like CuPy's arrays, it does not compute with arrays of the host, and its results are never Python numbers.
    """

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, out: Any = None, **options: Any) -> Any:
        arrays = (*inputs, *(out or ()))
        if any(isinstance(array, np.ndarray) and array.ndim and not isinstance(array, DeviceArray) for array in arrays):
            raise TypeError(f"{ufunc} was called with arrays of the host and of the device")
        plain = [_plain(value) for value in inputs]
        note(f"cupy.{ufunc.__name__}", *arrays, *(() if out else arrays[:1]))
        if out:
            options["out"] = tuple(_plain(array) for array in out)
            graphs.launch(lambda: getattr(ufunc, method)(*plain, **options))
            return out[0]
        return _device(graphs.produce(lambda: getattr(ufunc, method)(*plain, **options)))

    def __getitem__(self, index: Any) -> Any:
        indices = index if isinstance(index, tuple) else (index,)
        if any(isinstance(part, np.ndarray) and not isinstance(part, DeviceArray) for part in indices):
            raise TypeError("an array of the host cannot be the index of an array of the device")
        if not any(isinstance(part, np.ndarray) for part in indices):
            dots = () if Ellipsis in indices else (...,)  # for a view of one number, where numpy has a copy
            return self.view(np.ndarray)[(*indices, *dots)].view(DeviceArray)
        if any(isinstance(part, np.ndarray) and part.dtype == bool for part in indices):
            graphs.refuse("an index of booleans, for whose number the host waits,")
        note("cupy.take", 2 * self.nbytes)
        x, places = self.view(np.ndarray), tuple(_plain(part) for part in indices)
        zeros = tuple(np.zeros_like(part) if isinstance(part, np.ndarray) else part for part in places)
        return _device(graphs.produce(lambda: x[places], lambda: x[zeros]))

    def __setitem__(self, index: Any, value: Any) -> None:
        note("cupy.copyto", 2 * self[index].nbytes if not isinstance(index, np.ndarray) else self)
        if isinstance(value, np.ndarray) and not isinstance(value, DeviceArray):
            graphs.refuse("a copy from the host")
        x, places, plain = self.view(np.ndarray), _plain(index), _plain(value)
        graphs.launch(lambda: x.__setitem__(places, plain))

    def astype(self, dtype: Any, copy: bool = True, **options: Any) -> Any:
        if self.dtype == dtype and not copy:
            return self
        note("cupy.astype", self, self.size * np.dtype(dtype).itemsize)
        x = self.view(np.ndarray)
        return _device(graphs.produce(lambda: x.astype(dtype, **options)))

    def copy(self, order: Any = "C") -> Any:
        note("cupy.copy", self, self)
        x = self.view(np.ndarray)
        return _device(graphs.produce(lambda: x.copy(order)))

    def reshape(self, *shape: Any, **options: Any) -> Any:
        x = self.view(np.ndarray)
        view = x.reshape(*shape, **options)
        return view.view(DeviceArray) if np.may_share_memory(view, x) else self._method("reshape", *shape, **options)

    def _method(self, name: str, *arguments: Any, **options: Any) -> Any:
        """Return a new array by one of numpy's methods that call no ufunc."""
        note(f"cupy.{name}", self, self)
        x, plain = self.view(np.ndarray), tuple(map(_plain, arguments))
        return _device(graphs.produce(lambda: getattr(x, name)(*plain, **options)))

    repeat = functools.partialmethod(_method, "repeat")
    argmax = functools.partialmethod(_method, "argmax")
    argmin = functools.partialmethod(_method, "argmin")
    cumsum = functools.partialmethod(_method, "cumsum")
    take = functools.partialmethod(_method, "take")
    flatten = functools.partialmethod(_method, "flatten")

    def __bool__(self) -> bool:
        graphs.refuse("a decision of the host")
        return bool(self.view(np.ndarray))

    def __float__(self) -> float:
        graphs.refuse("a number for the host")
        return float(self.view(np.ndarray))

    @property
    def data(self) -> Any:
        return SimpleNamespace(ptr=self.ctypes.data)

    def get(self, stream: Any = None, out: np.ndarray | None = None, blocking: bool = True) -> np.ndarray:
        graphs.refuse("a copy to the host")
        host = np.empty(self.shape, self.dtype) if out is None else out
        np.copyto(host, self.view(np.ndarray))
        log.append((stream or current(), "copy", "down"))
        return host

    def set(self, array: np.ndarray, stream: Any = None) -> None:
        graphs.refuse("a copy to the device")
        np.copyto(self.view(np.ndarray), array)
        log.append((stream or current(), "copy", "up"))


def _plain(value: Any) -> Any:
    """Return an array of the device as numpy's, also in a list or tuple; all else as it is."""
    if type(value) in (list, tuple):
        return type(value)(map(_plain, value))
    return value.view(np.ndarray) if isinstance(value, DeviceArray) else value


class Event:
    """An event, done as soon as it is recorded."""

    done = True

    def __init__(self, disable_timing: bool = False):
        self.at = 0.0

    def record(self, stream: Any = None) -> None:
        (stream or current()).record(self)

    def synchronize(self) -> None:
        graphs.refuse("waiting for an event")
        log.append((None, "wait", self))


class Stream:
    """A stream that records its operations in the log."""

    def __init__(self, null: bool = False, non_blocking: bool = False):
        self.null, self.non_blocking, self.ptr = null, non_blocking, 0 if null else id(self)
        self._before: list[Stream] = []
        self.captured_by: int | None = None  # the thread that captures the stream

    def __enter__(self) -> Stream:
        self._before.append(current())
        return self.use()

    def __exit__(self, *_: Any) -> None:
        self._before.pop().use()

    def use(self) -> Stream:
        _thread.stream = self
        return self

    def begin_capture(self) -> None:
        assert self is current()
        assert not self.null
        assert self.non_blocking, "cannot capture on the default (legacy) stream"
        graphs.begin_capture()
        self.captured_by = threading.get_ident()

    def end_capture(self) -> graphs.Graph:
        self.captured_by = None
        return graphs.Graph(graphs.end_capture(), log)

    def record(self, event: Event) -> Event:
        graphs.refuse("an event that the host asks for")
        event.at = time.perf_counter()
        log.append((self, "record", event))
        return event

    def wait_event(self, event: Event) -> None:
        graphs.refuse("waiting for an event of another stream")
        log.append((self, "wait", event))

    def synchronize(self) -> None:
        graphs.refuse("waiting for a stream")
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


def note(kernel: str, *arrays: Any) -> None:
    """Record the launch of a kernel on arrays, or on numbers of bytes, unless it is captured or run by a graph."""
    stream = current()
    assert stream.captured_by in (None, threading.get_ident()), "the graph of another thread would get this kernel"
    if not graphs.is_silent():
        log.append((stream, "kernel", kernel))
        traffic[kernel] += sum(array if isinstance(array, int) else getattr(array, "nbytes", 0) for array in arrays)


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
        note(self._name, *arguments_of(arguments))
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

        def run() -> None:
            assert len(cells) == len(arguments)  # whose numbers and arrays live as long as the launch
            fault = self._launch(addresses, types, len(cells), grid[0], (*grid, 1)[1], block[0], self._waits)
            faults = "its arguments have other types", "its threads wait for each other"
            assert not fault, f"{self._name}: {faults[fault - 1]}"

        graphs.launch(run)


def arguments_of(arguments: tuple[Any, ...]) -> list[Any]:
    """Return the arrays among the arguments of a kernel."""
    return [argument for argument in arguments if isinstance(argument, DeviceArray)]


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


class CublasLt:
    """emulation/cublaslt.cpp in place of cuBLASLt; products are recorded as "gemm with bias"."""

    def __init__(self, declare: Any):
        self._library = declare(ctypes.CDLL(str(built(CUBLASLT.read_text(), ("-O2",)))))

    def __getattr__(self, name: str) -> Any:
        return getattr(self._library, name)

    def cublasLtMatmul(self, *arguments: int) -> int:
        """Compute at once, or list the product with the bias that its descriptor has now, as a graph does."""
        if graphs.capture() is None:
            status = int(self._library.cublasLtMatmul(*arguments))
            if not status:
                note("gemm with bias")
            return status
        descriptor = arguments[1]
        copy = (ctypes.c_char * DESCRIPTOR_BYTES).from_buffer_copy(ctypes.string_at(descriptor, DESCRIPTOR_BYTES))
        listed = (arguments[0], ctypes.addressof(copy), *arguments[2:])

        def run() -> None:
            assert copy is not None  # which lives as long as the launch
            assert not self._library.cublasLtMatmul(*listed)

        graphs.launch(run)
        return 0


DESCRIPTOR_BYTES = 32  # of a Descriptor of emulation/cublaslt.cpp


def gemm(function: Any, *arguments: int) -> int:
    """Call a function that multiplies matrices; return its status."""
    note(f"gemm {arguments[-2]}", bytes_of_product(*arguments))
    if graphs.capture() is None:
        return int(function(*arguments))
    graphs.launch(lambda: function(*arguments))
    return 0


def bytes_of_product(*arguments: int) -> int:
    """Return the bytes of the matrices of cublasGemmEx, or of its form for several products, given its arguments."""
    m, n, k = arguments[3:6]
    is_batched = len(arguments) > 19
    types = (arguments[8], arguments[12 if is_batched else 11], arguments[17 if is_batched else 15])
    count = arguments[20] if is_batched else 1
    return count * sum(size * BYTES[kind] for size, kind in zip((m * k, k * n, m * n), types, strict=True))


BYTES = {0: 4, 1: 8, 14: 2}  # of a number, by cuBLAS's number of its type


def _device(array: Any) -> Any:
    return graphs.allocated(array.view(DeviceArray)) if isinstance(array, np.ndarray) else array


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
        driverGetVersion=lambda: 13000,
        getDevice=lambda: 0,
        getDeviceProperties=lambda number: {"name": b"a device on the CPU"},
        **{"CUDA_R_32F": 0, "CUDA_R_64F": 1, "CUDA_R_16BF": 14},
    )
    cupy.cuda = SimpleNamespace(  # type: ignore[attr-defined]
        runtime=runtime, cublas=cublas, Stream=Stream, Event=Event, Device=Device, get_current_stream=current,
        alloc_pinned_memory=bytearray, memory=SimpleNamespace(OutOfMemoryError=MemoryError),
        MemoryPool=graphs.MemoryPool, using_allocator=graphs.using_allocator,
        get_elapsed_time=lambda begin, end: 1e3 * (end.at - begin.at),
        nvrtc=SimpleNamespace(getVersion=lambda: (13, 0)),
    )  # fmt: skip
    cupy.__version__ = "14.0.1"
    cupy.ndarray, cupy.RawModule = DeviceArray, RawModule  # type: ignore[attr-defined]
    pool = SimpleNamespace(free_bytes=lambda: 5, total_bytes=lambda: 7, free_all_blocks=lambda: None)
    cupy.get_default_memory_pool = lambda: pool  # type: ignore[attr-defined]
    for name in (
        "empty zeros asarray ascontiguousarray concatenate arange argsort flatnonzero stack split moveaxis broadcast_to"
    ).split():
        setattr(cupy, name, functools.partial(_call, getattr(np, name)))
    cupy.__getattr__ = _function  # type: ignore[method-assign]
    cupy.argsort = functools.partial(_call, functools.partial(np.argsort, kind="stable"))  # type: ignore[attr-defined]
    cupy.empty_like = lambda x, *types, **layout: _device(np.empty_like(x, *types, **layout))  # type: ignore[attr-defined]
    return cupy


def _function(name: str) -> Any:
    """Return a function of numpy's for arrays of the device; a type as it is."""
    attribute = getattr(np, name)
    return attribute if isinstance(attribute, type) else functools.partial(_call, attribute)


VIEWS = {"empty", "empty_like", "broadcast_to", "moveaxis", "split", "reshape", "transpose"}
"""Functions that launch no kernel."""


def _call(function: Any, *arguments: Any, **options: Any) -> Any:
    """Call a function of numpy's for arrays of the device."""
    name = getattr(function, "__name__", "argsort")
    if function is np.ascontiguousarray and not isinstance(arguments[0], DeviceArray):
        raise TypeError("ascontiguousarray takes an array of the device")
    if isinstance(function, np.ufunc):
        return function(*arguments, **options)  # which DeviceArray records
    if function is np.asarray and arguments and not isinstance(arguments[0], DeviceArray):
        graphs.refuse("a copy to the device")
        log.append((current(), "copy", "up"))
        return _device(np.array(np.asarray(*arguments, **options), order="C"))  # such a copy is C-contiguous
    plain = [_plain(argument) for argument in arguments]
    if name in ("concatenate", "stack") and len(plain[0]) > 8:
        graphs.refuse("a copy of more than 8 addresses to the device")  # for one kernel that joins all arrays
    if name in VIEWS:
        result = function(*plain, **options)
        return [array.view(DeviceArray) for array in result] if isinstance(result, list) else _device(result)
    if function is np.copyto:
        note("cupy.copyto")
        graphs.launch(lambda: function(*plain, **options))
        return None
    if function in (np.asarray, np.ascontiguousarray):
        same = function(*plain, **options)
        if np.may_share_memory(same, plain[0]):
            return same.view(DeviceArray)
    note(f"cupy.{name}")
    result = graphs.produce(lambda: function(*plain, **options))
    traffic[f"cupy.{name}"] += 2 * getattr(result, "nbytes", 0)
    return _device(result)


@functools.cache
def load(cudnn: Any = None) -> Any:
    """Return the cupy backend on the emulated device; skip the test if there is no compiler."""
    if shutil.which("g++") is None:
        pytest.skip("g++ is not installed; it compiles the kernels of the cupy backend for the CPU")
    if platform.machine() != "x86_64":
        pytest.skip("kernels of the cupy backend are emulated on x86-64 only")
    hidden = {
        name: sys.modules.pop(name)
        for name in list(sys.modules)
        if name.split(".")[0] in ("cupy", "cudnn") or name.startswith("dsinga.addons.gpu.cupy")
    }
    sys.modules["cupy"], sys.modules["cudnn"] = make_cupy(), cudnn  # None: not installed
    try:
        from dsinga.addons.gpu.cupy import convolution, cublas, cublaslt, cudnn_choice, cudnn_plans, library
        from dsinga.addons.gpu.cupy.cupy_ops import CupyOps

        library.cudnn()  # its result is cached
        library.cublas = Cublas(functools.partial(cublas.declare, prototypes=cublas.PROTOTYPES))
        library.cublaslt = CublasLt(functools.partial(cublas.declare, prototypes=cublaslt.PROTOTYPES))
        cublas.find_library, cublaslt.find_library = lambda: library.cublas, lambda: library.cublaslt
        cudnn_plans.choices_file = lambda: None  # nothing is measured, so plans do not depend on the clock
        ops = CupyOps()
        ops.library, ops.choice_module, ops.plans_module = library, cudnn_choice, cudnn_plans  # for tests
        ops.convolution_module = convolution
        ops.modules = {
            name: module for name, module in sys.modules.items() if name.startswith("dsinga.addons.gpu.cupy")
        }
        return ops
    finally:
        for name in list(sys.modules):
            if name in ("cupy", "cudnn") or name.startswith("dsinga.addons.gpu.cupy"):
                del sys.modules[name]
        sys.modules.update(hidden)
