"""Decides whether each worker of a run computes on CPU cores or on a GPU."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable
from typing import TYPE_CHECKING

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job import Job, Precision
from dsinga.job.enums import PRECISIONS
from dsinga.net import NeuralNet
from dsinga.net.layer_cost import FLOAT_BYTES, feature_sizes
from dsinga.ops import Processor
from dsinga.ops.types import Ask, Devices, Groups
from dsinga.passes.setting_files import may_be_set
from dsinga.training import create_updater

if TYPE_CHECKING:  # only jobs for GPUs need it
    from dsinga.passes.device_backend import DeviceBackend, DeviceMemory

_warn_once = functools.cache(logging.getLogger(__name__).warning)

# Stands for the address of a Dask worker where this process computes without Dask.
THIS_PROCESS = ""


def read_device() -> str:
    """Return the setting ``dsinga.device``: "auto", "cpu" or "gpu". Raises UserError for another value."""
    if not may_be_set("dsinga"):
        return "auto"
    from dsinga.base.settings import read_setting  # it imports Dask's configuration

    return str(read_setting("device"))


def describe_worker(group: int, number: int, address: str) -> str:
    """Name a worker in messages, with its Dask worker or this process."""
    return "this process" if address == THIS_PROCESS else f"the Dask worker {address}"


def choose_devices(
    job: Job, groups: Groups, bytes_needed: Callable[[int], int], describe: Callable[[int, int, str], str],
    ask: Ask = lambda _, function, *arguments: {THIS_PROCESS: function(*arguments)}, host: Callable[[str], str] = str,
) -> Devices:  # fmt: skip
    """Choose which GPU each worker computes on; None for CPU cores.

    The job's ``gpu`` lines decide, unless Dask's setting ``dsinga.device`` does: with "gpu" all workers get GPUs, or
    this raises UserError; with "cpu" none does.

    Args:
        job: the job.
        groups: the addresses of Dask workers, [group][number], or THIS_PROCESS.
        bytes_needed: returns the device bytes of a worker, by its number in any group.
        describe: describes the worker (group, number, address) for messages.
        ask: calls a function in each process and returns the results by address; by default here.
        host: returns the host of an address.
    """
    setting = read_device()
    if setting == "gpu" or setting == "auto" and job.gpu:
        try:
            backend: type[DeviceBackend] = lookup("backend", "cupy")
        except UserError as error:
            if setting == "gpu":
                raise
            _warn_once("the job's gpu lines are left out, and CPU cores compute: %s", error)
        else:
            return backend.choose_devices(job, groups, bytes_needed, describe, ask, host, setting == "gpu")
    return tuple((None,) * len(addresses) for addresses in groups)


def check_precision(job: Job, devices: Devices) -> None:
    """Raise JobError for kTF32 on CPU cores, and for kBF16 on CPU cores and GPUs together."""
    all_devices = [device for group in devices for device in group]
    if job.precision is Precision.kBF16 and None in all_devices and any(device is not None for device in all_devices):
        raise job.error(
            "precision kBF16 rounds otherwise on GPUs than on CPU cores, and the job has workers on both; "
            "leave precision out, or give all workers a GPU, or none",
            "precision",
        )
    if job.precision is Precision.kTF32 and None in all_devices:
        raise job.error(
            f"precision {job.precision.name} is for GPUs, and the job has workers on CPU cores, which compute in "
            "float32; leave precision out, or give every worker a GPU",
            "precision",
        )


def local_processor(job: Job, bytes_needed: Callable[[], int]) -> Processor:
    """Return the processor of this process: a GPU if one is requested, else a core."""
    ((device,),) = choose_devices(job, ((THIS_PROCESS,),), lambda _: bytes_needed(), describe_worker)
    return Processor(1, device, PRECISIONS[job.precision])


def training_device(job: Job, net: NeuralNet) -> int | None:
    """Return the GPU that this process trains a net on, or None for CPU cores."""

    def bytes_needed() -> int:
        device_memory: DeviceMemory = lookup("hook", "device_memory")
        return device_memory(net, len(create_updater(job.updater).state_slots), job.passes)

    device = local_processor(job, bytes_needed).device
    check_precision(job, ((device,),))
    return device


def forward_processor(job: Job, net: NeuralNet) -> Processor:
    """Return this process's processor for forward passes: a GPU or a core."""
    return local_processor(job, functools.partial(forward_bytes, net))


def forward_bytes(net: NeuralNet, threads: int = 1) -> int:
    """Return the device memory that forward passes of ``threads`` threads need, in bytes."""
    features = sum(size for stage in net.stages for size in feature_sizes(stage))
    return threads * (FLOAT_BYTES * sum(param.size for param in net.params.values()) + features)
