"""Tasks of graph grain: one segment of a worker's iteration, and the report of a round."""

from __future__ import annotations

import functools
import weakref
from collections.abc import Sequence
from typing import Any

from dsinga.cluster.graph_grain.stepper import Halt, Stepper
from dsinga.cluster.tasks import find_worker
from dsinga.job import Phase
from dsinga.net.segments import Segment, segments
from dsinga.worker.config import PartitionKey, RoundReport
from dsinga.worker.group_worker import GroupWorker
from dsinga.worker.mailbox import pack, unpack

# The stepper and the segments of an iteration of each worker in this process that has run a segment.
_STEPPERS: weakref.WeakKeyDictionary[GroupWorker, tuple[Stepper, tuple[Segment, ...]]] = weakref.WeakKeyDictionary()


def run_segment(key: PartitionKey, step: int, number: int, halts: Sequence[Halt], token: Any) -> Halt:
    """Task: run segment ``number`` of a worker's iteration ``step``; return the arrays that it sends.

    It receives arrays from the segments that ended with ``halts``, and runs after the task ``token``. Arrays travel
    with their memory layout (:func:`dsinga.worker.mailbox.pack`).
    """
    worker = find_worker(key)
    stepper, plan = _stepper(worker)
    if number == 0:
        stepper.begin(functools.partial(worker.iterate, step))
    sent = {name: array for halt in halts for name, array in halt.sends.items()}
    received = {name: unpack(*sent[name]) for name in plan[number].receives}
    halt = stepper.advance(received, len(plan[number].sends), last=number == len(plan) - 1)
    return halt._replace(sends={name: pack(array) for name, array in halt.sends.items()})


def report_round(key: PartitionKey, halts: Sequence[Halt], stop: int) -> RoundReport:
    """Task: return a worker's report on the iterations whose last segments ended with ``halts``."""
    outcomes = [halt.outcome for halt in halts]
    return RoundReport([metrics for metrics, _ in outcomes], [timing for _, timing in outcomes], stop)


def _stepper(worker: GroupWorker) -> tuple[Stepper, tuple[Segment, ...]]:
    if worker not in _STEPPERS:
        stepper = Stepper(worker.thread)
        worker.on_abort.append(stepper.close)
        _STEPPERS[worker] = stepper, segments(worker.net(Phase.kTrain))
    return _STEPPERS[worker]
