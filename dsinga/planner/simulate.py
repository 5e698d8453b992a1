"""An iteration of a synchronous group, event by event: computing, messages and updates, at the same time or in turn.

Each worker goes through its operations in order. Each process has a link that carries one message at a time in each
direction, and a server's work and the two ends of a message take time from a worker that computes in that process:
workers leave no core idle. What is measured is the steady state: the values of an iteration are on their way while the
next one begins.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import NamedTuple

from dsinga.planner.link import Links
from dsinga.planner.program import Await, Compute, Exchange, Group, Packet, Program, Push, Receive, Send

ITERATIONS = 3  # simulated; the first is left out
Waiting = Generator["float | Happening", None, None]


class Prediction(NamedTuple):
    """Of one iteration: seconds, those of computing, bytes that leave and reach a worker's process, bytes of memory.

    Seconds of computing, bytes and memory are those of the worker that has most.
    """

    seconds: float
    compute: float
    sent: int
    received: int
    memory: int


class Happening:
    """Something that will have happened; who waits for it is called then."""

    def __init__(self) -> None:
        self.done = False
        self.waiting: list[Callable[[], None]] = []


def simulate(group: Group, links: Links, overlap: bool = True) -> Prediction:
    """Return what an iteration of ``group`` costs in the steady state.

    Without ``overlap`` a worker waits until what it sends has arrived, and for the servers at the end.
    """
    run = _Run(group, links, overlap)
    ends = run.ends()
    return Prediction(
        seconds=(ends[-1] - ends[0]) / (len(ends) - 1),
        compute=max(program.compute for program in group.programs),
        sent=max(run.sent) // ITERATIONS,
        received=max(run.received) // ITERATIONS,
        memory=max(program.memory for program in group.programs),
    )


class _Run:
    def __init__(self, group: Group, links: Links, overlap: bool):
        self.group, self.links, self.overlap = group, links, overlap
        self._between = links.between
        self.programs = [program if overlap else program.in_turn() for program in group.programs]
        self.now = 0.0
        self._agenda: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._happenings: dict[Hashable, Happening] = defaultdict(Happening)
        self._out: dict[int, float] = defaultdict(float)  # when the link of a process is free again
        self._in: dict[int, float] = defaultdict(float)
        self._serving: dict[int, float] = defaultdict(float)  # when the servers' thread of a process is
        self._contributed: dict[Hashable, int] = defaultdict(int)
        self._exchanges: dict[Hashable, dict[int, tuple[float, float]]] = defaultdict(dict)  # see _exchange
        self._answers: dict[Hashable, list[list]] = defaultdict(list)  # piece -> packets that wait for it
        self._tenants: dict[int, list[int]] = defaultdict(list)
        for worker, home in enumerate(group.homes):
            self._tenants[home].append(worker)
        self._computing = [False] * len(group.programs)
        self._handling: dict[int, float] = defaultdict(float)  # until when a process handles messages
        self._lost = [0.0] * len(group.programs)  # seconds taken from a worker that computes
        self._worked = [0.0] * len(group.programs)  # seconds of computing since it last met others
        self.sent = [0] * len(group.programs)
        self.received = [0] * len(group.programs)
        self._ends = [0.0] * ITERATIONS

    def ends(self) -> list[float]:
        """Return when the last worker ended each iteration."""
        for worker, program in enumerate(self.programs):
            self._resume(self._work(worker, program))
        while self._agenda:
            self.now, _, action = heapq.heappop(self._agenda)
            action()
        assert not any(event.waiting for event in self._happenings.values()), "a worker waits for what nobody sends"
        return self._ends

    # -- what happens when --------------------------------------------------------------------------------------

    def _at(self, time: float, action: Callable[[], None]) -> None:
        heapq.heappush(self._agenda, (time, next(self._count), action))

    def _resume(self, process: Waiting) -> None:
        for wanted in process:
            if isinstance(wanted, float):
                self._at(self.now + wanted, lambda: self._resume(process))
                return
            if not wanted.done:
                wanted.waiting.append(lambda: self._resume(process))
                return

    def _happen(self, key: Hashable) -> None:
        event = self._happenings[key]
        event.done = True
        waiting, event.waiting = event.waiting, []
        for resume in waiting:
            resume()

    # -- a worker -----------------------------------------------------------------------------------------------

    def _work(self, worker: int, program: Program) -> Waiting:
        for iteration in range(ITERATIONS):
            for operation in program.operations:
                match operation:
                    case Compute(seconds):
                        yield from self._compute(worker, seconds)
                    case Send(other, key, size):
                        arrival = self._send(worker, other, (iteration, other, key), size)
                        if not self.overlap:
                            yield arrival
                    case Receive(key):
                        yield self._happenings[iteration, worker, key]
                        self._worked[worker] = 0.0
                    case Exchange(key, size):
                        self._exchange(worker, (iteration, key), size)
                    case Push(number):
                        yield from self._push(worker, iteration, number, program.packets[number])
                    case Await(number, before) if iteration >= before:
                        yield self._happenings[worker, number, iteration - before]
                        self._worked[worker] = 0.0
            self._ends[iteration] = max(self._ends[iteration], self.now)

    def _compute(self, worker: int, seconds: float) -> Waiting:
        home = self.group.homes[worker]
        seconds += max(0.0, self._handling[home] - self.now)
        self._computing[worker], self._lost[worker], self._handling[home] = True, 0.0, 0.0
        while seconds > 0:
            yield seconds
            self._worked[worker] += seconds
            seconds, self._lost[worker] = self._lost[worker], 0.0
        self._computing[worker] = False

    def _take(self, home: int, seconds: float) -> None:
        """Take time of the processor of a process: from those who compute there, else from who does so next."""
        tenants = self._tenants[home]
        computing = [worker for worker in tenants if self._computing[worker]]
        for worker in computing:
            self._lost[worker] += seconds / len(tenants)
        if not computing:
            self._handling[home] = max(self.now, self._handling[home]) + seconds

    def _late(self, worker: int, there: int) -> float:
        """Return how much later than its mean time says what a worker sends is seen in process ``there``."""
        late = self.links.late_inside if self.group.homes[worker] == there else self.links.late
        return late.seconds(self._worked[worker])

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, worker: int, other: int, key: Hashable, size: int) -> Happening:
        here, there = self.group.homes[worker], self.group.homes[other]
        if here != there:
            self.sent[worker] += size
            self.received[other] += size
        self._carry(here, there, size, lambda: self._happen(key), self._late(worker, there))
        return self._happenings[key]

    def _carry(self, here: int, there: int, size: int, arrive: Callable[[], None], late: float = 0.0) -> None:
        """Take ``size`` bytes from process to process: the link out, then the link in, both at once where free."""
        if here == there:
            self._at(self.now + self.links.inside.seconds(size) + late, arrive)
            return
        link = self._between
        seconds = size / link.bandwidth
        begins = max(self.now, self._out[here])
        self._out[here] = begins + seconds
        self._in[there] = max(begins + link.latency, self._in[there]) + seconds
        self._take(here, self.links.ends.seconds(size))
        self._take(there, self.links.ends.seconds(0 if self.links.mapped else size))
        self._at(self._in[there] + late, arrive)

    def _exchange(self, worker: int, key: tuple[int, str], size: int) -> None:
        """Send ``size`` bytes to each other worker; who is the last to do so brings it to an end for all.

        All links are equally busy both ways, so only the way out is looked at. Of each worker's part it is kept when
        that has arrived, for the worker itself and, as it may be late, for others.
        """
        home, link = self.group.homes[worker], self._between
        others = len(self.group.programs) - len(self._tenants[home])
        self.sent[worker] += others * size
        self.received[worker] += others * size
        begins = max(self.now, self._out[home])
        self._out[home] = self._in[home] = begins + others * size / link.bandwidth
        received = self.links.ends.seconds(0 if self.links.mapped else size)
        self._take(home, others * (self.links.ends.seconds(size) + received))
        arrival = max(self.now + self.links.inside.latency, self._out[home] + (link.latency if others else 0.0))
        ends = self._exchanges[key]
        ends[worker] = arrival, arrival + self._late(worker, -1 if others else home)
        if len(ends) == len(self.group.programs):
            iteration, name = key
            late = max(seen for _, seen in ends.values())
            for other, (own, seen) in ends.items():
                rest = max((one for k, (_, one) in ends.items() if k != other), default=own) if seen == late else late
                self._at(max(own, rest), lambda other=other: self._happen((iteration, other, name)))  # type: ignore[misc]

    # -- servers ------------------------------------------------------------------------------------------------

    def _push(self, worker: int, iteration: int, number: int, packet: Packet) -> Waiting:
        here, there = self.group.homes[worker], self.group.servers[packet.server]
        waiting = [len(packet.pieces), worker, number, iteration, packet]
        for piece in packet.pieces:
            self._answers[piece, iteration].append(waiting)
        if here == there:  # whoever brings the last contribution to a piece does the server's work, or all have done it
            yield from self._compute(worker, sum(self.group.pieces[piece].share for piece in packet.pieces))
            for piece, seconds in self._complete(packet.pieces, iteration):
                yield from self._compute(worker, seconds)
                self._answer(piece, iteration, worker)
        else:
            self.sent[worker] += packet.bytes
            self.received[worker] += packet.bytes
            if not self.links.mapped and packet.joining:
                yield from self._compute(worker, packet.joining)
            late = self._late(worker, there)
            self._carry(here, there, packet.bytes, lambda: self._serve(there, packet, iteration), late)

    def _complete(self, pieces: Iterable[Hashable], iteration: int) -> list[tuple[Hashable, float]]:
        done = []
        for piece in pieces:
            self._contributed[piece, iteration] += 1
            if self._contributed[piece, iteration] == self.group.pieces[piece].contributors:
                done.append((piece, self.group.pieces[piece].seconds))
        return done

    def _serve(self, home: int, packet: Packet, iteration: int) -> None:
        for piece, seconds in self._complete(packet.pieces, iteration):
            self._serving[home] = max(self.now, self._serving[home]) + seconds
            self._take(home, seconds)
            self._at(self._serving[home], lambda piece=piece: self._answer(piece, iteration))  # type: ignore[misc]

    def _answer(self, piece: Hashable, iteration: int, by: int | None = None) -> None:
        """Send the values of the packets that lacked nothing but ``piece``; ``by`` is the worker who updated it."""
        for waiting in self._answers.pop((piece, iteration)):
            waiting[0] -= 1
            missing, worker, number, of, packet = waiting
            if missing:
                continue
            key = (worker, number, of)
            if worker == by:
                self._happen(key)
            else:
                here, there = self.group.servers[packet.server], self.group.homes[worker]
                size = 0 if self.links.mapped else packet.bytes
                late = self._late(by, there) if by is not None and here == there else 0.0
                self._carry(here, there, size, lambda key=key: self._happen(key), late)  # type: ignore[misc]
