"""Runs each iteration as a Dask task graph, with a task for each segment (a part) of a worker's iteration.

The dashboard then shows which layers run where, and which arrays workers exchange. Each task costs milliseconds, so
rounds are the default; both grains compute the same numbers.

An iteration's segments are the exchange with the servers, then the layers. A task's arguments are received arrays; it
returns arrays to send. The iteration runs in the worker's thread. It halts after the last array that a segment sends. A
segment that sends none halts before the next segment's first pass or received array.
"""

from __future__ import annotations

import concurrent.futures
import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dask._task_spec import Task, parse_input  # as in https://docs.dask.org/en/stable/spec.html
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import RunError, UserError
from dsinga.cluster.dask.run_tasks import TaskKey, steps_text, task_key, worker_text
from dsinga.cluster.on_workers.worker_actor import find_worker
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.run.group_rounds import ROUNDS, Grain
from dsinga.cluster.serial_executor import SerialExecutor
from dsinga.cluster.transport.message import flatten, restore
from dsinga.cluster.worker.config import RoundReport, WorkerKey
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.cutting.layer_segments import LayerPass, Segment, segments
from dsinga.job import AlgType, Job, Phase
from dsinga.layers.interface.context import Peers
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet

Iterate = Callable[[Peers], Any]


class Halt(NamedTuple):
    """The result of a segment (part of an iteration): the arrays to send, and after the last one the outcome."""

    sends: dict[str, Any]
    outcome: Any = None


class Stepper:
    """Runs a worker's iterations segment by segment, one task at a time.

    It implements :class:`Peers`. ``positions`` has the segment number of each layer pass.
    """

    def __init__(self, thread: SerialExecutor, positions: Mapping[LayerPass, int] | None = None):
        self._thread = thread
        self._resumed, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._running: concurrent.futures.Future[Any] | None = None
        self._received: dict[str, Any] = {}
        self._sends: dict[str, Any] = {}
        self._sends_left = 0  # until the segment ends; -1 for the last segment, which never halts
        self._segment = 0  # the number of the segment that runs
        self.positions = positions or {}
        self._closed: str | None = None

    def begin(self, iterate: Iterate) -> None:
        """Start the next iteration, computed by ``iterate``, before its segment 0."""
        assert self._running is None, "the iteration before has not ended"
        self._check_open()
        self._running = self._thread.submit(self._run, iterate)
        self._running.add_done_callback(lambda _: self._halted.release())

    def advance(self, number: int, received: Mapping[str, Any], sends: int, last: bool) -> Halt:
        """Run the next segment of an iteration until it halts; return the arrays that it sends.

        Args:
            number: the segment's number.
            received: the arrays that the segment receives, by key.
            sends: the number of arrays that it sends. A segment without any halts before a pass of a later segment, or
                at an array not in ``received``.
            last: whether it is the last segment, which runs to the iteration's end.
        """
        assert self._running is not None, "no iteration has begun"
        self._check_open()
        self._segment = number
        self._received.update(received)
        self._sends, self._sends_left = {}, -1 if last else sends
        self._resumed.release()
        self._halted.acquire()
        if not self._running.done():
            self._check_open()
            return Halt(self._sends)
        running, self._running = self._running, None
        outcome = running.result()
        if not last:
            raise RunError("the iteration ended before its last segment; train with grain round")
        return Halt(self._sends, outcome)

    def send(self, location: int, key: str, array: Any) -> None:
        """Keep an array for the current task to return; halt after the segment's last one."""
        self._sends[key] = array
        self._sends_left -= 1
        if not self._sends_left:
            self._halt()

    def receive(self, key: str) -> Any:
        """Return an array that the task was given; if it is for the next segment, halt first."""
        if key not in self._received and not self._sends_left:
            self._halt()
        if key not in self._received:
            raise RunError(f"a segment needs {key!r}, which it does not receive; train with grain round")
        return self._received.pop(key)

    def observe(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Compute a layer's pass once its segment runs."""
        while self.positions.get(LayerPass(layer.name, name), 0) > self._segment:
            self._halt()
        return compute(*arguments)

    def close(self, message: str) -> None:
        """End a halted iteration, and later calls, with RunError(``message``)."""
        self._closed = message
        self._resumed.release()

    def _run(self, iterate: Iterate) -> Any:
        self._wait_for_task()
        return iterate(self)

    def _halt(self) -> None:
        self._halted.release()
        self._wait_for_task()

    def _wait_for_task(self) -> None:
        self._resumed.acquire()
        self._check_open()

    def _check_open(self) -> None:
        if self._closed:
            raise RunError(self._closed)


# The first segment waits for the records of the batch and for the values of the params, so that no layer does.
EXCHANGE = Segment("exchange", (), (), ())


def plan_iteration(net: NeuralNet) -> tuple[Segment, ...]:
    """Return the segments into which an iteration over one worker's net is divided."""
    return (EXCHANGE, *segments(net.fused)) if net.nodes else (EXCHANGE,)


def positions(plan: Sequence[Segment]) -> Mapping[LayerPass, int]:
    """Return the segment number of each layer pass of a plan."""
    return {layer_pass: number for number, segment in enumerate(plan) for layer_pass in segment.passes}


Plan = tuple[Stepper, NeuralNet, tuple[Segment, ...]]
# The stepper of each worker in this process that has run a segment, its net, and the segments of its iterations.
_STEPPERS: weakref.WeakKeyDictionary[GroupWorker, Plan] = weakref.WeakKeyDictionary()


@cleared_frames()
def run_segment(key: WorkerKey, step: int, number: int, halts: Sequence[Halt], token: Any) -> Halt:
    """Task: run segment ``number`` of a worker's iteration ``step``; return the arrays that it sends.

    It receives arrays of the segments that ended with ``halts``, and runs after the task ``token``.
    """
    worker = find_worker(key)
    stepper, plan = _stepper(worker, step)
    if number == 0:
        stepper.begin(functools.partial(worker.iterate, step, observer=stepper.observe))
    sent = {name: array for halt in halts for name, array in halt.sends.items()}
    received = {name: _restore(*sent[name]) for name in plan[number].receives}
    halt = stepper.advance(number, received, len(plan[number].sends), last=number == len(plan) - 1)
    return halt._replace(sends={name: flatten([array]) for name, array in halt.sends.items()})


@cleared_frames()
def report_round(key: WorkerKey, halts: Sequence[Halt], stop: int) -> RoundReport:
    """Task: return a worker's report on the iterations that ended with ``halts``."""
    outcomes = [halt.outcome for halt in halts]
    return RoundReport([metrics for metrics, _ in outcomes], [timing for _, timing in outcomes], stop)


def _restore(layouts: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """Return a received array, aligned and in its original memory layout."""
    arrays: Sequence[Any] = restore(layouts, iter(buffers))  # bridges send no sparse rows
    (array,) = arrays
    return array if array.flags.aligned else array.copy(order="K")


def _stepper(worker: GroupWorker, step: int) -> tuple[Stepper, tuple[Segment, ...]]:
    net = worker.net(Phase.kTrain).at(step)
    if worker not in _STEPPERS:
        stepper, planned = Stepper(worker.thread), None
        worker.on_abort.append(stepper.close)
    else:
        stepper, planned, plan = _STEPPERS[worker]
    if planned is not net:
        plan = plan_iteration(net)
        stepper.positions = positions(plan)
        _STEPPERS[worker] = stepper, net, plan
    return stepper, plan


# The largest number of iterations in one graph.
MAX_STEPS = 16


def _submit_round(run: ClusterRun, group: int, start: int, stop: int) -> list[Future]:
    plans: list[Sequence[Sequence[Segment]]] = []
    nets: list[NeuralNet] = []
    for step in range(start, stop):
        before, nets = nets, [local.at(step) for local in run.config.nets[Phase.kTrain].locals]
        plans.append(plans[-1] if before == nets else [plan_iteration(net) for net in nets])
    several = run.config.topology.groups > 1
    return run.workers.submit_graph(
        group, lambda client, keys, tokens: send_iterations(client, keys, plans, range(start, stop), tokens, several)
    )


def _check(job: Job) -> None:
    if job.skip_bad_batches:
        raise job.error("graph grain cannot skip batches; train with grain round", "skip_bad_batches")
    if job.updater.clip_global_norm:
        raise job.updater.error(
            "graph grain cannot clip the norm of all gradients; train with grain round", "clip_global_norm"
        )
    if job.micro_batches > 1:
        raise job.error("graph grain computes whole batches; train with grain round", "micro_batches")
    if job.train_one_batch.alg is not AlgType.kBP:
        raise job.train_one_batch.error("graph grain runs kBP only; train other algorithms with grain round", "alg")


GRAPHS = Grain(_submit_round, _check, MAX_STEPS)
_GRAINS = {"round": ROUNDS, "graph": GRAPHS}


def find_grain(name: str) -> Grain:
    """Return the way to send iterations to Dask with this name: "round" or "graph"."""
    if name not in _GRAINS:
        raise UserError(f"grain must be one of {', '.join(_GRAINS)}, not {name!r}")
    return _GRAINS[name]


def send_iterations(
    client: Client,
    keys: Sequence[WorkerKey],
    plans: Sequence[Sequence[Sequence[Segment]]],
    steps: range,
    tokens: Sequence[Future | None],
    several_groups: bool,
) -> list[Future]:
    """Send iterations of a worker group to Dask as one graph; return the reports' futures, one for each worker.

    ``plans`` has an iteration's segments for each step and partition. ``tokens`` has, for each partition, the task
    before its first segment, or None. With ``several_groups``, task names contain the group.
    """
    graph: dict[TaskKey, Task] = {}
    addresses: dict[TaskKey, list[str]] = {}

    def add(partition: int, words: str, when: str, task: Callable[..., Any], *arguments: Any) -> Any:
        key = keys[partition]
        name = task_key(words, key.run, when, worker_text(key, several_groups))
        graph[name] = Task(name, task, key, *map(parse_input, arguments))
        addresses[name] = [key.address]
        return graph[name].ref()

    def add_segment(partition: int, words: str, when: str, *arguments: Any) -> Any:
        return add(partition, words, when, run_segment, *arguments)

    previous: list[Any] = [*tokens]
    iteration_ends: list[list[Any]] = []
    for step, plans_of_step in zip(steps, plans, strict=True):
        previous = _add_iteration(add_segment, plans_of_step, step, previous)
        iteration_ends.append(previous)
    reports = [
        add(p, "report round", steps_text(steps.start, steps.stop), report_round, list(halts), steps.stop).key
        for p, halts in enumerate(zip(*iteration_ends, strict=True))
    ]
    # One message for all reports, because the scheduler unpacks and orders each message as a separate graph.
    layer = MaterializedLayer(graph, annotations={"workers": addresses.__getitem__})
    futures: list[Future] = client.get(HighLevelGraph({"": layer}, {"": set()}), reports, sync=False)
    return futures


def _add_iteration(
    add: Callable[..., Any], plans: Sequence[Sequence[Segment]], step: int, previous: Sequence[Any]
) -> list[Any]:
    """Add one iteration to a task graph; return the task of each partition's last segment.

    A segment runs after the partition's previous one (at first ``previous``) and after the segments that send its
    arrays. It gets all arrays of those segments, so that no array needs a separate task.
    """
    last = list(previous)
    senders: dict[str, Any] = {}  # the task that sends each array, by the array's key
    pending = [list(plan) for plan in plans]
    while any(pending):
        ready = [p for p, plan in enumerate(pending) if plan and all(key in senders for key in plan[0].receives)]
        assert ready, "the segments wait for each other"
        for p in ready:
            number, segment = len(plans[p]) - len(pending[p]), pending[p].pop(0)
            bridges = {sender.key: sender for sender in map(senders.pop, segment.receives)}
            when = f"step {step}, segment {number}"
            last[p] = add(p, segment.name, when, step, number, list(bridges.values()), last[p])
            senders.update(dict.fromkeys(segment.sends, last[p]))
    return last
