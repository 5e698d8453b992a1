"""Drawing the curves of a run: a panel for each of a few metrics, such as the loss, with a line for each phase."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from dsinga.monitor.panels import Line, Panel, Point, draw_panels
from dsinga.monitor.rows import rows_of_metrics

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
