"""Tasks of graph grain: one segment of a worker's iteration, run by its stepper, and the report of a round.

The segments of an iteration are the exchange with the servers, then layers. The training algorithm is the same as in
round grain; only its peers differ, and an observer sees each pass of a layer. Arrays that it sends are kept until the
task returns them, and arrays that it receives were passed to the task as arguments. The iteration halts after the last
array that a segment sends, or, if the segment sends none, before the first layer's pass or the first received array of
the next segment, until the next task runs. It runs in the worker's thread, which is idle while no task of this worker
runs.
"""

from __future__ import annotations

import functools
import threading
import weakref
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from typing import Any, NamedTuple

from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import RunError
from dsinga.base.serial_executor import SerialExecutor
from dsinga.cluster.on_workers.worker_actor import find_worker
from dsinga.cluster.transport.message import flatten, restore
from dsinga.cluster.worker.config import RoundReport, WorkerKey
from dsinga.cluster.worker.group_worker import GroupWorker
from dsinga.job import Phase
from dsinga.layers.interface.context import Peers
from dsinga.layers.interface.layer import Layer
from dsinga.net import NeuralNet
from dsinga.net.segments import LayerPass, Segment, segments

Iterate = Callable[[Peers], Any]


class Halt(NamedTuple):
    """The result of a segment: the arrays that it sends, by key, and the iteration's outcome after the last segment."""

    sends: dict[str, Any]
    outcome: Any = None


class Stepper:
    """Runs iterations segment by segment, and implements :class:`Peers` for them. Used by one task at a time.

    :meth:`observe` is the :class:`dsinga.layers.interface.context.PassObserver` of the iterations. ``positions`` has
    the number of the segment of each pass of a layer.
    """

    def __init__(self, thread: SerialExecutor, positions: Mapping[LayerPass, int] | None = None):
        self._thread = thread
        self._resumed, self._halted = threading.Semaphore(0), threading.Semaphore(0)
        self._running: Future[Any] | None = None
        self._received: dict[str, Any] = {}
        self._sends: dict[str, Any] = {}
        self._sends_left = 0  # until the segment ends; -1 for the last segment, which never halts
        self._segment = 0  # the number of the segment that runs
        self._positions = positions or {}
        self._closed: str | None = None

    def begin(self, iterate: Iterate) -> None:
        """Set the function that computes the next iteration; it starts with the first segment, of number 0."""
        assert self._running is None, "the iteration before has not ended"
        self._check_open()
        self._running = self._thread.submit(self._run, iterate)
        self._running.add_done_callback(lambda _: self._halted.release())

    def advance(self, number: int, received: Mapping[str, Any], sends: int, last: bool) -> Halt:
        """Run the next segment until it halts.

        Args:
            number: the number of the segment.
            received: the arrays that the segment receives, by key.
            sends: the number of arrays that it sends; a segment without any halts where it receives something that is
                not in ``received``, or where a pass belongs to a later segment.
            last: whether it is the last segment, which runs to the end of the iteration.

        Raises the error of the iteration, and RunError once the stepper is closed.
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
        """Keep an array, which the present task returns; halt after the last one of the segment."""
        self._sends[key] = array
        self._sends_left -= 1
        if not self._sends_left:
            self._halt()

    def receive(self, key: str) -> Any:
        """Return an array that the present task was given; halt first where that is for the next segment."""
        if key not in self._received and not self._sends_left:
            self._halt()
        if key not in self._received:
            raise RunError(f"a segment needs {key!r}, which it does not receive; train with grain round")
        return self._received.pop(key)

    def observe(self, layer: Layer, name: str, compute: Callable[..., Any], *arguments: Any) -> Any:
        """Return ``compute(*arguments)``, the pass ``name`` of a layer, when its segment runs."""
        while self._positions.get(LayerPass(layer.name, name), 0) > self._segment:
            self._halt()
        return compute(*arguments)

    def close(self, message: str) -> None:
        """End a halted iteration with RunError(``message``), which later calls raise, too."""
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
    """Return the segments of one iteration of back-propagation over the net of one worker, which may have no layers."""
    return (EXCHANGE, *segments(net.fused)) if net.nodes else (EXCHANGE,)


def positions(plan: Sequence[Segment]) -> Mapping[LayerPass, int]:
    """Return the number of the segment to which each pass of a layer belongs."""
    return {layer_pass: number for number, segment in enumerate(plan) for layer_pass in segment.passes}


# The stepper of each worker in this process that has run a segment, and the segments of its iterations.
_STEPPERS: weakref.WeakKeyDictionary[GroupWorker, tuple[Stepper, tuple[Segment, ...]]] = weakref.WeakKeyDictionary()


@cleared_frames()
def run_segment(key: WorkerKey, step: int, number: int, halts: Sequence[Halt], token: Any) -> Halt:
    """Task: run segment ``number`` of a worker's iteration ``step``; return the arrays that it sends.

    The segment receives arrays of the segments that ended with ``halts``. It runs after the task ``token``. Arrays are
    sent with a description of their memory layout (:mod:`dsinga.cluster.transport.message`), which Dask would not
    preserve.
    """
    worker = find_worker(key)
    stepper, plan = _stepper(worker)
    if number == 0:
        stepper.begin(functools.partial(worker.iterate, step, observer=stepper.observe))
    sent = {name: array for halt in halts for name, array in halt.sends.items()}
    received = {name: _restore(*sent[name]) for name in plan[number].receives}
    halt = stepper.advance(number, received, len(plan[number].sends), last=number == len(plan) - 1)
    return halt._replace(sends={name: flatten([array]) for name, array in halt.sends.items()})


@cleared_frames()
def report_round(key: WorkerKey, halts: Sequence[Halt], stop: int) -> RoundReport:
    """Task: return a worker's report on the iterations whose last segments ended with ``halts``."""
    outcomes = [halt.outcome for halt in halts]
    return RoundReport([metrics for metrics, _ in outcomes], [timing for _, timing in outcomes], stop)


def _restore(layouts: Sequence[Any], buffers: Sequence[Any]) -> Any:
    """Return the array that :func:`dsinga.cluster.transport.message.flatten` described, aligned, in the same layout.

    Dask's frames begin at any byte, and numpy computes products of arrays that are not aligned in another order, which
    gives other bits.
    """
    arrays: Sequence[Any] = restore(layouts, iter(buffers))  # bridges send no sparse rows
    (array,) = arrays
    return array if array.flags.aligned else array.copy(order="K")


def _stepper(worker: GroupWorker) -> tuple[Stepper, tuple[Segment, ...]]:
    """Return the stepper of a worker and the segments of its iterations, created with the first segment."""
    if worker not in _STEPPERS:
        plan = plan_iteration(worker.net(Phase.kTrain))
        stepper = Stepper(worker.thread, positions(plan))
        worker.on_abort.append(stepper.close)
        _STEPPERS[worker] = stepper, plan
    return _STEPPERS[worker]
