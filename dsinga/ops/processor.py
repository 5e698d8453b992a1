"""The processor of a worker, which is CPU cores or a GPU."""

from __future__ import annotations

from typing import NamedTuple

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
