"""A dask array whose blocks are computed of boxes of other dask arrays, each by one task that takes their chunks."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from itertools import product
from typing import Any, NamedTuple

import dask.array as da
import numpy as np
from dask._task_spec import List, Task, TaskRef
from dask.highlevelgraph import HighLevelGraph

Box = tuple[np.ndarray, ...]  # the points of an array along each of its axes; -1 for points that it lacks


class BlockPlan(NamedTuple):
    """One block of the result: its index, the box of each array that it is computed of, and plain arguments."""

    index: tuple[int, ...]
    boxes: Mapping[str, Box]
    arguments: tuple[Any, ...] = ()


class _Run(NamedTuple):
    """Neighbouring points of a box along an axis that are in one chunk: where they go, and where they are in it."""

    chunk: int
    target: slice
    source: slice


def map_boxes(
    function: Callable[..., np.ndarray],
    shared: Any,
    arrays: Mapping[str, da.Array],
    plans: Iterable[BlockPlan],
    chunks: tuple[tuple[int, ...], ...],
    dtype: Any,
    name: str,
) -> da.Array:
    """Return the dask array whose blocks are ``function(shared, boxes, *arguments)``, numpy arrays.

    ``boxes`` are numpy arrays by name; points that an array lacks are NaN, 0 in an array of integers. ``shared`` is a
    delayed object, which Dask sends to each worker once, and ``name`` that of the result, unique to its contents.
    Each block is one task, which depends on the chunks that its boxes overlap and on nothing else: so Dask computes it
    where these are, and keeps no copy of a box.
    """
    starts = {key: [np.cumsum((0, *sizes)) for sizes in array.chunks] for key, array in arrays.items()}
    layer = {}
    for plan in plans:
        boxes, keys = {}, []
        for key, box in plan.boxes.items():
            runs = [_runs(points, bounds) for points, bounds in zip(box, starts[key], strict=True)]
            pieces = list(product(*runs))
            keys += [TaskRef((arrays[key].name, *(run.chunk for run in piece))) for piece in pieces]
            slices = [([run.target for run in piece], [run.source for run in piece]) for piece in pieces]
            boxes[key] = (tuple(len(points) for points in box), arrays[key].dtype, slices)
        task_key = (name, *plan.index)
        layer[task_key] = Task(
            task_key, _compute_block, function, TaskRef(shared.key), List(*keys), boxes, plan.arguments
        )
    graph = HighLevelGraph.from_collections(name, layer, dependencies=[shared, *arrays.values()])
    return da.Array(graph, name, chunks, dtype=dtype, meta=np.empty((0,) * len(chunks), dtype))


def _compute_block(
    function: Callable[..., np.ndarray],
    shared: Any,
    chunks: Sequence[Any],
    boxes: Mapping[str, tuple[tuple[int, ...], np.dtype, list[tuple[list[slice], list[slice]]]]],
    arguments: tuple[Any, ...],
) -> np.ndarray:
    """Task: one block of the result."""
    filled, remaining = {}, iter(chunks)
    for key, (shape, dtype, slices) in boxes.items():
        box = np.full(shape, np.nan if dtype.kind == "f" else 0, dtype)
        for target, source in slices:
            box[tuple(target)] = np.asarray(next(remaining))[tuple(source)]
        filled[key] = box
    return function(shared, filled, *arguments)


def _runs(points: np.ndarray, bounds: np.ndarray) -> list[_Run]:
    """Return the runs of ``points`` along an axis with chunks between ``bounds``; points of -1 are in none."""
    chunks = np.searchsorted(bounds, points, side="right") - 1
    steps = np.diff(points)
    runs, start = [], 0
    while start < len(points):
        if points[start] < 0:
            start += 1
            continue
        stop, step = start + 1, 1
        if stop < len(points) and chunks[stop] == chunks[start] and abs(steps[start]) <= 1 and points[stop] >= 0:
            step = int(steps[start])
            while stop < len(points) and chunks[stop] == chunks[start] and steps[stop - 1] == step:
                stop += 1
        first = int(points[start] - bounds[chunks[start]])
        runs.append(_Run(int(chunks[start]), slice(start, stop), _slice(first, stop - start, step)))
        start = stop
    return runs


def _slice(first: int, count: int, step: int) -> slice:
    """Return the slice of ``count`` points from ``first`` on; of one point, which is broadcast, where ``step`` is 0."""
    if step == 0:
        return slice(first, first + 1)
    end = first + count * step
    return slice(first, end if end >= 0 else None, step)
