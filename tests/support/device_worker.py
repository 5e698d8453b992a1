"""Training a job on the emulated device, by iterations that are captured as graphs or called one by one."""

import contextlib
from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

import pytest

import dsinga.ops
from dsinga.base.arrays import ParamArrays
from dsinga.cluster.server import Shard
from dsinga.cluster.worker.config import WorkerConfig, WorkerKey, new_run_name
from dsinga.cluster.worker.configure import configure
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.cluster.worker.param_slices import replica_values, whole_values
from dsinga.cutting.cluster_topology import topology as create_topology
from dsinga.cutting.phases import cut_nets
from dsinga.job import Job, Phase
from dsinga.ops import Processor
from dsinga.passes.opened_job import open_job
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import Metrics, create_updater, initial_values
from tests.support import emulated_cupy
from tests.support.emulated_cudnn import FakeCudnn
from tests.support.train_in_threads import create_servers, create_workers, prepare, running, train


@contextlib.contextmanager
def device_worker(job: Job, roots: Sequence[str] = (), captured: bool = True, ops: Any = None) -> Iterator[GroupWorker]:
    """Give a worker that keeps all params on the emulated device; without ``captured`` it has no graphs.

    ``ops`` are other kernels than those of the emulated device.
    """
    topology = create_topology(job, 1, 1)
    opened = open_job(CheckedJob(job, roots), topology.workers, topology.groups)
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


class DeviceGroups(NamedTuple):
    """Worker groups on the emulated device and their servers."""

    config: WorkerConfig
    groups: list[list[GroupWorker]]
    shards: list[Shard]

    def train(self, start: int, stop: int) -> list[list[Metrics]]:
        """Let the groups compute a step each in turn; return the metrics of the steps of each worker."""
        reports = [train(workers, step, step + 1) for step in range(start, stop) for workers in self.groups]
        return [report.metrics for parts in reports for report in parts]

    def params(self, step: int | None = None) -> dict[str, Any]:
        """Return copies of the params and of the updater's state: of ``step``, or as they are."""
        copies = [shard.snapshot(step, 60.0) for shard in self.shards]
        replicas = [worker.replica_state() for worker in self.groups[0]] if self.config.replicated else []
        values = {id: value for copy in copies for id, value in copy.values.items()}
        slots = {id: arrays for copy in copies for id, arrays in copy.state.items()}
        params, state = whole_values(self.config, values, slots, replicas)
        return {**params, **{f"{name} {slot}": array for name in state for slot, array in state[name].items()}}


@contextlib.contextmanager
def device_groups(job: Job, on_gpu: bool, captured: bool = False) -> Iterator[DeviceGroups]:
    """Give the workers of a job on the emulated device, whose servers keep slices there, too, if ``on_gpu``."""
    topology = create_topology(job, 1, 1)
    config, values = prepare(job, topology, ())
    processor = Processor(1, 0, config.precision)
    with pytest.MonkeyPatch.context() as patch:
        patch.delenv("DSINGA_OPS", raising=False)
        patch.setitem(dsinga.ops._loaded, "cupy", emulated_cupy.load(cudnn()))
        with running(config) as workers:
            shards = create_servers(config, values, processor if on_gpu else None)
            groups = [create_workers(config, values, group, processor=processor) for group in range(topology.groups)]
            for group in groups:
                workers += group
            for worker in () if captured else workers:
                worker._ops.new_pass = lambda: None
            yield DeviceGroups(config, groups, shards)


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
