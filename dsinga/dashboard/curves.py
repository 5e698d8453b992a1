"""The curves of each panel, as plain numbers: what is drawn of a run, and how curves of one run are told apart."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from typing import NamedTuple

from dsinga.dashboard.records import RunRecord, Series


class Style(NamedTuple):
    """The line and the marker by which curves of one kind are told from those of another kind of the same run."""

    dash: str
    marker: str


class Curve(NamedTuple):
    """A curve of a run: its kind, a name of :data:`STYLES` or a group, and its points."""

    kind: str
    x: Sequence[float]
    y: Sequence[float]


STYLES = {
    "train": Style("solid", "circle"),
    "val": Style("dashed", "triangle"),
    "test": Style("dotted", "square"),
    "between processes": Style("solid", "circle"),
    "within one": Style("dashed", "triangle"),
    "group 0": Style("solid", "circle"),
    "group 1": Style("dashed", "triangle"),
    "group 2": Style("dotted", "square"),
    "group 3": Style("dashdot", "diamond"),
}
PLAIN = Style("solid", "circle")

# Returns the curves of a run; the second argument is the metric that the user has chosen.
Curves = Callable[[RunRecord, str], list[Curve]]


def loss_curves(record: RunRecord, metric: str = "loss") -> list[Curve]:
    """Return the loss of each phase over the steps; of training that of batches where the history has no rows of it."""
    return metric_curves(record, "loss")


def metric_curves(record: RunRecord, metric: str) -> list[Curve]:
    """Return a metric of each phase over the steps, as :func:`loss_curves` does."""
    curves = [Curve(phase, *series.columns()) for (phase, name), series in record.metrics.items() if name == metric]
    if metric in record.last_batches and not any(curve.kind == "train" for curve in curves):
        curves.insert(0, Curve("train", *record.last_batches[metric].columns()))
    return sorted(curves, key=lambda curve: [*STYLES].index(curve.kind) if curve.kind in STYLES else len(STYLES))


def metric_names(records: Sequence[RunRecord]) -> list[str]:
    """Return the names of the metrics of runs besides the loss, in the order in which they appear."""
    names: dict[str, None] = {}
    for record in records:
        names.update(dict.fromkeys(name for _, name in record.metrics))
        names.update(dict.fromkeys(record.last_batches))
    names.pop("loss", None)
    return list(names)


def speed_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return the samples a second over the time."""
    return [_over_time("", record.speed)]


def staleness_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return the mean staleness of the gradients of each worker group over the time; none of a synchronous run."""
    return [_over_time(f"group {group}", series) for group, series in sorted(record.staleness.items())]


def byte_curves(record: RunRecord, metric: str = "") -> list[Curve]:
    """Return the bytes a second over the time, between processes and within one."""
    return [_over_time("between processes", record.crossing), _over_time("within one", record.within)]


def _over_time(kind: str, series: Series) -> Curve:
    times, values = series.columns()
    if not times:
        return Curve(kind, times, values)
    first = bokeh_time(times[0])
    return Curve(kind, [first + 1e3 * (time - times[0]) for time in times], values)


def bokeh_time(seconds: float) -> float:
    """Return a time as axes of times take it: milliseconds since 1970, of the local time of the scheduler."""
    return 1e3 * (seconds + time.localtime(seconds).tm_gmtoff)
