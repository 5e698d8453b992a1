"""Which GPU each partition computes on, or each Dask worker. Decided, and refused, before a run begins."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import dask.config
from distributed import Client

from dsinga.cluster.placement import Groups, host
from dsinga.errors import UserError
from dsinga.job import Job, Precision
from dsinga.worker.processor import PRECISIONS, ProcessGpus, Processor, find_gpus, free_memory

_log = logging.getLogger(__name__)
_warn_once = functools.cache(_log.warning)

Devices = tuple[tuple[int | None, ...], ...]  # [group][number]: a GPU that the process sees, None for CPU cores
HERE = ""  # the address of who is no Dask worker


class GpuRequest(NamedTuple):
    """Who is to compute on a GPU, in words, at which Dask worker, and on which GPU, None for any one."""

    group: int
    number: int
    address: str
    device: int | None
    words: str


def name_partition(group: int, number: int, address: str) -> str:
    """Say which partition it is."""
    return f"partition {number} of group {group} (the Dask worker {address})"


def name_worker(group: int, number: int, address: str) -> str:
    """Say which Dask worker it is, or this process."""
    return "this process" if address == HERE else f"the Dask worker {address}"


def choose_devices(
    job: Job,
    client: Client | None,
    crews: Groups,
    needs: Callable[[int], int],
    words: Callable[[int, int, str], str] = name_partition,
) -> Devices:
    """Return on which GPU each of ``crews[group][number]``, addresses of Dask workers, is to compute; None for cores.

    The k-th of a host gets the k-th of the job's ``gpu`` lines; those beyond compute on CPU cores. Where the processes
    of a host see different GPUs (CUDA_VISIBLE_DEVICES, as dask-cuda sets it), each takes the first it sees. The setting
    ``dsinga.device`` of Dask goes before: "gpu" gives everyone a GPU, turn by turn, "cpu" nobody.

    ``needs`` tells how many bytes the one of that number in its group takes on a device. Where a GPU cannot be had, or
    has not as much memory, one sentence says so, and that CPU cores compute instead: as a warning, or, under "gpu", by
    UserError. Without a client it is asked for this process, at the address HERE.
    """
    setting = dask.config.get("dsinga.device", "auto")
    if setting not in ("auto", "cpu", "gpu"):
        raise UserError(f"the setting dsinga.device is {setting!r}; give auto, cpu or gpu")
    chosen: list[list[int | None]] = [[None] * len(crew) for crew in crews]
    wants = [] if setting == "cpu" else list(_wants(crews, None if setting == "gpu" else job.gpu, words))
    if wants:
        addresses = sorted({want.address for want in wants})
        found = client.run(find_gpus, workers=addresses) if client else {HERE: find_gpus()}
        given = dict(_give(wants, found))
        asked = _asked(given)
        rooms = client.run(free_memory, asked, workers=addresses) if client else {HERE: free_memory(asked)}
        for want, trouble in _troubles(given, found, rooms, needs):
            if not trouble:
                chosen[want.group][want.number] = given[want]
                _tell(job, want, given[want], found[want.address])
            elif setting == "gpu":
                raise UserError(
                    f"{want.words} cannot compute on a GPU: {trouble}; without --device gpu CPU cores compute"
                )
            else:
                _log.warning(
                    "%s computes on CPU cores, not on a GPU as the job's gpu lines want: %s", want.words, trouble
                )
    return tuple(map(tuple, chosen))


def check_precision(job: Job, devices: Devices) -> None:
    """Raise JobError for a ``precision`` in which CPU cores would have to train."""
    if job.precision is not Precision.kFloat32 and any(device is None for crew in devices for device in crew):
        raise job.error(
            f"precision {job.precision.name} is for GPUs, and the job has workers on CPU cores, which compute in "
            "float32; leave precision out, or give every worker a GPU",
            "precision",
        )


def choose_processors(
    job: Job, client: Client | None, addresses: Sequence[str], bytes_needed: Callable[[], int]
) -> list[Processor]:
    """Return what each of these Dask workers computes forward passes with: one core, or a GPU in the job's precision.

    Cores compute in float32, which is at least as exact.
    """
    (devices,) = choose_devices(job, client, (tuple(addresses),), lambda _: bytes_needed(), name_worker)
    precision = PRECISIONS[job.precision]
    return [Processor(1) if device is None else Processor(1, device, precision) for device in devices]


def _tell(job: Job, want: GpuRequest, device: int, found: ProcessGpus) -> None:
    _log.info("%s computes on GPU %d: %s", want.words, device, found.words)
    if found.lacks and any(layer.convolution_conf for layer in job.neuralnet.layer):
        _warn_once(found.lacks)


def _wants(crews: Groups, gpus: Sequence[int] | None, words: Callable[[int, int, str], str]) -> Iterator[GpuRequest]:
    """Yield those who are to have a GPU, with the one that the job says; ``gpus`` None for all of them."""
    turns: dict[str, int] = {}
    for group, crew in enumerate(crews):
        for number, address in enumerate(crew):
            turn = turns.get(host(address), 0)
            turns[host(address)] = turn + 1
            if gpus is None:
                yield GpuRequest(group, number, address, None, words(group, number, address))
            elif turn < len(gpus):
                yield GpuRequest(group, number, address, gpus[turn], words(group, number, address))


def _give(wants: Sequence[GpuRequest], found: Mapping[str, ProcessGpus]) -> Iterator[tuple[GpuRequest, int]]:
    """Yield the GPU of each, by the number that its own process knows it by."""
    turns: dict[str, int] = {}
    for want in wants:
        home = host(want.address)
        if len({found[other.address].visible for other in wants if host(other.address) == home}) > 1:
            yield want, 0
        elif want.device is not None:
            yield want, want.device
        else:
            turn = turns.get(home, 0)
            turns[home] = turn + 1
            yield want, turn % max(1, found[want.address].gpus)


def _asked(given: Mapping[GpuRequest, int]) -> dict[str, list[int]]:
    asked: dict[str, list[int]] = {}
    for want, device in given.items():
        asked.setdefault(want.address, []).append(device)
    return asked


def _troubles(
    given: Mapping[GpuRequest, int],
    found: Mapping[str, ProcessGpus],
    rooms: Mapping[str, Mapping[int, int]],
    needs: Callable[[int], int],
) -> Iterator[tuple[GpuRequest, str]]:
    """Yield why each cannot compute on its GPU, the empty string if it can. Some may share one."""
    taken: dict[tuple[str, str, int], int] = {}
    for want, device in given.items():
        facts = found[want.address]
        if facts.trouble or not 0 <= device < facts.gpus:
            yield want, facts.trouble or f"there is no GPU {device}, its process sees {facts.gpus}, counted from 0"
            continue
        card = host(want.address), facts.visible, device
        before, needed, free = taken.get(card, 0), needs(want.number), rooms[want.address][device]
        if before + needed > free:
            shared = f" beside {_size(before)} of other partitions" if before else ""
            room = f"the net needs about {_size(needed)} on GPU {device}{shared}, which has {_size(free)} free"
            yield want, f"{room}; take a smaller batchsize, or more workers"
            continue
        taken[card] = before + needed
        yield want, ""


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
