"""The program of a worker: the operations of one iteration, with their durations and sizes, for the simulator."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Compute(NamedTuple):
    """Compute for so many seconds."""

    seconds: float


class Send(NamedTuple):
    """Send ``bytes`` bytes to another worker, without waiting."""

    worker: int
    key: str
    bytes: int


class Receive(NamedTuple):
    """Wait for the message that was sent under ``key``."""

    key: str


class AllToAll(NamedTuple):
    """Send ``bytes`` bytes to each other worker of the group, without waiting; all workers do so.

    One ``Receive`` of the same key waits for what all others have sent.
    """

    key: str
    bytes: int


class PushGradients(NamedTuple):
    """Send packet number ``packet`` of this worker to its server, without waiting."""

    packet: int


class AwaitReply(NamedTuple):
    """Wait for the reply to a packet: that of this iteration, or that of ``before`` iterations ago."""

    packet: int
    before: int = 0


Operation = Compute | Send | Receive | AllToAll | PushGradients | AwaitReply


class Packet(NamedTuple):
    """A message from a worker to a server, with gradients of several slices or the part of a sum.

    The server replies to all of ``keys`` together, with as many bytes. To join them into one array takes the worker
    ``join_seconds``.
    """

    server: int
    keys: tuple[Hashable, ...]
    bytes: int
    join_seconds: float = 0.0


class ServerWork(NamedTuple):
    """The work for one key when all ``contributors`` workers have sent their part: ``seconds`` of computing.

    Where the workers share an update, as threads of the server's process, each of them computes for ``share`` seconds
    when it pushes.
    """

    contributors: int
    seconds: float
    share: float = 0.0


@dataclass
class WorkerProgram:
    """The operations of one worker in an iteration, the packets that it sends, and ``memory`` in bytes."""

    operations: list[Operation] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    memory: int = 0

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return sum(operation.seconds for operation in self.operations if isinstance(operation, Compute))

    def add(self, operation: Operation) -> None:
        """Append an operation; a Compute after a Compute extends it."""
        last = self.operations[-1] if self.operations else None
        if isinstance(operation, Compute) and isinstance(last, Compute):
            self.operations[-1] = Compute(last.seconds + operation.seconds)
        else:
            self.operations.append(operation)

    def without_overlap(self) -> WorkerProgram:
        """Return the program with gradients pushed after everything else, and their replies awaited at once."""
        pushes = [
            operation
            for operation in self.operations
            if isinstance(operation, PushGradients) and self._is_awaited_later(operation.packet)
        ]
        others = [
            operation
            for operation in self.operations
            if operation not in pushes and not (isinstance(operation, AwaitReply) and operation.before)
        ]
        replies: list[Operation] = [AwaitReply(push.packet) for push in pushes]
        return WorkerProgram([*others, *pushes, *replies], self.packets, self.memory)

    def _is_awaited_later(self, packet: int) -> bool:
        """Whether the reply to a packet is awaited in the next iteration, not in this one."""
        return AwaitReply(packet) not in self.operations


class GroupProgram(NamedTuple):
    """The programs of a synchronous worker group, the processes of its workers and servers, and the servers' work."""

    programs: list[WorkerProgram]
    worker_processes: Sequence[int]
    server_processes: Sequence[int]
    server_work: dict[Hashable, ServerWork]
