"""Page-locked host memory, which asynchronous copies need."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.ops.cupy.library import cupy


def pinned(shape: tuple[int, ...], dtype: Any) -> np.ndarray:
    """Return an uninitialised array in page-locked host memory."""
    size = int(np.prod(shape, dtype=np.int64))
    memory = cupy.cuda.alloc_pinned_memory(max(size, 1) * np.dtype(dtype).itemsize)
    return np.frombuffer(memory, dtype, size).reshape(shape)
