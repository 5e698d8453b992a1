"""Finds CuPy, a device and cuDNN, reports missing libraries, and compiles the CUDA kernels of this package."""

from __future__ import annotations

import functools
from pathlib import Path
from types import ModuleType
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.ops.types import BFLOAT16

CUDNN = 90000  # the first release that the graphs are for
INSTEAD = "without it the backends onednn and numpy run, on CPUs"


def _load_cupy() -> ModuleType:
    try:
        import cupy
    except ImportError as error:
        raise UserError(
            f"the kernel backend 'cupy' needs CuPy 14 ({error}): pip install 'dsinga[gpu]'; {INSTEAD}"
        ) from error
    if int(cupy.__version__.split(".")[0]) < 14:
        raise UserError(
            f"the kernel backend 'cupy' needs CuPy 14, and {cupy.__version__} is installed: "
            f"pip install -U 'dsinga[gpu]'; {INSTEAD}"
        )
    return cupy


def check_device(runtime: Any) -> None:
    """Raise UserError unless CUDA's ``runtime`` finds a device with a new enough driver."""
    needs = "the kernel backend 'cupy' needs an NVIDIA GPU"
    try:
        count, why = runtime.getDeviceCount(), ""
    except runtime.CUDARuntimeError as error:
        count, why = 0, str(error)
    if "InsufficientDriver" in why:
        major, minor = divmod(runtime.runtimeGetVersion() // 10, 100)
        version = runtime.driverGetVersion()
        has = f"the one here is for CUDA {version // 1000}.{version % 1000 // 10}" if version else "none is installed"
        raise UserError(f"{needs} with a driver for CUDA {major}.{minor} at least, and {has}; {INSTEAD}")
    if not count:
        raise UserError(f"{needs}, and none was found{f' ({why})' if why else ''}; {INSTEAD}")


def check_compiler(cuda: Any) -> None:
    """Raise UserError unless CuPy's ``cuda`` finds NVRTC."""
    try:
        cuda.nvrtc.getVersion()
    except (ImportError, OSError, RuntimeError) as error:
        raise missing_library(cuda, error) from error


def missing_library(cuda: Any, error: Exception) -> UserError:
    """Return the error about a missing CUDA library, which CuPy's packages do not include."""
    release, why = cuda.runtime.runtimeGetVersion() // 1000, f"{error}".split(", No such file")[0]
    return UserError(
        f"the kernel backend 'cupy' needs cuBLAS and NVRTC of CUDA {release} ({why.strip()}): "
        f"pip install 'cupy-cuda{release}x[ctk]', or install the CUDA toolkit; {INSTEAD}"
    )


cupy: Any = _load_cupy()
check_device(cupy.cuda.runtime)
check_compiler(cupy.cuda)


@functools.cache
def find_cudnn() -> tuple[ModuleType | None, str]:
    """Return cuDNN's graph API, or None and the reason why it, or cuDNN 9, is missing."""
    try:
        import cudnn as frontend

        version = frontend.backend_version()
    except (ImportError, OSError, RuntimeError, AssertionError) as error:  # importing it loads libcudnn, or asserts
        return None, str(error).splitlines()[0] if str(error) else type(error).__name__
    if version < CUDNN:
        return None, f"cuDNN {frontend.backend_version_string()} is installed"
    return frontend, ""


def cudnn() -> ModuleType | None:
    """Return cuDNN's graph API; None if it is not installed."""
    return find_cudnn()[0]


def lacks() -> str:
    """Explain what runs without cuDNN and how to install it; "" if it is installed."""
    frontend, why = find_cudnn()
    if frontend:
        return ""
    # cuDNN's packages are named after the release of CUDA, as CuPy's are.
    release = cupy.cuda.runtime.runtimeGetVersion() // 1000
    return (
        f"cuDNN 9 or its front end is missing ({why}): matrix products of cuBLAS compute convolutions, more slowly; "
        f"pip install nvidia-cudnn-frontend nvidia-cudnn-cu{release}"
    )


def device_name() -> str:
    """Return the current device's name."""
    return str(cupy.cuda.runtime.getDeviceProperties(cupy.cuda.runtime.getDevice())["name"].decode())


def describe() -> str:
    """Name the device and the library of convolutions in a sentence."""
    frontend = cudnn()
    convolution = f"cuDNN {frontend.backend_version_string()}" if frontend else "matrix products of cuBLAS"
    return f"CuPy {cupy.__version__} on {device_name()}; convolutions by {convolution}"


THREADS = 256
BLOCKS = 4096  # at most, some 30 for each multiprocessor of a large GPU; beyond, a thread computes several numbers
ROW_THREADS = 128  # of a block that computes one row; whole warps

_COMMON = (Path(__file__).parent / "common.cu").read_text("utf-8")
_REALS = {
    np.dtype(np.float32): ("-DREAL=float",),
    np.dtype(np.float64): ("-DREAL=double",),
    BFLOAT16: ("-DREAL=float", "-DBFLOAT16"),
}


class Source:
    """The kernels of one ``.cu`` file, compiled after a ``prologue`` of macros.

    Arguments are arrays, numbers (long long or double), and None for a missing array.
    """

    def __init__(self, name: str, prologue: str = ""):
        self._path, self._prologue = Path(__file__).parent / f"{name}.cu", prologue
        self._kernels: dict[tuple[str, str], Any] = {}  # by name and character of the dtype

    def code(self) -> str:
        """Return the source text to compile."""
        return _COMMON + self._prologue + self._path.read_text("utf-8")

    def each(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any) -> None:
        """Run a kernel of ``FOR_EACH`` with ``count`` as its last argument."""
        if count:
            blocks = min(-(-count // THREADS), BLOCKS)
            self._kernel(kernel, dtype)((blocks,), (THREADS,), _with_null_pointers((*arguments, count)))

    def rows(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any, shared: int = 0) -> None:
        """Run a kernel with a block for each of ``count`` rows, and ``shared`` bytes of shared memory."""
        if count:
            self._kernel(kernel, dtype)((count,), (ROW_THREADS,), _with_null_pointers(arguments), shared_mem=shared)

    def grid(self, kernel: str, dtype: np.dtype, grid: tuple[int, ...], *arguments: Any, shared: int = 0) -> None:
        """Run a kernel on a nonempty grid of blocks, with ``shared`` bytes of shared memory each."""
        self._kernel(kernel, dtype)(grid, (THREADS,), _with_null_pointers(arguments), shared_mem=shared)

    def _kernel(self, kernel: str, dtype: np.dtype) -> Any:
        function = self._kernels.get((kernel, dtype.char))
        if function is None:
            module = cupy.RawModule(code=self.code(), options=("-std=c++17", *_REALS[dtype]))
            function = self._kernels[kernel, dtype.char] = module.get_function(kernel)
        return function


def _with_null_pointers(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Replace None by 0, since CuPy 14.0 would drop it."""
    return tuple([0 if argument is None else argument for argument in arguments])


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array in page-locked host memory."""
    size = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.alloc_pinned_memory(max(size, 1) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, size).reshape(shape)
