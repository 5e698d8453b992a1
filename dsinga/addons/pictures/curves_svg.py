"""Draws the curves of a run as SVG, without Matplotlib, for pages and notebooks."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from dsinga.addons.pictures.panels import DOTTED, Line, Point, step_text, thin
from dsinga.base.registry import register
from dsinga.monitor.rows import rows_of_metrics

COLOURS = {"train": "#0072b2", "val": "#009e73", "test": "#d55e00"}
OTHER_COLOUR = "#7f7f7f"
NAMES = "episode_return", "loss", "accuracy"  # the metrics that are drawn by default
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
PANEL_WIDTH, PANEL_HEIGHT = 380, 270  # pixels
AXIS_WIDTH, BOTTOM = 310, 222  # of the plotting area: its width, and its lower edge


class Scale(NamedTuple):
    """A linear map from values to pixels: ``low`` to ``start`` and ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel coordinate of a value."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


@register("drawing", "History")
def draw_curves(rows: Iterable[Mapping[str, Any]], names: Sequence[str] = NAMES) -> str:
    """Draw ``names`` by "step" as an SVG element: a panel for each name in ``rows``, a line for each phase.

    NaN and infinity leave a gap.
    """
    rows = list(rows)
    panels = {name: lines for name in names if (lines := lines_by_phase(rows, name))}
    label = f"{' and '.join(panels)} by step" if panels else "no rows yet"
    width = PANEL_WIDTH * max(len(panels), 1) + 20
    body = "".join(_panel(title, lines, PANEL_WIDTH * i + 10) for i, (title, lines) in enumerate(panels.items()))
    if not panels:
        body = f'<text x="{width / 2}" y="{PANEL_HEIGHT / 2}" text-anchor="middle" fill="#666">{label}</text>'
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {PANEL_HEIGHT}" width="{width}" '
        f'height="{PANEL_HEIGHT}" role="img" aria-label="{escape(label)}" font-family="{FONT}" font-size="11" '
        f'style="max-width:100%"><rect x="0.5" y="0.5" width="{width - 1}" height="{PANEL_HEIGHT - 1}" rx="6" '
        f'fill="#fff" stroke="#e2e2e2"/>{body}</svg>'
    )


def lines_by_phase(rows: Iterable[Mapping[str, Any]], name: str, x: str = "step") -> dict[str, Line]:
    """Return the points (x, value) with finite values of ``name`` for each phase: train, val, test, others."""
    lines: dict[str, list[Point]] = {phase: [] for phase in COLOURS}
    for row in rows_of_metrics(rows):
        if name in row and x in row:
            lines.setdefault(row["phase"], []).append((row[x], float(row[name])))
    return {
        phase: Line(points, COLOURS.get(phase, OTHER_COLOUR))
        for phase, points in lines.items()
        if any(math.isfinite(y) for _, y in points)
    }


def _panel(title: str, lines: Mapping[str, Line], edge: float) -> str:
    entries = [(f"{phase} {line.points[-1][1]:.4g}", line.colour) for phase, line in lines.items()]
    beside = 7.5 * len(title) + sum(6.2 * len(text) + 12 for text, _ in entries) <= AXIS_WIDTH
    left, top = edge + 46, 40 if beside else 28 + 15 * math.ceil(len(entries) / 3)
    steps, values = zip(*(point for line in lines.values() for point in line.points), strict=True)
    x_scale = _scale(steps, left, left + AXIS_WIDTH, margin=0)
    y_scale = _scale([y for y in values if math.isfinite(y)], BOTTOM, top, margin=0.05)
    return (
        f'<text x="{left}" y="24" font-size="13" font-weight="600" fill="#222">{escape(title)}</text>'
        + _legend(entries, left + AXIS_WIDTH, beside)
        + _axes(x_scale, y_scale)
        + "".join(_line(line, x_scale, y_scale) for line in lines.values())
    )


def _axes(x_scale: Scale, y_scale: Scale) -> str:
    left, right, parts = x_scale.start, x_scale.end, []
    for value in ticks(y_scale.low, y_scale.high, 7):
        y = y_scale(value)
        parts.append(f'<path d="M{left} {y:.1f}H{right}" stroke="#ececec"/>')
        parts.append(f'<text x="{left - 6}" y="{y + 3.5:.1f}" text-anchor="end" fill="#666">{value:.6g}</text>')
    for step in ticks(x_scale.low, x_scale.high, 6):
        if step >= 0 and not step % 1:
            x = f"{x_scale(step):.1f}"
            parts.append(f'<path d="M{x} {BOTTOM}v4" stroke="#999"/>')
            parts.append(f'<text x="{x}" y="{BOTTOM + 16}" text-anchor="middle" fill="#666">{step_text(step)}</text>')
    parts.append(f'<path d="M{left} {BOTTOM}H{right}" stroke="#999"/>')
    middle = (left + right) / 2
    return "".join([*parts, f'<text x="{middle}" y="{BOTTOM + 33}" text-anchor="middle" fill="#666">step</text>'])


def _legend(entries: Sequence[tuple[str, str]], right: float, beside: bool) -> str:
    parts, x = [], right
    for number, (text, colour) in enumerate(reversed(entries) if beside else entries):
        if not beside:
            x = right - (2 - number % 3) * 112
        y = 24 if beside else 39 + 15 * (number // 3)
        parts.append(f'<text x="{x:.0f}" y="{y:g}" text-anchor="end" fill="{colour}">{escape(text)}</text>')
        x -= 6.2 * len(text) + 12
    return "".join(parts)


def _line(line: Line, x_scale: Scale, y_scale: Scale) -> str:
    path, dots = "", ""
    for is_finite, stretch in itertools.groupby(line.points, key=lambda point: math.isfinite(point[1])):
        vertices = [f"{x_scale(x):.1f} {y_scale(y):.1f}" for x, y in thin([*stretch])] if is_finite else []
        path += "M" * is_finite + "L".join(vertices)
        if len(line.points) <= DOTTED:
            # A stroke of zero length with round ends is a dot.
            dots += "".join(f"M{vertex}h0" for vertex in vertices)
    stroke = f'fill="none" stroke="{line.colour}" stroke-linecap="round" stroke-linejoin="round"'
    return f'<path d="{path}" stroke-width="1.6" {stroke}/>' + (
        f'<path d="{dots}" stroke-width="4.5" {stroke}/>' if dots else ""
    )


def _scale(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    low, high = min(values), max(values)
    # A single value gets room on both sides.
    room = (high - low) * margin if low < high else abs(low) * 0.1 or 1.0
    return Scale(low - room, high + room, start, end)


def ticks(low: float, high: float, max_intervals: int) -> list[float]:
    """Return at most ``max_intervals + 1`` round ticks within [low, high], 1, 2 or 5 times a power of ten apart."""
    minimum = (high - low) / max_intervals
    power = 10.0 ** math.floor(math.log10(minimum))
    spacing = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= minimum * (1 - 1e-9))
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [i * spacing for i in range(first, last + 1)]
