"""Graph grain: an iteration as a Dask task graph, a task for each segment of a partition, futures as bridges.

What the dashboard shows of it is what happens: which layers run where, and what goes from worker to worker. It costs
milliseconds a task, so rounds are the default; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from enum import Enum
from typing import Any

from distributed import Future

from dsinga.cluster.mail import pack, unpack
from dsinga.cluster.setup import PartitionKey, RoundReport
from dsinga.cluster.stepper import Halt
from dsinga.net.segments import Segment


class Grain(Enum):
    """What is one task: a round of many iterations of a partition, or a segment of one iteration."""

    round = 0
    graph = 1


# Iterations that are sent as graphs at once.
GRAPHS_AHEAD = 16

# Sends a task to a partition: submit(partition, function, *arguments, key=...).
Submit = Callable[..., Future]


def send_iteration(
    submit: Submit, plans: Sequence[Sequence[Segment]], step: int, tokens: Sequence[Future | None], run_segment: Any
) -> list[Future]:
    """Send off one iteration of a worker group; return the last segment of each partition.

    ``plans`` are the segments of each partition, ``tokens`` what their first ones must come after. What a segment sends
    are tasks of their own, and the next segment comes after them: a worker with one thread must have handed on what
    others wait for before it may wait itself.
    """
    after: list[Any] = list(tokens)
    bridges: dict[str, Future] = {}
    left = [list(plan) for plan in plans]
    while any(left):
        ready = [p for p, plan in enumerate(left) if plan and all(key in bridges for key in plan[0].receives)]
        assert ready, "the segments wait for each other"
        for p in ready:
            number, segment = len(plans[p]) - len(left[p]), left[p].pop(0)
            letters = {key: bridges.pop(key) for key in segment.receives}
            last = not left[p]
            halt = submit(p, run_segment, step, number, letters, after[p], key=f"{segment.name} @{p}")
            sent = [submit(p, hand_on, halt, key, key=f"bridge {key}") for key in segment.sends]
            bridges.update(zip(segment.sends, sent, strict=True))
            after[p] = halt if last else [halt, *sent]
    return after


def hand_on(key: PartitionKey, halt: Halt, letter: str) -> Any:
    """Task: one thing that a segment sends, in a form that keeps its layout on the way."""
    return pack(halt.sends[letter])


def unpacked(letters: Mapping[str, Any]) -> dict[str, Any]:
    """Return what a segment receives, as it was sent."""
    return {key: unpack(*letter) for key, letter in letters.items()}


def report_round(key: PartitionKey, halts: Sequence[Halt], stop: int) -> RoundReport:
    """Task: the report of a partition on the iterations whose last segments these are."""
    outcomes = [halt.outcome for halt in halts]
    return RoundReport([metrics for metrics, _ in outcomes], [timing for _, timing in outcomes], stop)
