"""Speedup and efficiency against the number of workers, as one small SVG."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.monitor.panels import COLOURS, Line, Panel, draw_panels

IDEAL = "#bbbbbb"


def draw_scaling(speedups: Mapping[str, Sequence[tuple[int, float]]], title: str) -> str:
    """Return an SVG element with the speedups, (workers, times the speed of one) by strategy, and the efficiencies.

    A grey line is as many times as fast as there are workers.
    """
    most = max(workers for points in speedups.values() for workers, _ in points)
    colours = dict(zip(speedups, COLOURS, strict=False))
    faster = {name: Line(points, colours[name]) for name, points in speedups.items()}
    ideal = {"ideal": Line([(1, 1), (most, most)], IDEAL)} if most > 1 else {}
    shares = {name: Line([(n, figure / n) for n, figure in line.points], line.colour) for name, line in faster.items()}
    panels = [Panel("speedup", {**ideal, **faster}, "workers"), Panel("efficiency", shares, "workers")]
    return draw_panels(panels, title)
