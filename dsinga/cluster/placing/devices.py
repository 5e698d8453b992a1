"""Chooses a GPU or CPU cores for each worker of a run or Dask worker, before a run begins."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from distributed import Client

from dsinga.base.errors import UserError
from dsinga.base.settings import read_setting
from dsinga.cluster.dask.dask_workers import host
from dsinga.cluster.dask.placement import Devices, Groups, Placement
from dsinga.cluster.dask.worker_calls import run_on_workers
from dsinga.job import ClusterConf, Compression, Job, Phase, Precision, UpdatePlace
from dsinga.job.topology import Topology
from dsinga.net.partitioned import PartitionedNet
from dsinga.passes.processor import PRECISIONS, ProcessGpus, Processor, find_gpus, free_memory
from dsinga.training import Updater

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)
_reasons_said: set[str] = set()  # why members do not compute on the GPUs of a job, as far as a warning has said it

# Stands for the address of a Dask worker where this process computes without Dask.
THIS_PROCESS = ""


class GpuRequest(NamedTuple):
    """A member of a group that is to compute on a GPU.

    Attributes:
        group: the number of the group.
        number: the member's number in the group.
        address: the address of its Dask worker.
        device: the GPU that the job names; None for any.
        description: the member in words, for messages.
    """

    group: int
    number: int
    address: str
    device: int | None
    description: str


def describe_partition(group: int, number: int, address: str) -> str:
    """Return a description of a partition for messages."""
    return f"partition {number} of group {group} (the Dask worker {address})"


def describe_worker(group: int, number: int, address: str) -> str:
    """Return a description of a Dask worker, or of this process, for messages."""
    return "this process" if address == THIS_PROCESS else f"the Dask worker {address}"


def choose_devices(
    job: Job,
    client: Client | None,
    groups: Groups,
    bytes_needed: Callable[[int], int],
    describe: Callable[[int, int, str], str] = describe_partition,
) -> Devices:
    """Return the GPU of each member of ``groups``, None for those that compute on CPU cores.

    On each host, member k gets the GPU of the job's k-th ``gpu`` line; members beyond the last line compute on CPU
    cores. Where the processes of a host see different GPUs (dask-cuda sets CUDA_VISIBLE_DEVICES so), each member gets
    the first one that its process sees. Dask's setting ``dsinga.device`` takes precedence: with "gpu" all members get
    GPUs, in rotation; with "cpu" none does.

    If a member cannot have its GPU, or the GPU has too little free memory, it computes on CPU cores. One warning says
    why, for all members and, in a process, for all later calls. With "gpu" this is a UserError.

    Args:
        job: the job.
        client: the client of the cluster; None to look for GPUs in this process only.
        groups: the addresses of Dask workers, [group][number]; or THIS_PROCESS without a client.
        bytes_needed: returns the bytes that the member of a number, in any group, takes on a device.
        describe: returns a description of the member (group, number, address) for messages.
    """
    setting = read_setting("device")
    devices: list[list[int | None]] = [[None] * len(addresses) for addresses in groups]
    requests = [] if setting == "cpu" else list(_requests(groups, None if setting == "gpu" else job.gpu, describe))
    if requests:
        addresses = sorted({request.address for request in requests})
        gpus = _ask(client, addresses, find_gpus)
        assigned = dict(_assign(requests, gpus))
        numbers = _devices_by_address(assigned)
        free = (
            run_on_workers(client, addresses, free_memory, numbers) if client else {THIS_PROCESS: free_memory(numbers)}
        )
        refused: dict[GpuRequest, str] = {}
        for request, trouble in _troubles(assigned, gpus, free, bytes_needed):
            if not trouble:
                devices[request.group][request.number] = assigned[request]
                _log_device(job, request, assigned[request], gpus[request.address])
            elif setting == "gpu":
                raise UserError(
                    f"{request.description} cannot compute on a GPU: {trouble}; leave out --device gpu to compute on "
                    "CPU cores"
                )
            else:
                refused[request] = trouble
        _warn_of_cpu_cores(refused)
        _warn_of_choices({request.address: gpus[request.address] for request in assigned if request not in refused})
    return tuple(map(tuple, devices))


def _ask(
    client: Client | None, addresses: Sequence[str], function: Callable[..., Any], *arguments: Any
) -> dict[str, Any]:
    """Return the results of a function in each Dask worker, or in this process where there is no client."""
    return run_on_workers(client, addresses, function, *arguments) if client else {THIS_PROCESS: function(*arguments)}


def _warn_of_cpu_cores(refused: Mapping[GpuRequest, str]) -> None:
    """Warn, once in a process for the same reasons, that members do not compute on the GPUs that the job names."""
    reasons = "; ".join(dict.fromkeys(refused.values()))
    if not refused or reasons in _reasons_said:
        return
    _reasons_said.add(reasons)
    if len(refused) == 1:
        (request,) = refused
        who = f"{request.description} computes on CPU cores, not on the GPU of the job's gpu line"
    else:
        who = f"{len(refused)} workers compute on CPU cores, not on the GPUs of the job's gpu lines"
    _log.warning("%s: %s", who, reasons)


def _warn_of_choices(gpus: Mapping[str, ProcessGpus]) -> None:
    """Warn, once in a process, of hosts with the same GPU that have chosen other plans of cuDNN by measurement."""
    first: dict[str, str] = {}  # an address by the words of its GPU
    for address, process in gpus.items():
        like = first.setdefault(process.words, address)
        if process.choices != gpus[like].choices:
            _warn_once(
                f"the hosts of the Dask workers {like} and {address} have measured other plans of cuDNN for the same "
                "GPU and may round otherwise; give them one ~/.cache/dsinga/convolutions.json"
            )


def check_precision(job: Job, devices: Devices) -> None:
    """Raise JobError if some worker computes on CPU cores in kTF32, or in kBF16 beside one that has a GPU."""
    members = [device for group in devices for device in group]
    if job.precision is Precision.kBF16 and None in members and any(device is not None for device in members):
        raise job.error(
            "precision kBF16 rounds otherwise on GPUs than on CPU cores, and the job has workers on both; "
            "leave precision out, or give all workers a GPU, or none",
            "precision",
        )
    if job.precision is Precision.kTF32 and None in members:
        raise job.error(
            f"precision {job.precision.name} is for GPUs, and the job has workers on CPU cores, which compute in "
            "float32; leave precision out, or give every worker a GPU",
            "precision",
        )


def choose_run_devices(
    job: Job,
    client: Client,
    topology: Topology,
    nets: Mapping[Phase, PartitionedNet],
    updater: Updater,
    placement: Placement,
) -> Devices:
    """Return the GPU of each worker of a run, None for CPU cores; see :func:`choose_devices`.

    Raises JobError where the job's ``precision`` is kTF32 and some worker computes on CPU cores.
    """
    slots = len(updater.state_slots) if _updates_on_gpu(job, topology) else 0
    locals_ = nets[Phase.kTrain].locals

    def needs(number: int) -> int:
        from dsinga.planner.memory import worker_memory  # the planner is for those who want a GPU

        memory = worker_memory(locals_[number], slots, micro_batches=job.micro_batches)
        return memory.params + memory.gradients + memory.state + memory.features + memory.workspaces

    devices = choose_devices(job, client, placement.workers, needs)
    check_precision(job, devices)
    return devices


def keeps_params_on_gpu(job: Job, topology: Topology, placement: Placement) -> bool:
    """Whether the only worker keeps all params on its GPU: servers could only copy them."""
    return topology.workers == 1 and placement.device(0, 0) is not None and _updates_on_gpu(job, topology)


def _updates_on_gpu(job: Job, topology: Topology) -> bool:
    """Whether a worker on a GPU updates its params there: a single worker, or all of them, each for itself."""
    conf = job.cluster or ClusterConf()
    single_worker = topology.groups == topology.workers == 1 and not topology.separate
    return (single_worker and conf.compression is Compression.kNone) or conf.update is UpdatePlace.kWorker


def choose_processors(
    job: Job, client: Client | None, addresses: Sequence[str], bytes_needed: Callable[[], int]
) -> list[Processor]:
    """Return the processor of each Dask worker for forward passes: one core, or a GPU, in the job's precision.

    Cores compute in float32 where the precision is kTF32.
    """
    (devices,) = choose_devices(job, client, (tuple(addresses),), lambda _: bytes_needed(), describe_worker)
    precision = PRECISIONS[job.precision]
    return [Processor(1, device, precision) for device in devices]


def _log_device(job: Job, request: GpuRequest, device: int, gpus: ProcessGpus) -> None:
    _log.info("%s computes on GPU %d: %s", request.description, device, gpus.words)
    if gpus.lacks and any(layer.convolution_conf for layer in job.neuralnet.layer):
        _warn_once(gpus.lacks)


def _requests(
    groups: Groups, gpu_lines: Sequence[int] | None, describe: Callable[[int, int, str], str]
) -> Iterator[GpuRequest]:
    """Yield a request for each member that is to have a GPU: by the job's ``gpu`` lines, or all members for None."""
    members_on: dict[str, int] = {}  # how many members of each host came before
    for group, addresses in enumerate(groups):
        for number, address in enumerate(addresses):
            member = members_on.get(host(address), 0)
            members_on[host(address)] = member + 1
            if gpu_lines is None:
                yield GpuRequest(group, number, address, None, describe(group, number, address))
            elif member < len(gpu_lines):
                yield GpuRequest(group, number, address, gpu_lines[member], describe(group, number, address))


def _assign(requests: Sequence[GpuRequest], gpus: Mapping[str, ProcessGpus]) -> Iterator[tuple[GpuRequest, int]]:
    """Yield the GPU of each request, by the number that the requesting process knows it by."""
    visible_on: dict[str, set[str]] = {}
    for request in requests:
        visible_on.setdefault(host(request.address), set()).add(gpus[request.address].visible)
    requests_on: dict[str, int] = {}  # how many requests of each host came before
    for request in requests:
        name = host(request.address)
        if len(visible_on[name]) > 1:
            yield request, 0
        elif request.device is not None:
            yield request, request.device
        else:
            number = requests_on.get(name, 0)
            requests_on[name] = number + 1
            yield request, number % max(1, gpus[request.address].gpus)


def _devices_by_address(assigned: Mapping[GpuRequest, int]) -> dict[str, list[int]]:
    devices: dict[str, list[int]] = {}
    for request, device in assigned.items():
        devices.setdefault(request.address, []).append(device)
    return devices


def _troubles(
    assigned: Mapping[GpuRequest, int],
    gpus: Mapping[str, ProcessGpus],
    free: Mapping[str, Mapping[int, int]],
    bytes_needed: Callable[[int], int],
) -> Iterator[tuple[GpuRequest, str]]:
    """Yield each request with the reason why its GPU cannot be used, or "". Several members may share a GPU."""
    reserved: dict[tuple[str, str, int], int] = {}  # bytes of the requests before, by GPU
    for request, device in assigned.items():
        process = gpus[request.address]
        if process.trouble or not 0 <= device < process.gpus:
            yield (
                request,
                process.trouble or f"there is no GPU {device}: its process sees {process.gpus}, counted from 0",
            )
            continue
        gpu = host(request.address), process.visible, device
        before, needed, available = reserved.get(gpu, 0), bytes_needed(request.number), free[request.address][device]
        if before + needed > available:
            shared = f" beside {_size(before)} of other partitions" if before else ""
            memory = f"the net needs about {_size(needed)}{shared} on GPU {device}, where {_size(available)} are free"
            yield request, f"{memory}; use a smaller batchsize or more workers"
            continue
        reserved[gpu] = before + needed
        yield request, ""


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
