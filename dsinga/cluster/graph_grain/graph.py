"""Graph grain: an iteration as a Dask task graph, a task for each segment of a partition, futures as bridges.

What the dashboard shows of it is what happens: which layers run where, and what goes from worker to worker. It costs
milliseconds a task, so rounds are the default; the numbers are the same.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from enum import Enum
from typing import Any

from dask._task_spec import Task, parse_input  # as in https://docs.dask.org/en/stable/spec.html
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dsinga.cluster.graph_grain.stepper import Halt
from dsinga.net.segments import Segment
from dsinga.worker.config import PartitionKey, RoundReport
from dsinga.worker.mailbox import pack, unpack


class Grain(Enum):
    """What is one task: a round of many iterations of a partition, or a segment of one iteration."""

    round = 0
    graph = 1


# Iterations that are sent as graphs at once.
GRAPHS_AHEAD = 16


def send_iterations(
    client: Client,
    keys: Sequence[PartitionKey],
    plans: Sequence[Sequence[Segment]],
    steps: range,
    tokens: Sequence[Future | None],
    run_segment: Callable[..., Halt],
    run: str,
) -> list[Future]:
    """Send off iterations of a worker group, each after the one before; return their reports, one a partition.

    Args:
        client: the cluster's.
        keys: the partitions of the group.
        plans: the segments of each partition.
        steps: the iterations.
        tokens: what the first segments must come after.
        run_segment: the task of a segment.
        run: what ends the names of tasks, so that no other task has them.
    """
    graph: dict[str, Task] = {}
    homes: dict[str, list[str]] = {}

    def add(partition: int, name: str, task: Callable[..., Any], *arguments: Any) -> Any:
        graph[name] = Task(name, task, keys[partition], *map(parse_input, arguments))
        homes[name] = [keys[partition].address]
        return graph[name].ref()

    def add_segment(partition: int, name: str, *arguments: Any) -> Any:
        return add(partition, name, run_segment, *arguments)

    after: list[Any] = [*tokens]
    ends: list[list[Any]] = []
    for step in steps:
        after = _add_iteration(add_segment, plans, step, after, run)
        ends.append(after)
    what = f"report_round-steps-{steps.start}-{steps.stop}"
    reports = [
        add(p, f"{what}-partition-{p}{run}", report_round, list(halts), steps.stop).key
        for p, halts in enumerate(zip(*ends, strict=True))
    ]
    # One message for all of them: for the scheduler each message is a graph, which it unpacks and orders in a thread.
    layer = MaterializedLayer(graph, annotations={"workers": homes.__getitem__})
    futures: list[Future] = client.get(HighLevelGraph({"": layer}, {"": set()}), reports, sync=False)
    return futures


def _add_iteration(
    add: Callable[..., Any], plans: Sequence[Sequence[Segment]], step: int, after: Sequence[Any], run: str
) -> list[Any]:
    """Add one iteration to a graph; return the last segments.

    A segment comes after the one before it and after those that send what it receives. It gets whole what they have
    sent, to others too: more bytes where there are more than two workers, but fewer tasks than one for each letter.
    """
    ends = list(after)
    senders: dict[str, Any] = {}
    left = [list(plan) for plan in plans]
    while any(left):
        ready = [p for p, plan in enumerate(left) if plan and all(key in senders for key in plan[0].receives)]
        assert ready, "the segments wait for each other"
        for p in ready:
            number, segment = len(plans[p]) - len(left[p]), left[p].pop(0)
            bridges = {sender.key: sender for sender in map(senders.pop, segment.receives)}
            ends[p] = add(p, f"{segment.name} @{p}{run}-{step}", step, number, list(bridges.values()), ends[p])
            senders.update(dict.fromkeys(segment.sends, ends[p]))
    return ends


def packed(halt: Halt) -> Halt:
    """Return where a segment has ended, with what it sends in a form that keeps its layout on the way."""
    return halt._replace(sends={key: pack(letter) for key, letter in halt.sends.items()})


def letters_of(halts: Sequence[Halt], wanted: Sequence[str]) -> dict[str, Any]:
    """Return those of the things sent by segments that ended so which are ``wanted``, as they were sent."""
    sent = {key: letter for halt in halts for key, letter in halt.sends.items()}
    return {key: unpack(*sent[key]) for key in wanted}


def report_round(key: PartitionKey, halts: Sequence[Halt], stop: int) -> RoundReport:
    """Task: the report of a partition on the iterations whose last segments these are."""
    outcomes = [halt.outcome for halt in halts]
    return RoundReport([metrics for metrics, _ in outcomes], [timing for _, timing in outcomes], stop)
