"""Iterations as one Dask task graph: a task for each segment of a worker's iteration, futures as bridges."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._task_spec import Task, parse_input  # as in https://docs.dask.org/en/stable/spec.html
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dsinga.cluster.graph_grain.tasks import report_round, run_segment
from dsinga.net.segments import Segment
from dsinga.worker.config import PartitionKey


def send_iterations(
    client: Client,
    keys: Sequence[PartitionKey],
    plans: Sequence[Sequence[Segment]],
    steps: range,
    tokens: Sequence[Future | None],
    suffix: str,
) -> list[Future]:
    """Send iterations of a worker group as one graph; return the futures of their reports, one a worker.

    Args:
        client: the client of the cluster.
        keys: the partitions of the group.
        plans: the segments of each partition.
        steps: the iterations, each of which runs after the one before.
        tokens: tasks that the first segments must come after.
        suffix: the end of the tasks' names, which no other run has.
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
        after = _add_iteration(add_segment, plans, step, after, suffix)
        ends.append(after)
    what = f"report_round-steps-{steps.start}-{steps.stop}"
    reports = [
        add(p, f"{what}-partition-{p}{suffix}", report_round, list(halts), steps.stop).key
        for p, halts in enumerate(zip(*ends, strict=True))
    ]
    # One message for all reports: the scheduler unpacks and orders each message as a graph of its own.
    layer = MaterializedLayer(graph, annotations={"workers": homes.__getitem__})
    futures: list[Future] = client.get(HighLevelGraph({"": layer}, {"": set()}), reports, sync=False)
    return futures


def _add_iteration(
    add: Callable[..., Any], plans: Sequence[Sequence[Segment]], step: int, after: Sequence[Any], suffix: str
) -> list[Any]:
    """Add one iteration to a graph; return the last segments.

    A segment comes after the one before it and after those whose arrays it receives. It gets everything that these have
    sent, to other workers too: more bytes where there are more than two workers, but no task for each array.
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
            ends[p] = add(p, f"{segment.name} @{p}{suffix}-{step}", step, number, list(bridges.values()), ends[p])
            senders.update(dict.fromkeys(segment.sends, ends[p]))
    return ends
