"""What each partition computes with: CPU cores, or a GPU of its host. Decided, and refused, before a run begins."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import NamedTuple

import dask.config
from distributed import Client

from dsinga.cluster.placement import Placement, host
from dsinga.errors import UserError
from dsinga.job import Job, Precision
from dsinga.ops import Ops, get_ops

_log = logging.getLogger(__name__)

PRECISIONS = {Precision.kFloat32: "float32", Precision.kTF32: "tf32", Precision.kBF16: "bf16"}
GPUS = "cupy"  # the backend that computes on them

Devices = tuple[tuple[int | None, ...], ...]  # [group][number]: a GPU that the process sees, None for CPU cores


class Processor(NamedTuple):
    """What one partition computes with: ``threads`` cores or, if it is not None, the GPU ``device`` of its process.

    Where DSINGA_OPS names the backend of GPUs, a partition without a device computes on the first that there is.
    """

    threads: int
    device: int | None = None
    precision: str = "float32"

    def ops(self) -> Ops:
        """Return kernels of the partition's own. Raises UserError where its process has none."""
        if self.device is None:
            return get_ops().for_worker()
        return get_ops(GPUS).for_worker(self.device, self.precision)


class Found(NamedTuple):
    """What the process of a Dask worker has: how many GPUs, which of the host's these are, or why it has none."""

    gpus: int
    visible: str
    words: str
    trouble: str


class Want(NamedTuple):
    """A partition that is to compute on a GPU: its place, its Dask worker, and the GPU, None for any one."""

    group: int
    number: int
    address: str
    device: int | None

    def __str__(self) -> str:
        return f"partition {self.number} of group {self.group} (the Dask worker {self.address})"


def choose_devices(job: Job, client: Client, placement: Placement, needs: Callable[[int], int]) -> Devices:
    """Return on which GPU each partition is to compute, None for CPU cores.

    The k-th partition of a host gets the k-th of the job's ``gpu`` lines; those beyond compute on CPU cores. Where the
    processes of a host see different GPUs (CUDA_VISIBLE_DEVICES, as dask-cuda sets it), each takes the first it sees.
    The setting ``dsinga.device`` of Dask goes before: "gpu" gives every partition a GPU, turn by turn, "cpu" none.

    ``needs`` tells how many bytes the partition of that number in its group takes on a device. Where a GPU cannot be
    had, or has not as much memory, one sentence says so, and that CPU cores compute instead: as a warning, or, under
    "gpu", by UserError. UserError is raised, too, for a ``precision`` that the cores would have to compute in.
    """
    setting = dask.config.get("dsinga.device", "auto")
    if setting not in ("auto", "cpu", "gpu"):
        raise UserError(f"the setting dsinga.device is {setting!r}; give auto, cpu or gpu")
    chosen: list[list[int | None]] = [[None] * len(group) for group in placement.partitions]
    wants = [] if setting == "cpu" else list(_wants(placement, None if setting == "gpu" else job.gpu))
    if wants:
        found = client.run(look, workers=sorted({want.address for want in wants}))
        given = dict(_give(wants, found))
        rooms = client.run(free_memory, _asked(given), workers=sorted({want.address for want in wants}))
        for want, trouble in _troubles(given, found, rooms, needs):
            if not trouble:
                chosen[want.group][want.number] = given[want]
                _log.info("%s computes on GPU %d: %s", want, given[want], found[want.address].words)
            elif setting == "gpu":
                raise UserError(f"{want} cannot compute on a GPU: {trouble}; without --device gpu CPU cores compute")
            else:
                _log.warning("%s computes on CPU cores, not on a GPU as the job's gpu lines want: %s", want, trouble)
    if job.precision is not Precision.kFloat32 and any(device is None for group in chosen for device in group):
        raise job.error(
            f"precision {job.precision.name} is for GPUs, and the job has workers on CPU cores, which compute in "
            "float32; leave precision out, or give every worker a GPU",
            "precision",
        )
    return tuple(map(tuple, chosen))


def _wants(placement: Placement, gpus: Sequence[int] | None) -> Iterator[Want]:
    """Yield the partitions that are to have a GPU, with the one that the job says; ``gpus`` None for all of them."""
    turns: dict[str, int] = {}
    for group, crew in enumerate(placement.partitions):
        for number, address in enumerate(crew):
            turn = turns.get(host(address), 0)
            turns[host(address)] = turn + 1
            if gpus is None:
                yield Want(group, number, address, None)
            elif turn < len(gpus):
                yield Want(group, number, address, gpus[turn])


def _give(wants: Sequence[Want], found: Mapping[str, Found]) -> Iterator[tuple[Want, int]]:
    """Yield the GPU of each partition, by the number that its own process knows it by."""
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


def _asked(given: Mapping[Want, int]) -> dict[str, list[int]]:
    asked: dict[str, list[int]] = {}
    for want, device in given.items():
        asked.setdefault(want.address, []).append(device)
    return asked


def _troubles(
    given: Mapping[Want, int],
    found: Mapping[str, Found],
    rooms: Mapping[str, Mapping[int, int]],
    needs: Callable[[int], int],
) -> Iterator[tuple[Want, str]]:
    """Yield why each partition cannot compute on its GPU, the empty string if it can. Some may share one."""
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


def look() -> Found:
    """Return what GPUs the process has where this runs."""
    visible = os.environ.get("CUDA_VISIBLE_DEVICES", "")
    try:
        ops = get_ops(GPUS)
        if not ops.device_count():
            return Found(0, visible, "", f"DSINGA_OPS asks for {ops.describe()} there")
        return Found(ops.device_count(), visible, ops.describe(), "")
    except UserError as error:
        return Found(0, visible, "", str(error))


def free_memory(asked: Mapping[str, Sequence[int]], dask_worker: object = None) -> dict[int, int]:
    """Return how many bytes are free on those of the GPUs that ``asked`` names for the Dask worker where this runs."""
    rooms: dict[int, int] = {}
    for device in set(asked[getattr(dask_worker, "address", "")]):
        try:
            rooms[device] = get_ops(GPUS).for_worker(device).free_memory() or 0
        except UserError:
            continue  # which look() has told, or the number of a GPU that is not there
    return rooms


def _size(count: int) -> str:
    return f"{count / 2**30:.1f} GiB" if count >= 2**30 else f"{count / 2**20:.1f} MiB"
