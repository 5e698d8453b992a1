"""Draws panels of lines as an SVG: axes with round numbers, and a colour and the last value for each line."""

from __future__ import annotations

import itertools
import math
from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

Point = tuple[float, float]

# Wong, "Points of view: Color blindness", Nature Methods 8 (2011): distinguishable by colour-blind readers and in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
FONT = "system-ui, -apple-system, 'Segoe UI', Helvetica, Arial, sans-serif"
PANEL_WIDTH, PANEL_HEIGHT = 380, 270  # pixels
MAX_POINTS = 400  # of a line: more points than a panel has pixels would only make the notebook larger


class PlotArea(NamedTuple):
    """A panel's plotting area, in pixels."""

    left: float
    top: float
    width: float
    height: float


class Scale(NamedTuple):
    """A linear map from values to pixels: ``low`` to ``start`` and ``high`` to ``end``."""

    low: float
    high: float
    start: float
    end: float

    def __call__(self, value: float) -> float:
        """Return the pixel coordinate of ``value``."""
        return self.start + (value - self.low) / (self.high - self.low) * (self.end - self.start)


class YAxis(NamedTuple):
    """The scale of a panel's values: linear or logarithmic, as numbers or in percent.

    With ``logarithmic`` the axis is, for values above 0; with ``percent`` a value of 1 is "100%". ``includes`` are
    values that the axis shows in any case; they are for linear axes.
    """

    logarithmic: bool = False
    percent: bool = False
    includes: Sequence[float] = ()

    def text(self, value: float) -> str:
        """Return a value as the axis shows it."""
        return f"{value:.0%}" if self.percent else f"{value:.6g}"


class Line(NamedTuple):
    """A line of a panel: its points in the order in which they are joined, and its colour.

    ``label`` is its text in the legend; by default that is its name with the value of its last point. With None the
    legend leaves it out.
    """

    points: Sequence[Point]
    colour: str
    label: str | None = ""


class Panel(NamedTuple):
    """One set of axes: its title, its lines by name, the label of its x axis, and whether x ticks are integers only.

    With ``logarithmic`` the x axis is, for values above 0, and its ticks are powers of ten, or ``x_ticks`` if given.
    """

    title: str
    lines: Mapping[str, Line]
    x_label: str = "step"
    integer_ticks: bool = True
    logarithmic: bool = False
    x_ticks: Sequence[float] = ()
    y_axis: YAxis = YAxis()


def draw_panels(panels: Sequence[Panel], label: str) -> str:
    """Return an SVG element with the panels side by side, or with the text ``label`` if there are no panels.

    ``label`` describes the picture to screen readers. Values that are not finite leave a gap.
    """
    width, height = PANEL_WIDTH * max(len(panels), 1) + 20, PANEL_HEIGHT
    body = "".join(draw_panel(panel, PANEL_WIDTH * i + 10) for i, panel in enumerate(panels))
    if not panels:
        body = f'<text x="{width / 2}" y="{height / 2}" text-anchor="middle" fill="#666">{escape(label)}</text>'
    return draw_frame(body, width, height, label)


def draw_frame(body: str, width: int, height: int, label: str) -> str:
    """Return an SVG element of so many pixels with a frame around ``body``; ``label`` is for screen readers."""
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}" '
        f'role="img" aria-label="{escape(label)}" font-family="{FONT}" font-size="11" style="max-width:100%">'
        f'<rect x="0.5" y="0.5" width="{width - 1}" height="{height - 1}" rx="6" fill="#fff" stroke="#e2e2e2"/>'
        f"{body}</svg>"
    )


def thin(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Return at most ``max_points`` of the points: the first, the last, and the extremes of equal intervals between.

    So a spike of a single step stays visible, which an average or every n-th point would hide.
    """
    if len(points) <= max_points:
        return list(points)
    count = (max_points - 2) // 2
    inner = points[1:-1]
    selection = [points[0]]
    for i in range(count):
        interval = inner[len(inner) * i // count : len(inner) * (i + 1) // count]
        selection += sorted({min(interval, key=lambda p: p[1]), max(interval, key=lambda p: p[1])})
    return [*selection, points[-1]]


def draw_panel(panel: Panel, left: float, top: float = 0) -> str:
    """Return the SVG of one panel whose left upper corner is at (left, top), in pixels."""
    named = {name: line for name, line in panel.lines.items() if line.label is not None}
    names = [line.label or f"{name} {line.points[-1][1]:.4g}".strip() for name, line in named.items()]
    panel = panel._replace(lines={name: _with_logarithms(line, panel) for name, line in panel.lines.items()})
    beside = 7.5 * len(panel.title) + sum(6.2 * len(name) + 12 for name in names) <= 310
    margin = 40 if beside else 28 + 15 * math.ceil(len(names) / 3)
    area = PlotArea(left + 46, top + margin, 310, 222 - margin)
    steps, values = zip(*(point for line in panel.lines.values() for point in line.points), strict=True)
    x_scale = make_scale(steps, area.left, area.left + area.width, margin=0)
    shown = [y for y in (*values, *panel.y_axis.includes) if math.isfinite(y)]
    y_scale = make_scale(shown, area.top + area.height, area.top, margin=0.05)
    curves = "".join(_line(line, x_scale, y_scale) for line in panel.lines.values())
    title = (
        f'<text x="{area.left}" y="{top + 24:g}" font-size="13" font-weight="600" fill="#222">'
        f"{escape(panel.title)}</text>"
    )
    entries = list(zip(names, (line.colour for line in named.values()), strict=True))
    return title + _legend(entries, area, top, beside) + _axes(panel, area, x_scale, y_scale) + curves


def _with_logarithms(line: Line, panel: Panel) -> Line:
    """Return a line with the logarithms of its coordinates where an axis is logarithmic."""
    points = line.points
    if panel.logarithmic:
        points = [(math.log10(x), y) for x, y in points]
    if panel.y_axis.logarithmic:
        points = [(x, math.log10(y)) for x, y in points]
    return line._replace(points=points)


def _axes(panel: Panel, area: PlotArea, x_scale: Scale, y_scale: Scale) -> str:
    right, bottom = area.left + area.width, area.top + area.height
    parts = []
    logarithmic = panel.y_axis.logarithmic
    for value in decade_ticks(y_scale.low, y_scale.high, 8) if logarithmic else ticks(y_scale.low, y_scale.high, 7):
        y, text = y_scale(value), panel.y_axis.text(10**value if logarithmic else value)
        parts.append(f'<path d="M{area.left} {y:.1f}H{right}" stroke="#ececec"/>')
        parts.append(f'<text x="{area.left - 6}" y="{y + 3.5:.1f}" text-anchor="end" fill="#666">{text}</text>')
    for value, text in _x_ticks(panel, x_scale):
        x = x_scale(value)
        parts.append(f'<path d="M{x:.1f} {bottom}v4" stroke="#999"/>')
        parts.append(f'<text x="{x:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{text}</text>')
    parts.append(f'<path d="M{area.left} {bottom}H{right}" stroke="#999"/>')
    middle = area.left + area.width / 2
    parts.append(
        f'<text x="{middle}" y="{bottom + 33}" text-anchor="middle" fill="#666">{escape(panel.x_label)}</text>'
    )
    return "".join(parts)


def _x_ticks(panel: Panel, scale: Scale) -> list[tuple[float, str]]:
    """Return the place on the scale, and the text, of each tick of the x axis."""
    if panel.x_ticks:
        return [(math.log10(tick) if panel.logarithmic else tick, step_text(tick)) for tick in panel.x_ticks]
    values = ticks(scale.low, scale.high, max_intervals=6)
    if panel.logarithmic:
        return [(value, power_text(value)) for value in values if not value % 1]
    return [(v, step_text(v)) for v in values if not (panel.integer_ticks and (v < 0 or v % 1))]


def _legend(entries: Sequence[tuple[str, str]], area: PlotArea, top: float, beside: bool) -> str:
    """Draw the name and last value of each line, in its colour, beside the title or in rows below it."""
    parts, x, right = [], area.left + area.width, area.left + area.width
    for number, (text, colour) in enumerate(reversed(entries) if beside else entries):
        if not beside:
            x = right - (2 - number % 3) * 112
        y = top + (24 if beside else 39 + 15 * (number // 3))
        parts.append(f'<text x="{x:.0f}" y="{y:g}" text-anchor="end" fill="{colour}">{escape(text)}</text>')
        x -= 6.2 * len(text) + 12
    return "".join(parts)


def _line(line: Line, x_scale: Scale, y_scale: Scale) -> str:
    """Draw a line with gaps at values that are not finite; a line of at most 40 points also gets a dot for each."""
    path, dots = "", ""
    for stretch in _finite_stretches(line.points):
        vertices = [f"{x_scale(x):.1f} {y_scale(y):.1f}" for x, y in thin(stretch)]
        path += "M" + "L".join(vertices)
        if len(line.points) <= 40:
            # A stroke of zero length with round ends is a dot.
            dots += "".join(f"M{vertex}h0" for vertex in vertices)
    stroke = f'fill="none" stroke="{line.colour}" stroke-linecap="round" stroke-linejoin="round"'
    return f'<path d="{path}" stroke-width="1.6" {stroke}/>' + (
        f'<path d="{dots}" stroke-width="4.5" {stroke}/>' if dots else ""
    )


def _finite_stretches(points: Sequence[Point]) -> list[list[Point]]:
    """Return the stretches of consecutive points with finite values."""
    groups = itertools.groupby(points, key=lambda point: math.isfinite(point[1]))
    return [list(stretch) for is_finite, stretch in groups if is_finite]


def make_scale(values: Sequence[float], start: float, end: float, margin: float) -> Scale:
    """Return a scale for finite values, with a share ``margin`` of their range as room at both ends."""
    low, high = min(values), max(values)
    if low == high:  # a single value gets room on both sides
        spread = abs(low) * 0.1 or 1.0
        return Scale(low - spread, high + spread, start, end)
    room = (high - low) * margin
    return Scale(low - room, high + room, start, end)


def ticks(low: float, high: float, max_intervals: int) -> list[float]:
    """Return at most ``max_intervals + 1`` round numbers within [low, high], 1, 2 or 5 times a power of ten apart."""
    minimum = (high - low) / max_intervals
    power = 10.0 ** math.floor(math.log10(minimum))
    spacing = next(power * factor for factor in (1, 2, 5, 10) if power * factor >= minimum * (1 - 1e-9))
    first, last = math.ceil(low / spacing - 1e-9), math.floor(high / spacing + 1e-9)
    return [i * spacing for i in range(first, last + 1)]


def decade_ticks(low: float, high: float, max_ticks: int) -> list[float]:
    """Return round numbers between the powers of ten ``low`` and ``high``: 1, 2 and 5 times powers of ten if they fit.

    Both limits and the result are logarithms to base ten.
    """
    exponents = range(math.floor(low), math.ceil(high) + 1)
    for factors in ((1, 2, 5), (1, 3), (1,)):
        chosen = [exponent + math.log10(factor) for exponent in exponents for factor in factors]
        chosen = [value for value in chosen if low - 1e-9 <= value <= high + 1e-9]
        if len(chosen) <= max_ticks:
            break
    return chosen


def step_text(value: float) -> str:
    """Return a step as text: 800, 1000, 20k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.7g}"


def power_text(exponent: float) -> str:
    """Return a power of ten as text: 1e-5, 0.01, 1, 1000."""
    return f"{10.0**exponent:g}" if -3 <= exponent <= 4 else f"1e{exponent:.0f}"
