"""Chooses a GPU or CPU cores for each worker of a run, each Dask worker, or this process, before it computes."""

from __future__ import annotations

import functools
import logging
import os
import sys
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.job import Job, Precision
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import FLOAT_BYTES, feature_sizes
from dsinga.ops.processor import ProcessGpus, Processor, find_gpus, free_memory

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)
_reasons_said: set[str] = set()  # why members do not compute on the GPUs of a job, as far as a warning has said it

# The address of a Dask worker for each member of each group: [group][member].
Groups = tuple[tuple[str, ...], ...]
# The GPU of each member of each group, by the number that its process knows it by; None for CPU cores.
Devices = tuple[tuple[int | None, ...], ...]
# Returns the results of a function in each process, by address: (addresses, function, arguments).
Ask = Callable[..., dict[str, Any]]

# Stands for the address of a Dask worker where this process computes without Dask.
THIS_PROCESS = ""


def read_device() -> str:
    """Return the setting ``dsinga.device``: "auto", "cpu" or "gpu". Raises UserError for another one."""
    is_named = "dask.config" in sys.modules or any(name.startswith("DASK_") for name in os.environ)
    if not is_named and not any(map(_names_dsinga, _files())):
        return "auto"
    from dsinga.base.settings import read_setting  # it imports Dask's configuration

    return str(read_setting("device"))


def _files() -> list[Path]:
    """Return the files from which Dask takes its configuration where no environment variable names one."""
    folders = Path("/etc/dask"), Path(sys.prefix) / "etc" / "dask", Path.home() / ".config" / "dask"
    return [file for folder in folders if folder.is_dir() for file in folder.iterdir()]


def _names_dsinga(file: Path) -> bool:
    try:
        return "dsinga" in file.read_text(encoding="utf-8", errors="replace")
    except OSError:
        return False


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


def describe_worker(group: int, number: int, address: str) -> str:
    """Return a description of a Dask worker, or of this process, for messages."""
    return "this process" if address == THIS_PROCESS else f"the Dask worker {address}"


def choose_devices(
    job: Job,
    groups: Groups,
    bytes_needed: Callable[[int], int],
    describe: Callable[[int, int, str], str],
    ask: Ask = lambda _, function, *arguments: {THIS_PROCESS: function(*arguments)},
    host: Callable[[str], str] = str,
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
        groups: the addresses of Dask workers, [group][number], or THIS_PROCESS.
        bytes_needed: returns the bytes that the member of a number, in any group, takes on a device.
        describe: returns a description of the member (group, number, address) for messages.
        ask: calls a function in each process and returns the results by address; by default in this process.
        host: returns the host of an address.
    """
    setting = read_device()
    devices: list[list[int | None]] = [[None] * len(addresses) for addresses in groups]
    lines = None if setting == "gpu" else job.gpu
    requests = [] if setting == "cpu" else list(_requests(groups, lines, describe, host))
    if requests:
        addresses = sorted({request.address for request in requests})
        gpus = ask(addresses, find_gpus)
        assigned = dict(_assign(requests, gpus, host))
        numbers = _devices_by_address(assigned)
        free = ask(addresses, free_memory, numbers)
        refused: dict[GpuRequest, str] = {}
        for request, trouble in _troubles(assigned, gpus, free, bytes_needed, host):
            if not trouble:
                devices[request.group][request.number] = assigned[request]
                _log_device(job, request, assigned[request], gpus[request.address])
            elif setting == "gpu":
                raise UserError(
                    f"{request.description} cannot compute on a GPU: {trouble}; to compute on CPU cores, leave out "
                    "--device gpu, or set dsinga.device to auto"
                )
            else:
                refused[request] = trouble
        _warn_of_cpu_cores(refused)
        _warn_of_choices({request.address: gpus[request.address] for request in assigned if request not in refused})
    return tuple(map(tuple, devices))


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
    first: dict[str, str] = {}  # an address by the description of its GPU
    for address, process in gpus.items():
        like = first.setdefault(process.text, address)
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


def local_processor(job: Job, bytes_needed: Callable[[], int]) -> Processor:
    """Return the processor of this process: a GPU if the job or the setting asks for one, else a core."""
    ((device,),) = choose_devices(job, ((THIS_PROCESS,),), lambda _: bytes_needed(), describe_worker)
    return Processor(1, device, PRECISIONS[job.precision])


def forward_processor(job: Job, net: NeuralNet) -> Processor:
    """Return the processor of forward passes of a net in this process, as :func:`local_processor` does."""
    return local_processor(job, functools.partial(forward_bytes, net))


def forward_bytes(net: NeuralNet, threads: int = 1) -> int:
    """Return the bytes on a device that params and features of so many threads take, as if none were released."""
    features = sum(size for stage in net.stages for size in feature_sizes(stage))
    return threads * (FLOAT_BYTES * sum(param.size for param in net.params.values()) + features)


def _log_device(job: Job, request: GpuRequest, device: int, gpus: ProcessGpus) -> None:
    _log.info("%s computes on GPU %d: %s", request.description, device, gpus.text)
    if gpus.lacks and any(layer.convolution_conf for layer in job.neuralnet.layer):
        _warn_once(gpus.lacks)


def _requests(
    groups: Groups,
    gpu_lines: Sequence[int] | None,
    describe: Callable[[int, int, str], str],
    host: Callable[[str], str],
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


def _assign(
    requests: Sequence[GpuRequest], gpus: Mapping[str, ProcessGpus], host: Callable[[str], str]
) -> Iterator[tuple[GpuRequest, int]]:
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
    host: Callable[[str], str],
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
