"""The CPU cores or the GPU that a worker computes with, and the GPUs that a process has."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.errors import UserError
from dsinga.job import Precision
from dsinga.ops import Ops, get_ops

PRECISIONS = {Precision.kFloat32: "float32", Precision.kTF32: "tf32", Precision.kBF16: "bf16"}
GPU_BACKEND = "cupy"


class Processor(NamedTuple):
    """What one worker computes with: ``threads`` CPU cores or, unless it is None, the GPU ``device`` of its process.

    Where DSINGA_OPS names the backend of GPUs, a worker without a device computes on the first GPU.
    """

    threads: int
    device: int | None = None
    precision: str = "float32"

    def ops(self) -> Ops:
        """Return new kernels for the worker. Raises UserError where its process has none."""
        if self.device is None:
            return get_ops().for_worker()
        return get_ops(GPU_BACKEND).for_worker(self.device, self.precision)


class ProcessGpus(NamedTuple):
    """The GPUs of a process.

    Attributes:
        gpus: how many there are.
        visible: CUDA_VISIBLE_DEVICES, which of the host's GPUs they are.
        words: the backend that computes there, in words.
        lacks: what the backend is missing, in words.
        trouble: why there are none.
    """

    gpus: int
    visible: str
    words: str = ""
    lacks: str = ""
    trouble: str = ""


def find_gpus() -> ProcessGpus:
    """Return the GPUs of this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        ops = get_ops(GPU_BACKEND)
        if not ops.device_count():
            return ProcessGpus(0, visible, trouble=f"DSINGA_OPS asks for {ops.describe()} there")
        return ProcessGpus(ops.device_count(), visible, ops.describe(), ops.lacks())
    except UserError as error:
        return ProcessGpus(0, visible, trouble=str(error))


def free_memory(asked: Mapping[str, Sequence[int]], dask_worker: object = None) -> dict[int, int]:
    """Return the free bytes of the GPUs that ``asked`` lists for this Dask worker, by the GPU's number."""
    rooms: dict[int, int] = {}
    for device in set(asked[getattr(dask_worker, "address", "")]):
        try:
            rooms[device] = get_ops(GPU_BACKEND).for_worker(device).free_memory() or 0
        except UserError:
            continue  # reported by find_gpus(), or a GPU that does not exist
    return rooms
