"""What partitions compute with, CPU cores or a GPU, and what GPUs a process has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.errors import UserError
from dsinga.job import Precision
from dsinga.ops import Ops, get_ops

PRECISIONS = {Precision.kFloat32: "float32", Precision.kTF32: "tf32", Precision.kBF16: "bf16"}
GPUS = "cupy"  # the backend that computes on them


class Processor(NamedTuple):
    """What one partition computes with: ``threads`` cores or, if it is not None, the GPU ``device`` of its process.

    Where DSINGA_OPS names the backend of GPUs, a partition without a device computes on the first that there is.
    """

    threads: int
    device: int | None = None
    precision: str = "float32"

    def ops(self) -> Ops:
        """Return kernels of the partition's own. Raises UserError where its process has none."""
        if self.device is None:
            return get_ops().for_worker()
        return get_ops(GPUS).for_worker(self.device, self.precision)


class ProcessGpus(NamedTuple):
    """What a process has: how many GPUs, which of the host's these are, what computes there, what of it is missing.

    ``trouble`` is why it has none.
    """

    gpus: int
    visible: str
    words: str = ""
    lacks: str = ""
    trouble: str = ""


def look() -> ProcessGpus:
    """Return what GPUs the process has where this runs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        ops = get_ops(GPUS)
        if not ops.device_count():
            return ProcessGpus(0, visible, trouble=f"DSINGA_OPS asks for {ops.describe()} there")
        return ProcessGpus(ops.device_count(), visible, ops.describe(), ops.lacks())
    except UserError as error:
        return ProcessGpus(0, visible, trouble=str(error))


def free_memory(asked: Mapping[str, Sequence[int]], dask_worker: object = None) -> dict[int, int]:
    """Return how many bytes are free on those of the GPUs that ``asked`` names for the Dask worker where this runs."""
    rooms: dict[int, int] = {}
    for device in set(asked[getattr(dask_worker, "address", "")]):
        try:
            rooms[device] = get_ops(GPUS).for_worker(device).free_memory() or 0
        except UserError:
            continue  # which look() has told, or the number of a GPU that is not there
    return rooms
