"""The processor of a worker, which is CPU cores or a GPU, and the GPUs of a process."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from typing import NamedTuple

from dsinga.base.errors import UserError
from dsinga.ops import Ops, get_ops

GPU_BACKEND = "cupy"


class Processor(NamedTuple):
    """The processor of one worker: the GPU ``device`` of its process or, if that is None, ``threads`` CPU cores.

    Where DSINGA_OPS names the backend of GPUs, a worker without a device computes on the first GPU.
    """

    threads: int
    device: int | None = None
    precision: str = "float32"

    def ops(self) -> Ops:
        """Return new kernels for the worker. Raises UserError where its process has none."""
        if self.device is None:
            return cpu_ops(self.precision)
        return get_ops(GPU_BACKEND).for_worker(self.device, self.precision)


def cpu_ops(precision: str) -> Ops:
    """Return kernels for CPU cores in a precision of :meth:`Ops.for_worker`; "tf32", which they lack, is float32."""
    return get_ops().for_worker(precision="float32" if precision == "tf32" else precision)


class ProcessGpus(NamedTuple):
    """The GPUs of a process.

    Attributes:
        gpus: their number.
        visible: CUDA_VISIBLE_DEVICES: which of the host's GPUs they are.
        text: a description of the backend that computes there.
        lacks: a description of what the backend is missing, or "".
        trouble: the reason why there are none, or "".
        choices: a digest of the plans that their host has chosen by measurement, or "".
    """

    gpus: int
    visible: str
    text: str = ""
    lacks: str = ""
    trouble: str = ""
    choices: str = ""


def find_gpus() -> ProcessGpus:
    """Return the GPUs of this process."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        ops = get_ops(GPU_BACKEND)
        if not ops.device_count():
            return ProcessGpus(0, visible, trouble=f"DSINGA_OPS selects {ops.describe()} there")
        return ProcessGpus(ops.device_count(), visible, ops.describe(), ops.lacks(), choices=ops.choices())
    except UserError as error:
        return ProcessGpus(0, visible, trouble=str(error))


def free_memory(devices: Mapping[str, Sequence[int]], dask_worker: object = None) -> dict[int, int]:
    """Return the free bytes of those GPUs that ``devices`` lists for this Dask worker's address, by number."""
    free: dict[int, int] = {}
    for device in set(devices[getattr(dask_worker, "address", "")]):
        try:
            free[device] = get_ops(GPU_BACKEND).for_worker(device).free_memory() or 0
        except UserError:
            continue  # there is no such GPU, or find_gpus() reports the reason
    return free
