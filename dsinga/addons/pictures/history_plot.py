"""Draws metrics and returns of runs with Matplotlib."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.pictures.curves_svg import NAMES, lines_by_phase
from dsinga.addons.pictures.panels import DOTTED, Point, need_matplotlib, thin
from dsinga.base.errors import UserError
from dsinga.base.registry import implements, listed, nearest, register
from dsinga.monitor.rows import HistoryPlot, metric_names


def new_axes(count: int, columns: int, width: float, height: float) -> np.ndarray:
    """Create a figure with axes (rows, columns) for at least ``count`` plots; surplus axes are hidden.

    ``width`` and ``height`` are the inches of each.
    """
    need_matplotlib()
    import matplotlib.pyplot as plt

    columns = min(columns, count)
    rows = -(-count // columns)
    size = (width * columns, height * rows)
    _, axes = plt.subplots(rows, columns, figsize=size, squeeze=False, layout="constrained")
    for axis in axes.flat[count:]:
        axis.set_visible(False)
    return axes


def single_axes(ax: Any, width: float, height: float) -> Any:
    """Return ``ax``, or new axes of ``width`` x ``height`` inches if it is None."""
    return new_axes(1, 1, width, height)[0, 0] if ax is None else ax


COLUMNS, WIDTH, HEIGHT = 3, 4.0, 3.0  # axes in a row, and inches of each of the axes
RETURN = "episode_return"

Rows = Sequence[Mapping[str, Any]]


@register("drawing", "History.plot")
@implements(HistoryPlot)
def plot_history(
    rows: Rows, metrics: str | Sequence[str], *, x: str, label: str, ax: Any, line: Mapping[str, Any]
) -> Any:
    """Draw metrics of a history, as :meth:`dsinga.monitor.History.plot` describes; return the axes."""
    names = [metrics] if isinstance(metrics, str) else list(metrics) or _by_importance(metric_names(rows))
    if not names:
        raise UserError("the history has no metrics to draw; train for at least one step")
    for name in names:
        _check_columns(rows, name, x)
    if ax is None:
        axes = new_axes(len(names), COLUMNS, WIDTH, HEIGHT).ravel()[: len(names)]
    else:
        axes = np.atleast_1d(np.asarray(ax, object)).ravel()
    if len(axes) != len(names):
        raise UserError(f"ax has {len(axes)} axes for {len(names)} metrics ({', '.join(names)}); give axes for each")
    for name, axis in zip(names, axes, strict=True):
        _plot_metric(axis, rows, name, x, label, line)
    return axes[0] if isinstance(metrics, str) else axes


def plot_curves(curves: Mapping[str, Sequence[Point]], x: str, y: str, ax: Any = None) -> Any:
    """Draw named lines through (x, y); return the axes.

    ``x`` and ``y`` label the axes; the legend omits the name "". Long lines are thinned out.
    """
    ax = single_axes(ax, 6.0, HEIGHT)
    for name, points in curves.items():
        ax.plot(*zip(*thin(points), strict=True), label=name)
    ax.set(xlabel=x, ylabel=y)
    if any(curves):
        ax.legend()
    return ax


def plot_returns(results: Any, *, highest: float | None = None, ax: Any = None) -> Any:
    """Draw the returns of agents while they learn: means of the last episodes, and of evaluations.

    Args:
        results: the result of :func:`dsinga.rl.train`, or its history; or a mapping from names for the legend to these,
            which compares agents.
        highest: the environment's highest return, drawn as a horizontal line.
        ax: Matplotlib axes; new ones by default.

    Raises UserError if Matplotlib is missing, or no episode of a history has ended.
    """
    by_name = results if isinstance(results, Mapping) else {"": results}
    if not by_name:
        raise UserError("there are no results to draw; give what rl.train returns")
    histories = {name: r if isinstance(r, Sequence) else getattr(r, "history", r) for name, r in by_name.items()}
    for name, rows in histories.items():
        are_rows = isinstance(rows, Sequence) and all(isinstance(row, Mapping) for row in rows)
        if not are_rows or RETURN not in metric_names(rows):
            which = f"{name!r}" if name else "what is given"
            raise UserError(f"{which} has no returns of episodes: give what rl.train returns, after an episode's end")
    axis = single_axes(ax, 6.0, HEIGHT)
    for name, rows in histories.items():
        _plot_metric(axis, rows, RETURN, "step", name, {})
    if highest is not None:
        axis.axhline(highest, color="gray", linewidth=0.5, label="highest")
        axis.legend()
    axis.set(xlabel="steps of the environments", ylabel="return of an episode")
    return axis


def _by_importance(names: Sequence[str]) -> list[str]:
    return [name for name in NAMES if name in names] + [name for name in names if name not in NAMES]


def _check_columns(rows: Rows, name: str, x: str) -> None:
    metrics = metric_names(rows)
    if name not in metrics:
        phase, _, metric = name.partition("_")
        hint = f"; it is the line {phase!r} of {metric!r}" if metric in metrics else nearest(name, metrics)
        raise UserError(f"the history has no metric {name!r}{hint} (metrics: {listed(metrics)})")
    columns = list(dict.fromkeys(column for row in rows for column in row))
    if x not in columns:
        raise UserError(f"the history has no column {x!r}{nearest(x, columns)} (columns: {listed(columns)})")


def _plot_metric(axis: Any, rows: Rows, name: str, x: str, label: str, options: Mapping[str, Any]) -> None:
    lines = lines_by_phase(rows, name, x)
    for phase, line in lines.items():
        style: dict[str, Any] = {"marker": "." if len(line.points) <= DOTTED else ""}
        if label:
            style["label"] = label if len(lines) == 1 else f"{label}, {phase}"
        else:
            style |= {"label": phase, "color": line.colour}
        axis.plot(*zip(*line.points, strict=True), **style | {**options})
    axis.set(xlabel=x, ylabel=name)
    if lines:
        axis.legend()
