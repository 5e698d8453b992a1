"""Tasks of graph grain: one segment of a worker's iteration, and the report of a round.

The segments of an iteration are the exchange with the servers, then layers.
"""

from __future__ import annotations

import functools
import weakref
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.cluster.dask.error_frames import cleared_frames
from dsinga.cluster.graph_grain.stepper import Halt, Stepper
from dsinga.cluster.on_workers.worker_actor import find_worker
from dsinga.job import Phase
from dsinga.net import NeuralNet
from dsinga.net.segments import LayerPass, Segment, segments
from dsinga.transport.message import flatten, restore
from dsinga.worker.config import RoundReport, WorkerKey
from dsinga.worker.group_worker import GroupWorker

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
    sent with a description of their memory layout (:mod:`dsinga.transport.message`), which Dask would not preserve.
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
    """Return the array that :func:`dsinga.transport.message.flatten` described, aligned, in the same layout.

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
