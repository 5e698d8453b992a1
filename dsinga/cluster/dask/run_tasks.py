"""Sends the tasks of a run to Dask workers, with keys that the dashboard shows, and sets the steps of a task.

Dask derives two names from a task's key. The *prefix* is the task's colour and name in the task stream: the key's first
item up to the first "-" before a number or eight hexadecimal digits. The *group* is the whole first item. The scheduler
keeps every prefix forever, a group until its tasks have gone. So "train round-1a2b3c4d" has the prefix "train round",
which all runs share.

The scheduler also keeps each span forever. Tasks without a span would get several new ones in a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import dask
from distributed import Client, Future

from dsinga.cluster.worker.config import WorkerKey

# The name of the span, and its id.
SPAN = "dsinga"
TaskKey = tuple[str, ...]

# How long a round should last: long beside the milliseconds that a task costs, short beside the time that a person
# waits for a progress line. A run of many workers has longer rounds, because the scheduler handles four messages for
# the task of each worker.
ROUND_SECONDS = 1.0
TASKS_PER_SECOND = 32


def task_key(words: str, run: str, *items: str) -> TaskKey:
    """Make a task's key that shows on the dashboard what it does for a run; ``items`` tell similar tasks apart."""
    return (f"{words.replace('-', '_')}-{run}", *filter(None, items))


def worker_text(key: WorkerKey, several_groups: bool) -> str:
    """Return a worker's name for keys: "worker 1", "worker 1 of group 0" or "... of generation 2"."""
    parts = [f"group {key.group}" if several_groups else "", generation_text(key.generation)]
    return f"worker {key.worker}" + "".join(f" of {part}" for part in parts if part)


def generation_text(generation: int) -> str:
    """Return a generation's name for keys, "" for the first one."""
    return f"generation {generation}" if generation else ""


def steps_text(start: int, stop: int) -> str:
    """Return the name of the steps ``start`` to ``stop`` - 1 for keys."""
    return f"steps {start} to {stop - 1}" if stop > start + 1 else f"step {start}"


@contextlib.contextmanager
def run_span(**annotations: Any) -> Iterator[None]:
    """Put tasks of the block into the Dask span of all runs, unless the caller has a span."""
    if "span" not in dask.get_annotations():
        annotations["span"] = {"name": (SPAN,), "ids": (SPAN,)}
    with dask.annotate(**annotations):
        yield


def submit_to(
    client: Client,
    address: str,
    task: Callable[..., Any],
    *arguments: Any,
    key: TaskKey | None = None,
    actor: bool = False,
    **annotations: Any,
) -> Future:
    """Send a task, or make an Actor, on the Dask worker at ``address`` only; return its future."""
    with run_span(**annotations):
        future: Future = client.submit(task, *arguments, workers=[address], pure=False, key=key, actor=actor)
        return future


def trim_span(scheduler: Any) -> None:
    """Drop tasks that have gone from the span of runs, which the scheduler keeps forever."""
    spans = scheduler.extensions.get("spans")
    span = spans.spans.get(SPAN) if spans else None
    if span is not None:
        span.groups.intersection_update(scheduler.task_groups.values())
        if span._metadata:
            del span._metadata["collections"][1:]


class RoundLength:
    """Learns how many steps a round should have to take about ``seconds``; at most ``most``.

    A round lasts at least a second for each 32 of the run's ``workers``. The attribute ``seconds`` is the next round's
    expected length, 0 before the first one.
    """

    def __init__(self, most: int | None = None, workers: int = 1, seconds: float = ROUND_SECONDS) -> None:
        self.steps = 1
        self.seconds = 0.0
        self.most = most
        self._target_seconds = max(seconds, workers / TASKS_PER_SECOND)

    def learn(self, seconds: Sequence[float]) -> None:
        """Adapt the number of steps to the seconds of a round's steps, gradually because first steps are slow."""
        per_step = sorted(seconds)[len(seconds) // 2]
        best_steps = max(1, int(self._target_seconds / max(per_step, 1e-6)))
        self.steps = min(best_steps, self.steps * 8, self.most or best_steps)
        self.seconds = self.steps * per_step
