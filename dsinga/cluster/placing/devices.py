"""Chooses a GPU or CPU cores for each worker of a run, or each Dask worker."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from functools import partial

from distributed import Client

from dsinga.cluster.dask.dask_workers import host
from dsinga.cluster.dask.placement import Placement
from dsinga.cluster.dask.worker_calls import run_on_workers
from dsinga.cutting.cluster_topology import Topology
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.worker_memory import device_memory
from dsinga.job import ClusterConf, Compression, Job, Phase, UpdatePlace
from dsinga.job.enums import PRECISIONS
from dsinga.ops import Processor
from dsinga.ops.types import Devices
from dsinga.passes.processors import check_precision, choose_devices, describe_worker
from dsinga.training import Updater


def describe_partition(group: int, number: int, address: str) -> str:
    """Return the name of a worker for messages."""
    return f"partition {number} of group {group} (the Dask worker {address})"


def choose_run_devices(
    job: Job,
    client: Client,
    topology: Topology,
    nets: Mapping[Phase, PartitionedNet],
    updater: Updater,
    placement: Placement,
) -> Devices:
    """Choose the GPU of each worker of a run, None for CPU cores (:func:`choose_devices`).

    Raises JobError if the job's ``precision`` is kTF32 and some worker computes on CPU cores.
    """
    updates_on_gpu = _updates_on_gpu(job, topology) or placement.in_one_process
    slots = len(updater.state_slots) if updates_on_gpu else 0
    locals_ = nets[Phase.kTrain].locals

    def needs(number: int) -> int:
        return device_memory(locals_[number], slots, job.passes)

    devices = choose_devices(job, placement.workers, needs, describe_partition, partial(run_on_workers, client), host)
    check_precision(job, devices)
    return devices


def keeps_params_on_gpu(job: Job, topology: Topology, placement: Placement) -> bool:
    """Whether a group's only worker keeps all params on its GPU, without servers."""
    return topology.workers == 1 and placement.device(0, 0) is not None and _updates_on_gpu(job, topology)


def _updates_on_gpu(job: Job, topology: Topology) -> bool:
    conf = job.cluster or ClusterConf()
    single_worker = topology.groups == topology.workers == 1 and not topology.separate
    return (single_worker and conf.compression is Compression.kNone) or conf.update is UpdatePlace.kWorker


def choose_processors(
    job: Job, client: Client, addresses: Sequence[str], bytes_needed: Callable[[], int]
) -> list[Processor]:
    """Choose each Dask worker's processor for forward passes: one core, or a GPU, in the job's precision."""
    (devices,) = choose_devices(
        job, (tuple(addresses),), lambda _: bytes_needed(), describe_worker, partial(run_on_workers, client), host
    )
    precision = PRECISIONS[job.precision]
    return [Processor(1, device, precision) for device in devices]
