"""Training a job by one worker on the emulated device, whose iterations are captured as graphs or called one by one."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any

import pytest

import dsinga.ops
from dsinga.base.param_arrays import ParamArrays
from dsinga.job import Job, Phase
from dsinga.job.topology import topology as create_topology
from dsinga.ops.processor import Processor
from dsinga.reading.checked_job import CheckedJob
from dsinga.reading.nets import cut_nets
from dsinga.training import create_updater, initial_values
from dsinga.worker.config import WorkerConfig, WorkerKey, new_run_name
from dsinga.worker.configure import configure, open_job
from dsinga.worker.group_worker import GroupWorker
from dsinga.worker.param_slices import replica_values
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn


@contextlib.contextmanager
def device_worker(job: Job, roots: Sequence[str] = (), captured: bool = True, ops: Any = None) -> Iterator[GroupWorker]:
    """Give a worker that keeps all params on the emulated device; without ``captured`` it has no graphs.

    ``ops`` are other kernels than those of the emulated device.
    """
    topology = create_topology(job, 1, 1)
    opened = open_job(CheckedJob(job, roots), topology)
    nets = cut_nets(opened.nets, opened.readers, False)
    config = configure(
        job, topology, opened, nets, create_updater(job.updater), run=new_run_name(), served=False, timeout=60.0
    )
    values = initial_values(opened.nets[Phase.kTrain].params, job.seed)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DSINGA_OPS", raising=False)
        patch.setitem(dsinga.ops._loaded, "cupy", ops or emulated_cupy.load(cudnn()))
        worker = _create(config, values, job)
    if not captured:
        worker._ops.new_pass = lambda: None
    try:
        yield worker
    finally:
        worker.abort("the run has ended")
        worker.close()


def _create(config: WorkerConfig, values: ParamArrays, job: Job) -> GroupWorker:
    worker = GroupWorker(WorkerKey(config.run, 0, 0, 0, "threads"), config, {}, Processor(1, 0, config.precision), 0)
    worker.set_replica(replica_values(config, values, None))
    return worker


_cudnn: list[FakeCudnn] = []


def cudnn() -> FakeCudnn:
    """Return the one emulated cuDNN of these tests, so that kernels are loaded once."""
    if not _cudnn:
        _cudnn.append(FakeCudnn())
    return _cudnn[0]


def params(worker: GroupWorker) -> dict[str, Any]:
    """Return copies of the params and of the updater's state."""
    state = worker.replica_state()
    slots = {f"{name} {slot}": array for name, slots in state.state.items() for slot, array in slots.items()}
    return {**state.values, **slots}
