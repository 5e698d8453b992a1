"""What each worker of a group does in an iteration, as a list of operations with their durations and sizes."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple


class Compute(NamedTuple):
    """Compute for so many seconds."""

    seconds: float


class Send(NamedTuple):
    """Send an array to another worker, and go on."""

    worker: int
    key: str
    bytes: int


class Receive(NamedTuple):
    """Wait for what was sent under ``key``."""

    key: str


class Exchange(NamedTuple):
    """Send each other worker of the group so many bytes, as they all do, and go on; all of it is one ``Receive``."""

    key: str
    bytes: int


class Push(NamedTuple):
    """Send packet number ``packet`` of this worker to its server, and go on."""

    packet: int


class Await(NamedTuple):
    """Wait for the answer to a packet: to the one of this iteration, or of the ``before``-th before it."""

    packet: int
    before: int = 0


Operation = Compute | Send | Receive | Exchange | Push | Await


class Packet(NamedTuple):
    """What a worker sends to a server in one message; ``pieces`` are answered together, in as many bytes.

    To join them takes ``joining`` seconds, where a message is one array.
    """

    server: int
    pieces: tuple[Hashable, ...]
    bytes: int
    joining: float = 0.0


class Piece(NamedTuple):
    """What a server does when all ``contributors`` workers have sent a piece: it computes for ``seconds``.

    Where these do it together, as threads of its process, each computes for ``share`` seconds when it pushes.
    """

    contributors: int
    seconds: float
    share: float = 0.0


@dataclass
class Program:
    """The operations of one worker in an iteration, and the packets that it sends. ``memory`` is in bytes."""

    operations: list[Operation] = field(default_factory=list)
    packets: list[Packet] = field(default_factory=list)
    memory: int = 0

    @property
    def compute(self) -> float:
        """Seconds of computing."""
        return sum(one.seconds for one in self.operations if isinstance(one, Compute))

    def add(self, operation: Operation) -> None:
        """Append an operation; neighbouring computing is one."""
        last = self.operations[-1] if self.operations else None
        if isinstance(operation, Compute) and isinstance(last, Compute):
            self.operations[-1] = Compute(last.seconds + operation.seconds)
        else:
            self.operations.append(operation)

    def in_turn(self) -> Program:
        """Return the same without overlap: pushes after everything else, and the wait for their answers at once."""
        pushes = [one for one in self.operations if isinstance(one, Push) and self._lasting(one.packet)]
        rest = [one for one in self.operations if one not in pushes and not (isinstance(one, Await) and one.before)]
        answers: list[Operation] = [Await(one.packet) for one in pushes]
        return Program([*rest, *pushes, *answers], self.packets, self.memory)

    def _lasting(self, packet: int) -> bool:
        """Whether the answer is for the next iteration, not for this one."""
        return Await(packet) not in self.operations


class Group(NamedTuple):
    """A synchronous group: what its workers do, in which process each worker and each server lives, the pieces."""

    programs: list[Program]
    homes: Sequence[int]
    servers: Sequence[int]
    pieces: dict[Hashable, Piece]
