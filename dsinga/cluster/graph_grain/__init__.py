"""Graph grain: each iteration as a Dask task graph, with a task for each segment of a worker's iteration.

The dashboard then shows which layers run where, and which arrays go from worker to worker. Each task costs
milliseconds, so rounds are the default; both compute the same numbers. The graph is created in the driver's process,
its tasks run in the processes of Dask workers. Other code gets it by its name
(:func:`find_grain`).
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from dask._task_spec import Task, parse_input  # as in https://docs.dask.org/en/stable/spec.html
from dask.highlevelgraph import HighLevelGraph, MaterializedLayer
from distributed import Client, Future

from dsinga.base.errors import UserError
from dsinga.cluster.dask.task_keys import TaskKey, steps_text, task_key, worker_text
from dsinga.cluster.graph_grain.tasks import plan_iteration, report_round, run_segment
from dsinga.cluster.run.cluster_run import ClusterRun
from dsinga.cluster.run.group_rounds import ROUNDS, Grain
from dsinga.cluster.worker.config import WorkerKey
from dsinga.job import AlgType, Job, Phase
from dsinga.net.segments import Segment

# The largest number of iterations in one graph.
MAX_STEPS = 16


def _submit_round(run: ClusterRun, group: int, start: int, stop: int) -> list[Future]:
    plans = [plan_iteration(local) for local in run.config.nets[Phase.kTrain].locals]
    several = run.config.topology.groups > 1
    return run.workers.submit_graph(
        group, lambda client, keys, tokens: send_iterations(client, keys, plans, range(start, stop), tokens, several)
    )


def _check(job: Job) -> None:
    """Raise JobError for a job that graph grain cannot run."""
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
    """Return the grain of that name: "round" or "graph". Raises UserError for any other name."""
    if name not in _GRAINS:
        raise UserError(f"grain must be one of {', '.join(_GRAINS)}, not {name!r}")
    return _GRAINS[name]


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
        name = task_key(words, key.run, when, worker_text(key, several_groups))
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
