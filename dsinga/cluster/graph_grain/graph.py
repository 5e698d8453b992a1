"""Builds the Dask task graph of several iterations: a task for each segment of a worker's iteration."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._task_spec import Task, parse_input  # as in https://docs.dask.org/en/stable/spec.html
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dsinga.cluster.dask.task_keys import TaskKey, steps_words, task_key, worker_words
from dsinga.cluster.graph_grain.tasks import report_round, run_segment
from dsinga.net.segments import Segment
from dsinga.worker.config import WorkerKey


def send_iterations(
    client: Client,
    keys: Sequence[WorkerKey],
    plans: Sequence[Sequence[Segment]],
    steps: range,
    tokens: Sequence[Future | None],
    several_groups: bool,
) -> list[Future]:
    """Send iterations of a worker group to Dask as one graph; return the futures of the reports, one a worker.

    Args:
        client: the client of the cluster.
        keys: the keys of the group's partitions.
        plans: the segments of an iteration of each partition.
        steps: the numbers of the iterations, which run one after the other.
        tokens: the task of each partition after which its first segment runs, or None.
        several_groups: whether the run has several worker groups, so that the names of tasks tell which one it is.
    """
    graph: dict[TaskKey, Task] = {}
    addresses: dict[TaskKey, list[str]] = {}

    def add(partition: int, words: str, when: str, task: Callable[..., Any], *arguments: Any) -> Any:
        key = keys[partition]
        name = task_key(words, key.run, when, worker_words(key, several_groups))
        graph[name] = Task(name, task, key, *map(parse_input, arguments))
        addresses[name] = [key.address]
        return graph[name].ref()

    def add_segment(partition: int, words: str, when: str, *arguments: Any) -> Any:
        return add(partition, words, when, run_segment, *arguments)

    previous: list[Any] = [*tokens]
    iteration_ends: list[list[Any]] = []
    for step in steps:
        previous = _add_iteration(add_segment, plans, step, previous)
        iteration_ends.append(previous)
    reports = [
        add(p, "report round", steps_words(steps.start, steps.stop), report_round, list(halts), steps.stop).key
        for p, halts in enumerate(zip(*iteration_ends, strict=True))
    ]
    # One message for all reports, because the scheduler unpacks and orders each message as a separate graph.
    layer = MaterializedLayer(graph, annotations={"workers": addresses.__getitem__})
    futures: list[Future] = client.get(HighLevelGraph({"": layer}, {"": set()}), reports, sync=False)
    return futures


def _add_iteration(
    add: Callable[..., Any], plans: Sequence[Sequence[Segment]], step: int, previous: Sequence[Any]
) -> list[Any]:
    """Add one iteration to a graph; return the task of each partition's last segment.

    A segment runs after the partition's segment before (at first after ``previous``) and after the segments whose
    arrays it receives. It gets all arrays that these sent, also those for other partitions: with more than two
    partitions these are more bytes than needed, but no array needs a task of its own.
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
