"""The operations of a worker in one iteration, with their durations and sizes, for the simulator."""

from __future__ import annotations

import math
from collections.abc import Hashable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from dsinga.addons.planner.machine import Rates
from dsinga.addons.planner.processes import ParamUse, ProcessMap, WireBytes
from dsinga.cluster.server import Slice, fill_buckets
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.net.layer_cost import FLOAT_BYTES


class Compute(NamedTuple):
    """The operation that computes for ``seconds``."""

    seconds: float


class Send(NamedTuple):
    """The operation that sends ``bytes`` bytes to another worker, without waiting."""

    worker: int
    key: str
    bytes: int


class Receive(NamedTuple):
    """The operation that waits for the message sent under ``key``."""

    key: str


class AllToAll(NamedTuple):
    """The operation that sends ``bytes`` bytes to each other worker of the group, without waiting.

    One ``Receive`` of the same key waits for all others.
    """

    key: str
    bytes: int


class PushGradients(NamedTuple):
    """The operation that sends packet number ``packet`` to its server, without waiting."""

    packet: int


class AwaitReply(NamedTuple):
    """The operation that waits for the reply to a packet of this iteration, or of ``before`` iterations ago."""

    packet: int
    before: int = 0


Operation = Compute | Send | Receive | AllToAll | PushGradients | AwaitReply


class Packet(NamedTuple):
    """A message from a worker to a server, with gradients of several slices or the part of a sum.

    The server replies to all ``keys`` at once, with ``reply_bytes``. Joining them takes ``join_seconds``.
    """

    server: int
    keys: tuple[Hashable, ...]
    bytes: int
    reply_bytes: int
    join_seconds: float = 0.0


class ServerWork(NamedTuple):
    """A server's work for a key when all ``contributors`` workers have sent their part: ``seconds`` of computing.

    Threads of the server's process share an update, and compute for ``share`` seconds when they push.
    """

    contributors: int
    seconds: float
    share: float = 0.0


@dataclass
class WorkerProgram:
    """One worker's operations in an iteration, the packets it sends, and ``memory`` in bytes."""

    operations: list[Operation] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    memory: int = 0

    @property
    def compute(self) -> float:
        """The seconds of computing in an iteration."""
        return sum(operation.seconds for operation in self.operations if isinstance(operation, Compute))

    def add(self, operation: Operation) -> None:
        """Append an operation, or extend the last Compute by another one."""
        last = self.operations[-1] if self.operations else None
        if isinstance(operation, Compute) and isinstance(last, Compute):
            self.operations[-1] = Compute(last.seconds + operation.seconds)
        else:
            self.operations.append(operation)

    def without_overlap(self) -> WorkerProgram:
        """Reorder the program for no overlap: gradients are pushed last, and replies awaited immediately."""
        pushes = [
            operation
            for operation in self.operations
            if isinstance(operation, PushGradients) and AwaitReply(operation.packet) not in self.operations
        ]
        others = [
            operation
            for operation in self.operations
            if operation not in pushes and not (isinstance(operation, AwaitReply) and operation.before)
        ]
        replies: list[Operation] = [AwaitReply(push.packet) for push in pushes]
        return WorkerProgram([*others, *pushes, *replies], self.packets, self.memory)


class GroupProgram(NamedTuple):
    """A synchronous group's programs, its workers' and servers' processes, and the servers' work."""

    programs: list[WorkerProgram]
    worker_processes: Sequence[int]
    server_processes: Sequence[int]
    server_work: dict[Hashable, ServerWork]


def start_group(
    params: Mapping[str, ParamUse], processes: ProcessMap, rates: Rates
) -> tuple[GroupProgram, Mapping[str, Sequence[Slice]]]:
    """Create a group with the servers' work for the params, but without programs; also return the slices."""
    slices = processes.slices(params)
    users = {name: len(param.users) for name, param in params.items()}
    work = update_work(slices, users, processes, rates)
    by_param: dict[str, list[Slice]] = {name: [] for name in params}
    for slice_ in slices:
        by_param[slice_.param].append(slice_)
    return GroupProgram([], processes.workers, processes.servers, work), by_param


class ProgramBuilder:
    """Builds the program of one worker, operation by operation."""

    def __init__(
        self,
        params: Mapping[str, Shape],
        slices: Mapping[str, Sequence[Slice]],
        process: int,
        processes: ProcessMap,
        rates: Rates,
    ):
        self._params, self._rates, self.process, self.wire = params, rates, process, processes.wire
        used_slices = {name: slices[name] for name in params}
        limit = processes.piece_bytes(sum(map(math.prod, params.values())))
        self._joins = limit is None  # pieces arrive where they are used
        buckets = fill_buckets(used_slices, len(processes.servers), limit) if used_slices else []
        self.program = WorkerProgram(packets=[_packet(*bucket, rates, self.wire) for bucket in buckets])
        self._buckets_of: dict[str, list[int]] = {name: [] for name in used_slices}
        for number, bucket in enumerate(buckets):
            for slice_ in bucket.slices:
                self._buckets_of[slice_.param].append(number)
        self._missing = [len(bucket.slices) for bucket in buckets]
        self._awaited: set[int] = set()

    def add(self, operation: Operation) -> None:
        """Append an operation to the worker's program."""
        self.program.add(operation)

    def await_values(self, names: Iterable[str]) -> None:
        """Wait for params before their first use, and join a param of several slices."""
        for name in names:
            buckets = [number for number in dict.fromkeys(self._buckets_of[name]) if number not in self._awaited]
            self._awaited.update(buckets)
            for number in buckets:
                self.add(AwaitReply(number, before=1))
            if self._joins and buckets and len(self._buckets_of[name]) > 1:
                self.add(Compute(self._rates.keep * FLOAT_BYTES * math.prod(self._params[name])))

    def push(self, names: Iterable[str]) -> None:
        """Mark gradients as computed; send each complete bucket."""
        for number in (number for name in names for number in self._buckets_of[name]):
            self._missing[number] -= 1
            if not self._missing[number]:
                self.add(PushGradients(number))

    def all_reduce(self, layer: Layer, what: str, sums: int, group: GroupProgram) -> None:
        """Send parts of a layer's ``sums`` sums over the batch to the first server; wait for each."""
        for key in (f"{layer.name}.{what}.{number}" for number in range(sums)):
            size = 16 * layer.shape[1]  # two float64 a channel
            group.server_work[key] = ServerWork(len(group.worker_processes), 0.0)
            self.program.packets.append(Packet(0, (key,), size, size))
            number = len(self.program.packets) - 1
            self.add(PushGradients(number))
            self.add(AwaitReply(number))


def update_work(
    slices: Iterable[Slice], users: Mapping[str, int], processes: ProcessMap, rates: Rates
) -> dict[Any, ServerWork]:
    """Predict the servers' time for each slice: to add its users' gradients, and to update it."""

    def work(slice_: Slice) -> ServerWork:
        count = users[slice_.param]
        if count == 1:
            return ServerWork(1, slice_.size * rates.update)
        if processes.shares_updates(slice_.server):
            share = slice_.size * (rates.update / count + rates.add * (count - 1) / count)
            return ServerWork(count, 0.0, share=share)
        return ServerWork(count, slice_.size * (rates.update + rates.add * (count - 1)))

    return {slice_.id: work(slice_) for slice_ in slices}


def _packet(server: int, slices: Sequence[Slice], rates: Rates, wire: WireBytes) -> Packet:
    numbers = sum(slice_.size for slice_ in slices)
    join = rates.copy * FLOAT_BYTES * numbers if len(slices) > 1 else 0.0
    return Packet(server, tuple(slice_.id for slice_ in slices), wire.gradient * numbers, wire.reply * numbers, join)
