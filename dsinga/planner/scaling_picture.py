"""An SVG picture of speedup and efficiency against the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.monitor.panels import COLOURS, Line, Panel, draw_panels

IDEAL_COLOUR = "#bbbbbb"


def draw_scaling(speedups: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Return an SVG element with a panel of speedups and a panel of efficiencies.

    ``speedups`` are points (workers, speed as a multiple of one worker's) by strategy. A grey line shows the ideal
    speedup, which equals the number of workers.
    """
    most = max(workers for points in speedups.values() for workers, _ in points)
    colours = dict(zip(speedups, COLOURS, strict=False))
    lines = {name: Line(points, colours[name]) for name, points in speedups.items()}
    ideal = {"ideal": Line([(1, 1), (most, most)], IDEAL_COLOUR)} if most > 1 else {}
    efficiencies = {
        name: Line([(workers, speedup / workers) for workers, speedup in line.points], line.colour)
        for name, line in lines.items()
    }
    panels = [Panel("speedup", {**ideal, **lines}, "workers"), Panel("efficiency", efficiencies, "workers")]
    return draw_panels(panels, title)
