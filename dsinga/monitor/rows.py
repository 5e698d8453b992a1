"""The rows of a history: their metrics and phases, and the curves of a few metrics, such as the loss, as SVG."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any

from dsinga.monitor.panels import Line, Panel, Point, draw_panels

# The columns of a row that are no metrics.
NOT_METRICS = frozenset({"step", "epoch", "phase", "time"})

# The phase of rows about Dask workers that were lost.
RECOVERY = "recovery"

# The beginning of the names of validations' metrics in rows of several phases, as in Keras.
VALIDATION_PREFIX = "val_"

Row = dict[str, Any]
"""One line of ``metrics.jsonl``: "step", "phase" ("train", "val", "test"), "time" in seconds, "loss", ...

Rows of a job with ``epochs`` also have "epoch", the number of epochs that are done.

A row of the phase "recovery" has no metrics: "lost" says which Dask worker was lost, "noticed" when, on the clock of
"time"; "steps_again" is how many steps were computed again, "seconds" how long it took until the next new step, and
"generation" how often the run has been placed since it began. "group" is the worker group that has started again, where
the others went on."""


def rows_of_metrics(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that have metrics, each of one phase.

    A row without "phase", as estimators have, becomes two: its columns "val_loss", ... are the "loss", ... of a row of
    the phase "val", the others are of the phase "train".
    """
    for row in rows:
        if "phase" in row:
            if row["phase"] != RECOVERY:
                yield row
            continue
        place = {name: row[name] for name in row if name in NOT_METRICS}
        metrics = {name: row[name] for name in row if name not in NOT_METRICS}
        validated = {name: value for name, value in metrics.items() if name.startswith(VALIDATION_PREFIX)}
        yield place | {"phase": "train"} | {name: metrics[name] for name in metrics if name not in validated}
        if validated:
            yield place | {"phase": "val"} | {k.removeprefix(VALIDATION_PREFIX): v for k, v in validated.items()}


def metric_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all metrics of rows that are numbers, in the order in which they first appear."""
    columns = ((name, value) for row in rows_of_metrics(rows) for name, value in row.items())
    return list(dict.fromkeys(k for k, v in columns if k not in NOT_METRICS and isinstance(v, Real)))


COLOURS = {"train": "#0072b2", "val": "#009e73", "test": "#d55e00"}
OTHER_COLOUR = "#7f7f7f"
NAMES = "episode_return", "loss", "accuracy"  # the metrics that are drawn by default


def draw_curves(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = NAMES) -> str:
    """Return an SVG element with a panel for each of ``names`` that occurs in ``rows``, and a line for each phase.

    The horizontal axis is "step". ``rows`` are mappings with "step", "phase" and numbers; values that are not finite
    leave a gap. Without any value the picture says "no rows yet".
    """
    rows = list(rows)
    panels = [Panel(name, lines) for name in names if (lines := lines_by_phase(rows, name))]
    titles = " and ".join(panel.title for panel in panels)
    return draw_panels(panels, f"{titles} by step" if panels else "no rows yet")


def lines_by_phase(rows: Iterable[Mapping[str, Any]], name: str, x: str = "step") -> dict[str, Line]:
    """Return a line of points (x, value) for each phase with finite values of ``name``: train, val, test, others."""
    lines: dict[str, list[Point]] = {phase: [] for phase in COLOURS}
    for row in rows_of_metrics(rows):
        if name in row and x in row:
            lines.setdefault(row["phase"], []).append((row[x], float(row[name])))
    return {
        phase: Line(points, COLOURS.get(phase, OTHER_COLOUR))
        for phase, points in lines.items()
        if any(math.isfinite(y) for _, y in points)
    }
