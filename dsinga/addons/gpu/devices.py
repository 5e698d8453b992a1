"""Chooses a GPU for each worker of a run, each Dask worker, or this process."""

from __future__ import annotations

import functools
import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import Job
from dsinga.net import NeuralNet
from dsinga.ops import Ops, get_ops
from dsinga.ops.types import Ask, Devices, Groups
from dsinga.passes.device_backend import DeviceBackend

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)
_reasons_said: set[str] = set()  # why workers do not compute on the GPUs of a job, as far as a warning has said it


class ProcessGpus(NamedTuple):
    """The GPUs that a process can use, or why there are none.

    Attributes:
        visible: CUDA_VISIBLE_DEVICES, their places among the host's GPUs.
        text: a description of the backend.
        lacks: what the backend is missing, or "".
        trouble: why there are none, or "".
        choices: a hash of the host's plans chosen by measurement, or "".
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
        ops: Any = get_ops("cupy")
        if not ops.device_count():
            return ProcessGpus(0, visible, trouble=f"DSINGA_OPS selects {ops.describe()} there")
        return ProcessGpus(ops.device_count(), visible, ops.describe(), ops.lacks(), choices=ops.choices())
    except UserError as error:
        return ProcessGpus(0, visible, trouble=str(error))


def free_memory(devices: Mapping[str, Sequence[int]], dask_worker: object = None) -> dict[int, int]:
    """Measure the free bytes of the GPUs, by number, in ``devices`` for this Dask worker's address."""
    free: dict[int, int] = {}
    for device in set(devices[getattr(dask_worker, "address", "")]):
        try:
            free[device] = get_ops("cupy").for_worker(device).free_memory() or 0
        except UserError:
            continue  # there is no such GPU, or find_gpus() reports the reason
    return free


class GpuRequest(NamedTuple):
    """A worker of a group that needs a GPU.

    ``device`` is the GPU that the job names (None for any), and ``description`` names the worker in messages.
    """

    group: int
    number: int
    address: str
    device: int | None
    description: str


@register("backend", "cupy")
class CupyBackend(DeviceBackend):
    """The kernels of GPUs, by CuPy, and the choice of a GPU for each worker."""

    @staticmethod
    def create() -> Ops:
        """Create the kernels of GPUs."""
        from dsinga.addons.gpu.cupy.cupy_ops import CupyOps  # which loads CuPy

        return CupyOps()

    @staticmethod
    def choose_devices(
        job: Job, groups: Groups, bytes_needed: Callable[[int], int], describe: Callable[[int, int, str], str],
        ask: Ask, host: Callable[[str], str], is_required: bool,
    ) -> Devices:  # fmt: skip
        """Return the GPU of each worker of ``groups``; None for workers on CPU cores.

        On each host, worker k gets the GPU of the job's k-th ``gpu`` line; further workers compute on CPU cores. With
        dask-cuda's CUDA_VISIBLE_DEVICES, each worker gets the first GPU that its process sees. If GPUs are
        ``is_required``, all workers get one, in rotation.

        A worker computes on CPU cores if it cannot have its GPU, or the GPU has too little free memory. If GPUs are
        required, that is a UserError.
        """
        devices: list[list[int | None]] = [[None] * len(addresses) for addresses in groups]
        requests = list(_requests(groups, None if is_required else job.gpu, describe, host))
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
            elif is_required:
                raise UserError(
                    f"{request.description} cannot compute on a GPU: {trouble}; to compute on CPU cores, leave out "
                    "--device gpu, or set dsinga.device to auto"
                )
            else:
                refused[request] = trouble
        _warn_of_cpu_cores(refused)
        _warn_of_choices({request.address: gpus[request.address] for request in assigned if request not in refused})
        return tuple(map(tuple, devices))

    @staticmethod
    def describe_capture(job: Job, net: NeuralNet) -> str:
        """Describe how a job's iterations are captured, or why not, as far as known beforehand."""
        from dsinga.addons.gpu.captured_iterations import describe_capture  # which choosing GPUs does not need

        return describe_capture(job, net)


def _warn_of_cpu_cores(refused: Mapping[GpuRequest, str]) -> None:
    """Warn, once a process for the same reasons, that workers do not use the job's GPUs."""
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
    """Warn, once a process, of hosts with the same GPU but other plans of cuDNN, which may round otherwise."""
    first: dict[str, str] = {}  # an address by the description of its GPU
    for address, process in gpus.items():
        like = first.setdefault(process.text, address)
        if process.choices != gpus[like].choices:
            _warn_once(
                f"the hosts of the Dask workers {like} and {address} have measured other plans of cuDNN for the same "
                "GPU and may round otherwise; give them one ~/.cache/dsinga/convolutions.json"
            )


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
    """Yield a request for each worker of the job's ``gpu`` lines, or for all workers if they are None."""
    workers_on: dict[str, int] = {}  # how many workers of each host came before
    for group, addresses in enumerate(groups):
        for number, address in enumerate(addresses):
            place = workers_on.get(host(address), 0)
            workers_on[host(address)] = place + 1
            if gpu_lines is None:
                yield GpuRequest(group, number, address, None, describe(group, number, address))
            elif place < len(gpu_lines):
                yield GpuRequest(group, number, address, gpu_lines[place], describe(group, number, address))


def _assign(
    requests: Sequence[GpuRequest], gpus: Mapping[str, ProcessGpus], host: Callable[[str], str]
) -> Iterator[tuple[GpuRequest, int]]:
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
    """Yield each request with the reason why its GPU cannot be used, or ""."""
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
