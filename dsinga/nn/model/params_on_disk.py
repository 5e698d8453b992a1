"""Moves the params of a large model to a file while a run trains copies of them."""

from __future__ import annotations

import contextlib
import mmap
import tempfile
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.base import buffers
from dsinga.extensions import LoopView
from dsinga.extensions.extension import Watcher
from dsinga.nn.model.training_state import set_trained

ALIGNMENT = 64  # bytes
LEAST_BYTES = 16 << 20  # of params and optimizer state that are worth a file


class ParamsOnDisk(Watcher):
    """Maps a large model's params and optimizer state from an unnamed temporary file, so they need no memory in a run.

    The run trains copies, which replace them. If it fails, the model still has its own: the system reads them from the
    file when somebody uses them. They are new arrays then. If the file cannot be written, they stay in memory.
    """

    def __init__(self, model: Any):
        super().__init__()
        self._memory: mmap.mmap | None = None
        params, slots = model._params or {}, model.trained.slots
        arrays = {id(array): array for group in (params, *slots.values()) for array in group.values()}
        if sum(array.nbytes for array in arrays.values()) < LEAST_BYTES:
            return
        buffers.clear()  # of an earlier run
        try:
            with tempfile.TemporaryFile() as file:
                for array in arrays.values():
                    file.write(np.ascontiguousarray(array).reshape(-1).view(np.uint8).data)
                    file.write(bytes(-array.nbytes % ALIGNMENT))
                file.flush()
                self._memory = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_COPY)
        except OSError:
            return
        mapped, start = dict[int, np.ndarray](), 0
        for key, array in arrays.items():
            mapped[key] = np.frombuffer(self._memory, array.dtype, array.size, start).reshape(array.shape)
            start += array.nbytes + -array.nbytes % ALIGNMENT

        def of_file(group: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
            return {name: mapped.get(id(array), array) for name, array in group.items()}

        state = {name: of_file(group) for name, group in slots.items()}
        set_trained(model, replace(model.trained, params=of_file(params), slots=state))
        if model.result is not None:  # has the arrays, too
            model.result.params.update(of_file(model.result.params))

    def start(self, loop: LoopView) -> None:
        """Give back the memory of what was read to begin the run."""
        if self._memory is not None and hasattr(mmap, "MADV_DONTNEED"):
            with contextlib.suppress(OSError):  # of a process that keeps all its memory
                self._memory.madvise(mmap.MADV_DONTNEED)
