"""The CUDA kernels of this package: one source file for each family, compiled by NVRTC when first called."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dsinga.ops.cupy.library import cupy

THREADS = 256
BLOCKS = 4096  # at most, some 30 for each multiprocessor of a large GPU; beyond, a thread computes several numbers
ROW_THREADS = 128  # of a block that computes one row; whole warps

_COMMON = (Path(__file__).parent / "common.cu").read_text()
_REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class Source:
    """The kernels of one ``.cu`` file, compiled with a ``prologue`` of macros before it.

    Their arguments are arrays, numbers (long long or double), and None for a missing array. Launches are on the current
    stream of the calling thread. CuPy caches compiled kernels, on disk too.
    """

    def __init__(self, name: str, prologue: str = ""):
        self._path, self._prologue = Path(__file__).parent / f"{name}.cu", prologue
        self._kernels: dict[tuple[str, np.dtype], Any] = {}

    def code(self) -> str:
        """Return the source text that is compiled."""
        return _COMMON + self._prologue + self._path.read_text()

    def each(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any) -> None:
        """Run a kernel of ``FOR_EACH``, whose last argument is ``count``."""
        if count:
            blocks = min(-(-count // THREADS), BLOCKS)
            self._kernel(kernel, dtype)((blocks,), (THREADS,), _with_null_pointers((*arguments, count)))

    def rows(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any, shared: int = 0) -> None:
        """Run a kernel with one block for each of ``count`` rows, and ``shared`` bytes of shared memory."""
        if count:
            self._kernel(kernel, dtype)((count,), (ROW_THREADS,), _with_null_pointers(arguments), shared_mem=shared)

    def grid(self, kernel: str, dtype: np.dtype, grid: tuple[int, ...], *arguments: Any) -> None:
        """Run a kernel on a grid of blocks, of which no side is 0."""
        self._kernel(kernel, dtype)(grid, (THREADS,), _with_null_pointers(arguments))

    def _kernel(self, kernel: str, dtype: np.dtype) -> Any:
        function = self._kernels.get((kernel, dtype))
        if function is None:
            module = cupy.RawModule(code=self.code(), options=("-std=c++17", f"-DREAL={_REALS[dtype]}"))
            function = self._kernels[kernel, dtype] = module.get_function(kernel)
        return function


def _with_null_pointers(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the arguments with 0 for None, which CuPy 14.0 would drop."""
    return tuple(0 if argument is None else argument for argument in arguments)
