"""Our CUDA kernels: one source file for each family, compiled by NVRTC when first called, and how they are launched."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np

from dsinga.ops.cupy.library import cupy

THREADS = 256
BLOCKS = 4096  # above, a thread does several numbers: some 30 blocks for each multiprocessor of a large GPU
ROW_THREADS = 128  # of a block that has one row; whole warps

_COMMON = (Path(__file__).parent / "common.cu").read_text()
_REALS = {np.dtype(np.float32): "float", np.dtype(np.float64): "double"}


class Source:
    """One ``.cu`` file, behind a ``prologue`` of macros.

    Its kernels take arrays, numbers as long long or double, and None for a missing array.

    What a call launches runs on the current stream of the calling thread. CuPy keeps what was compiled, on disk too.
    """

    def __init__(self, name: str, prologue: str = ""):
        self._path, self._prologue = Path(__file__).parent / f"{name}.cu", prologue
        self._kernels: dict[tuple[str, np.dtype], Any] = {}

    def code(self) -> str:
        """Return what is compiled."""
        return _COMMON + self._prologue + self._path.read_text()

    def each(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any) -> None:
        """Run a kernel of ``FOR_EACH``, whose last argument is ``count``."""
        if count:
            blocks = min(-(-count // THREADS), BLOCKS)
            self._kernel(kernel, dtype)((blocks,), (THREADS,), _given((*arguments, count)))

    def rows(self, kernel: str, dtype: np.dtype, count: int, *arguments: Any, shared: int = 0) -> None:
        """Run a kernel that has one block for each of ``count`` rows, with ``shared`` bytes of memory in common."""
        if count:
            self._kernel(kernel, dtype)((count,), (ROW_THREADS,), _given(arguments), shared_mem=shared)

    def grid(self, kernel: str, dtype: np.dtype, grid: tuple[int, ...], *arguments: Any) -> None:
        """Run a kernel on a grid of blocks, none of whose sides is 0."""
        self._kernel(kernel, dtype)(grid, (THREADS,), _given(arguments))

    def _kernel(self, kernel: str, dtype: np.dtype) -> Any:
        found = self._kernels.get((kernel, dtype))
        if found is None:
            module = cupy.RawModule(code=self.code(), options=("-std=c++17", f"-DREAL={_REALS[dtype]}"))
            found = self._kernels[kernel, dtype] = module.get_function(kernel)
        return found


def _given(arguments: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return arguments with a null pointer for None, which CuPy 14.0 would pass as no argument at all."""
    return tuple(0 if argument is None else argument for argument in arguments)
