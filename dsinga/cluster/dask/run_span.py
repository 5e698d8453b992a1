"""The span, a named group of tasks in Dask's scheduler, to which the tasks of all runs belong.

Dask counts tasks by spans and keeps each for as long as the scheduler lives, with its groups of tasks. Tasks without
a span get one of their own whenever all tasks before them have ended, which is several times in a run.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

import dask

# The name of the span, and its id.
SPAN = "dsinga"


@contextlib.contextmanager
def run_span(**annotations: Any) -> Iterator[None]:
    """Let tasks that are sent in the block belong to the span of runs, unless the caller has a span of its own.

    ``annotations`` are others of these tasks.
    """
    if "span" not in dask.get_annotations():
        annotations["span"] = {"name": (SPAN,), "ids": (SPAN,)}
    with dask.annotate(**annotations):
        yield


def trim_span(scheduler: Any) -> None:
    """Let the span of runs drop the groups of tasks that have gone, and the descriptions of what was sent."""
    spans = scheduler.extensions.get("spans")
    span = spans.spans.get(SPAN) if spans else None
    if span is not None:
        span.groups.intersection_update(scheduler.task_groups.values())
        if span._metadata:
            del span._metadata["collections"][1:]
