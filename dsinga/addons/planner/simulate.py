"""Simulates a synchronous group event by event: computing, messages and updates, overlapping or one by one.

Each process has a link that carries one message at a time in each direction. Servers' work and messages take processor
time from the workers of their process.
"""

from __future__ import annotations

import heapq
import itertools
from collections import defaultdict, deque
from collections.abc import Callable, Generator, Hashable, Iterable
from typing import NamedTuple

from dsinga.addons.planner.link import Links
from dsinga.addons.planner.program import (
    AllToAll,
    AwaitReply,
    Compute,
    GroupProgram,
    Packet,
    PushGradients,
    Receive,
    Send,
    WorkerProgram,
)

ITERATIONS = 3  # simulated; the first one is not counted

Process = Generator["float | Event", None, None]  # yields the seconds, or the event, that it waits for


class Event:
    """An event that happens once and then calls the functions ``waiting``."""

    def __init__(self) -> None:
        self.done = False
        self.waiting: list[Callable[[], None]] = []


class EventQueue:
    """Runs processes and actions in the order of simulated time, ``now`` in seconds."""

    def __init__(self) -> None:
        self.now = 0.0
        self._actions: list[tuple[float, int, Callable[[], None]]] = []
        self._count = itertools.count()
        self._events: dict[Hashable, Event] = defaultdict(Event)

    def at(self, time: float, action: Callable[[], None]) -> None:
        """Schedule ``action`` at a simulated time."""
        heapq.heappush(self._actions, (time, next(self._count), action))

    def event(self, key: Hashable) -> Event:
        """Return the event of a key; create it if necessary."""
        return self._events[key]

    def fire(self, key: Hashable) -> None:
        """Mark the event of a key as done, and resume the processes that wait for it."""
        event = self._events[key]
        event.done = True
        waiting, event.waiting = event.waiting, []
        for resume in waiting:
            resume()

    def resume(self, process: Process) -> None:
        """Run a process until it waits for time, or for an event that is not done."""
        for awaited in process:
            if isinstance(awaited, float):
                self.at(self.now + awaited, lambda: self.resume(process))
                return
            if not awaited.done:
                awaited.waiting.append(lambda: self.resume(process))
                return

    def run(self) -> None:
        """Run the simulation until nothing is left to do."""
        while self._actions:
            self.now, _, action = heapq.heappop(self._actions)
            action()
        waiting = any(event.waiting for event in self._events.values())
        assert not waiting, "a process waits for an event that never happens"


class Prediction(NamedTuple):
    """The predicted cost of an iteration: seconds, bytes sent and received, and bytes of memory.

    ``compute`` is the seconds of layers, ``update`` of updates in a worker's thread when it pushes. All but ``seconds``
    are the largest of any worker; only bytes between processes count.
    """

    seconds: float
    compute: float
    update: float
    sent: int
    received: int
    memory: int

    def computing(self, factor: float) -> Prediction:
        """Return the cost if layers computed for ``factor`` times as long."""
        compute = self.compute * factor
        return self._replace(seconds=self.seconds + compute - self.compute, compute=compute)


def simulate(group: GroupProgram, links: Links, overlap: bool = True) -> Prediction:
    """Predict the cost of an iteration of ``group``, once iterations repeat each other.

    Without ``overlap`` a worker waits for each message to arrive, and at the end for the servers.
    """
    simulation = _Simulation(group, links, overlap)
    ends = simulation.run()
    return Prediction(
        seconds=(ends[-1] - ends[0]) / (len(ends) - 1),
        compute=max(program.compute for program in group.programs),
        update=max(simulation.updated) / ITERATIONS,
        sent=max(simulation.sent) // ITERATIONS,
        received=max(simulation.received) // ITERATIONS,
        memory=max(program.memory for program in group.programs),
    )


class _Reply:
    def __init__(self, packet: Packet, worker: int, number: int, iteration: int):
        self.packet, self.worker = packet, worker
        self.event = (worker, number, iteration)
        self.missing = len(packet.keys)


class _Simulation:
    def __init__(self, group: GroupProgram, links: Links, overlap: bool):
        self.group, self.links, self.overlap = group, links, overlap
        self._between = links.between
        self.programs = [program if overlap else program.without_overlap() for program in group.programs]
        self.queue = EventQueue()
        self._sending_until: dict[int, float] = defaultdict(float)  # when a process's link out is free again
        # By process: the messages that wait for its link out, by the process that they are sent to.
        self._outgoing: dict[int, dict[int, deque[tuple[float, Callable[[], None], float]]]] = defaultdict(dict)
        self._sending: dict[int, bool] = defaultdict(bool)  # whether its link out is busy
        self._receiving_until: dict[int, float] = defaultdict(float)
        self._serving_until: dict[int, float] = defaultdict(float)  # when the servers' thread of a process is free
        self._contributions: dict[Hashable, int] = defaultdict(int)
        self._all_to_alls: dict[Hashable, dict[int, tuple[float, float]]] = defaultdict(dict)  # see _all_to_all
        self._replies: dict[Hashable, list[_Reply]] = defaultdict(list)  # by (key, iteration)
        self._workers_of: dict[int, list[int]] = defaultdict(list)  # by process
        for worker, process in enumerate(group.worker_processes):
            self._workers_of[process].append(worker)
        self._computing = [False] * len(group.programs)
        self._handling_until: dict[int, float] = defaultdict(float)  # until when a process handles messages
        self._delay = [0.0] * len(group.programs)  # seconds taken from a worker while it computes
        self._computed = [0.0] * len(group.programs)  # seconds of computing since the last wait for others
        self.updated = [0.0] * len(group.programs)  # seconds of updates by the workers themselves
        self.sent = [0] * len(group.programs)
        self.received = [0] * len(group.programs)
        self._ends = [0.0] * ITERATIONS

    def run(self) -> list[float]:
        for worker, program in enumerate(self.programs):
            self.queue.resume(self._work(worker, program))
        self.queue.run()
        return self._ends

    # -- a worker -----------------------------------------------------------------------------------------------

    def _work(self, worker: int, program: WorkerProgram) -> Process:
        for iteration in range(ITERATIONS):
            for operation in program.operations:
                match operation:
                    case Compute(seconds):
                        yield from self._compute(worker, seconds)
                    case Send(receiver, key, size):
                        arrival = self._send(worker, receiver, (iteration, receiver, key), size)
                        if not self.overlap:
                            yield arrival
                    case Receive(key):
                        yield self.queue.event((iteration, worker, key))
                        self._computed[worker] = 0.0
                    case AllToAll(key, size):
                        self._all_to_all(worker, (iteration, key), size)
                    case PushGradients(number):
                        yield from self._push(worker, iteration, number, program.packets[number])
                    case AwaitReply(number, before) if iteration >= before:
                        yield self.queue.event((worker, number, iteration - before))
                        self._computed[worker] = 0.0
            self._ends[iteration] = max(self._ends[iteration], self.queue.now)

    def _compute(self, worker: int, seconds: float) -> Process:
        process = self.group.worker_processes[worker]
        seconds += max(0.0, self._handling_until[process] - self.queue.now)
        self._computing[worker], self._delay[worker], self._handling_until[process] = True, 0.0, 0.0
        while seconds > 0:
            yield seconds
            self._computed[worker] += seconds
            seconds, self._delay[worker] = self._delay[worker], 0.0
        self._computing[worker] = False

    def _use_processor(self, process: int, seconds: float) -> None:
        workers = self._workers_of[process]
        computing = [worker for worker in workers if self._computing[worker]]
        for worker in computing:
            self._delay[worker] += seconds / len(workers)
        if not computing:
            self._handling_until[process] = max(self.queue.now, self._handling_until[process]) + seconds

    def _barrier_seconds(self, worker: int, process: int) -> float:
        """Return the delay of a worker's message to ``process``, since workers compute unequally fast."""
        inside = self.group.worker_processes[worker] == process
        cost = self.links.barrier_inside if inside else self.links.barrier_between
        return cost.seconds(self._computed[worker])

    # -- messages -----------------------------------------------------------------------------------------------

    def _send(self, worker: int, receiver: int, key: Hashable, size: int) -> Event:
        source, destination = self.group.worker_processes[worker], self.group.worker_processes[receiver]
        if source != destination:
            self.sent[worker] += size
            self.received[receiver] += size
        self._transmit(
            source, destination, size, lambda: self.queue.fire(key), self._barrier_seconds(worker, destination)
        )
        return self.queue.event(key)

    def _transmit(
        self, source: int, destination: int, size: int, arrive: Callable[[], None], late: float = 0.0
    ) -> None:
        if source == destination:
            self.queue.at(self.queue.now + self.links.inside.seconds(size) + late, arrive)
            return
        self._use_processor(source, self.links.ends.seconds(size))
        self._use_processor(destination, self.links.ends.seconds(0 if self.links.shared_memory else size))
        waiting = self._outgoing[source]
        waiting.setdefault(destination, deque()).append((size / self._between.bandwidth, arrive, late))
        if not self._sending[source]:
            self._sending[source] = True
            self._send_next(source)

    def _send_next(self, source: int) -> None:
        waiting = self._outgoing[source]
        if self._sending_until[source] > self.queue.now:
            self.queue.at(self._sending_until[source], lambda: self._send_next(source))
            return
        if not waiting:
            self._sending[source] = False
            return
        destination = next(iter(waiting))
        messages = waiting.pop(destination)
        seconds, arrive, late = messages.popleft()
        if messages:
            waiting[destination] = messages  # the last one in turn
        self._sending_until[source] = self.queue.now + seconds
        begins = max(self.queue.now + self._between.latency, self._receiving_until[destination])
        self._receiving_until[destination] = begins + seconds
        self.queue.at(self._receiving_until[destination] + late, arrive)
        self.queue.at(self._sending_until[source], lambda: self._send_next(source))

    def _all_to_all(self, worker: int, key: tuple[int, str], size: int) -> None:
        """Send ``size`` bytes to each other worker; the last worker's call determines all arrivals."""
        process, link = self.group.worker_processes[worker], self._between
        others = len(self.group.programs) - len(self._workers_of[process])
        self.sent[worker] += others * size
        self.received[worker] += others * size
        start = max(self.queue.now, self._sending_until[process])
        self._sending_until[process] = self._receiving_until[process] = start + others * size / link.bandwidth
        receiving = self.links.ends.seconds(0 if self.links.shared_memory else size)
        self._use_processor(process, others * (self.links.ends.seconds(size) + receiving))
        latency = link.latency if others else 0.0
        arrival = max(self.queue.now + self.links.inside.latency, self._sending_until[process] + latency)
        arrivals = self._all_to_alls[key]
        arrivals[worker] = arrival, arrival + self._barrier_seconds(worker, -1 if others else process)
        if len(arrivals) == len(self.group.programs):
            iteration, name = key
            last = max(seen for _, seen in arrivals.values())
            for receiver, (arrival, seen) in arrivals.items():
                from_others = last
                if seen == last:
                    from_others = max((late for k, (_, late) in arrivals.items() if k != receiver), default=arrival)
                event = (iteration, receiver, name)
                self.queue.at(max(arrival, from_others), lambda event=event: self.queue.fire(event))  # type: ignore[misc]

    # -- servers ------------------------------------------------------------------------------------------------

    def _push(self, worker: int, iteration: int, number: int, packet: Packet) -> Process:
        source, destination = self.group.worker_processes[worker], self.group.server_processes[packet.server]
        reply = _Reply(packet, worker, number, iteration)
        for key in packet.keys:
            self._replies[key, iteration].append(reply)
        if (
            source == destination
        ):  # a thread that pushes does the server's work: its share, or all of it if it is the last one
            share = sum(self.group.server_work[key].share for key in packet.keys)
            self.updated[worker] += share
            yield from self._compute(worker, share)
            for key, seconds in self._complete(packet.keys, iteration):
                self.updated[worker] += seconds
                yield from self._compute(worker, seconds)
                self._reply(key, iteration, worker)
        else:
            self.sent[worker] += packet.bytes
            self.received[worker] += packet.reply_bytes
            if not self.links.shared_memory and packet.join_seconds:
                yield from self._compute(worker, packet.join_seconds)
            late = self._barrier_seconds(worker, destination)
            self._transmit(source, destination, packet.bytes, lambda: self._serve(destination, packet, iteration), late)

    def _complete(self, keys: Iterable[Hashable], iteration: int) -> list[tuple[Hashable, float]]:
        complete = []
        for key in keys:
            self._contributions[key, iteration] += 1
            if self._contributions[key, iteration] == self.group.server_work[key].contributors:
                complete.append((key, self.group.server_work[key].seconds))
        return complete

    def _serve(self, process: int, packet: Packet, iteration: int) -> None:
        for key, seconds in self._complete(packet.keys, iteration):
            self._serving_until[process] = max(self.queue.now, self._serving_until[process]) + seconds
            self._use_processor(process, seconds)
            self.queue.at(self._serving_until[process], lambda key=key: self._reply(key, iteration))  # type: ignore[misc]

    def _reply(self, key: Hashable, iteration: int, updater: int | None = None) -> None:
        for reply in self._replies.pop((key, iteration)):
            reply.missing -= 1
            if reply.missing:
                continue
            if reply.worker == updater:
                self.queue.fire(reply.event)
            else:
                source = self.group.server_processes[reply.packet.server]
                destination = self.group.worker_processes[reply.worker]
                size = 0 if self.links.shared_memory else reply.packet.reply_bytes
                late = (
                    self._barrier_seconds(updater, destination)
                    if updater is not None and source == destination
                    else 0.0
                )
                self._transmit(source, destination, size, lambda event=reply.event: self.queue.fire(event), late)  # type: ignore[misc]
