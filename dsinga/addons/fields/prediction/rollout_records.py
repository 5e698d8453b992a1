"""Predicts several leads for a Dataset's windows, one record each, in bounded memory."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.fields.prediction.field_prediction import find_windows, predict_windows
from dsinga.addons.fields.records.prediction_windows import PredictionWindows
from dsinga.base.arrays import ParamArrays
from dsinga.data import FieldWindows
from dsinga.job import Job, Phase

PART_BYTES = 1 << 28  # of predictions that are in memory at a time, but for a block of tasks


def rollout_records(
    job: Job,
    params: ParamArrays,
    layer: str,
    windows: FieldWindows,
    phase: Phase,
    roots: Sequence[str],
    compute: Callable[[Sequence[Any]], Sequence[np.ndarray]],
) -> Iterator[np.ndarray]:
    """Yield predictions of windows in order, each lead fed with earlier ones: (n, leads * C, *space) float32.

    The numbers equal the result of :func:`dsinga.predict_lazily` with ``leads``. At most PART_BYTES of them, or one
    block of tasks, are in memory at a time.
    """
    assert windows.leads is not None, "of windows with one lead the net gives all"
    positions = windows.positions(np.arange(len(windows)))
    starts = {dim: np.unique(points) for dim, points in positions.items()}
    slowest = next((dim for dim, points in starts.items() if len(points) > 1), next(iter(starts)))  # of their order
    whole = find_windows(windows.dataset, windows.definition, windows.leads.leads, starts=starts)
    sizes = {axis.name: len(axis.starts) for axis in whole.samples}
    sizes |= {"": windows.leads.leads * windows.leads.channels, **{axis.name: axis.length for axis in whole.space}}
    most = max(1, PART_BYTES * sizes[slowest] // (4 * math.prod(sizes.values())))
    whole, leads = predict_windows(job, params, layer, whole, phase, roots, windows.leads.leads, most=most)
    places = positions | {axis.name: np.searchsorted(axis.starts, positions[axis.name]) for axis in whole.samples}
    axis, length, first = list(sizes).index(slowest), sizes[slowest], 0
    for low, stop in _ranges(leads[0].chunks[axis], most):
        last = int(np.searchsorted(places[slowest], stop))
        if last == first:
            continue
        rows, high = {dim: place[first:last] for dim, place in places.items()}, stop
        if slowest in windows.layout.space:
            high = int(rows[slowest][-1]) + windows.layout.axes[slowest].target_size
            low, high = (low, high) if high <= length else (0, length)  # which goes on at the other end
        parts = [lead[(slice(None),) * axis + (slice(low, high),)] for lead in leads]
        yield _records(windows, whole, compute(parts), rows | {slowest: rows[slowest] - low})
        first = last


def _ranges(chunks: Sequence[int], most: int) -> Iterator[tuple[int, int]]:
    start = stop = 0
    for size in chunks:
        if start < stop and stop + size - start > most:
            yield start, stop
            start = stop
        stop += size
    yield start, stop


def _records(
    windows: FieldWindows, whole: PredictionWindows, leads: Sequence[np.ndarray], places: Mapping[str, np.ndarray]
) -> np.ndarray:
    space, records = [windows.layout.axes[axis.name] for axis in whole.space], []
    for row in range(len(next(iter(places.values())))):
        samples = tuple(int(places[axis.name][row]) for axis in whole.samples)
        points = [
            (int(places[axis.name][row]) + np.arange(axis.target_size)) % length
            for axis, length in zip(space, leads[0].shape[len(samples) + 1 :], strict=True)
        ]
        channels = np.arange(leads[0].shape[len(samples)])
        records.append(np.concatenate([lead[samples][np.ix_(channels, *points)] for lead in leads]))
    return np.stack(records)
