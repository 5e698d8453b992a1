"""Draws a search as an SVG: settings as lines through parallel axes, the curves of the runs, and importance."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from html import escape
from typing import Any, NamedTuple

from dsinga.addons.pictures.panels import (
    PANEL_HEIGHT,
    PANEL_WIDTH,
    Line,
    Panel,
    Point,
    YAxis,
    decade_ticks,
    draw_frame,
    draw_panel,
    draw_panels,
    make_scale,
    thin,
    ticks,
)
from dsinga.addons.search.importance import importance
from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.setting import cell
from dsinga.monitor import Row

# Blues from the best setting to the worst, ColorBrewer's of one hue; vermilion for failed settings, as in panels.
BEST, MIDDLE, WORST, FAILED = (8, 48, 107), (66, 146, 198), (190, 212, 232), "#d55e00"
MOST_LINES, MOST_POINTS = 200, 6000  # settings that are drawn, and points of all their curves
MOST_CHOICES, MOST_BARS = 12, 9  # values that are listed on an axis, and names with a bar
LONGEST_TEXT = 18  # characters
LEFT, RIGHT, TOP, BOTTOM = 70, 80, 62, 250  # of the parallel axes, pixels from the edges of the picture and its top
AXES_HEIGHT, AXIS_WIDTH = 300, 120


class ParallelAxis(NamedTuple):
    """A vertical axis: the height in pixels of a value, and of each tick with its text."""

    place: Callable[[Any], float]
    ticks: Sequence[tuple[float, str]]


def draw_search(
    rows: Sequence[Row],
    names: Sequence[str],
    monitor: str,
    ranges: Mapping[str, SearchRange],
    curves: Mapping[int, Sequence[Point]],
) -> str:
    """Return an SVG element with three pictures of a search.

    Args:
        rows: the rows of the result, the best first, those without a score last.
        names: the columns of the settings.
        monitor: the metric that settings are compared by.
        ranges: the ranges of names that have one; their axes have these bounds and scales.
        curves: the values of the metric by step, by the number of the setting.
    """
    if not any(_has_score(row) for row in rows):
        return draw_panels([], f"{monitor}: no setting has a score yet")
    drawn = rows[:: -(-len(rows) // MOST_LINES)]
    scored = [row["number"] for row in drawn if _has_score(row)]
    colours = {number: _blue(place / max(1, len(scored) - 1)) for place, number in enumerate(scored)}
    width = max(2 * PANEL_WIDTH + 20, LEFT + RIGHT + AXIS_WIDTH * len(names))
    count = f"{len(rows):,} settings" if len(drawn) == len(rows) else f"{len(drawn)} of {len(rows):,} settings"
    body = _text(10, 24, count, "#222", size=13, weight=600)
    body += _parallel_axes(drawn, names, monitor, ranges, colours, width)
    panel = _curves_panel(drawn, monitor, curves, colours)
    if panel is not None:
        body += draw_panel(panel, 10, AXES_HEIGHT)
    body += _bars(importance(rows, names), 10 + PANEL_WIDTH, AXES_HEIGHT)
    return draw_frame(body, width, AXES_HEIGHT + PANEL_HEIGHT, f"{monitor} of {len(rows)} settings")


def _parallel_axes(
    rows: Sequence[Row],
    names: Sequence[str],
    monitor: str,
    ranges: Mapping[str, SearchRange],
    colours: Mapping[int, str],
    width: int,
) -> str:
    """Draw an axis for each name and one for the score, and a line for each setting, the best one on top."""
    by_number = sorted(rows, key=lambda row: row["number"])
    axes = {name: _axis([row[name] for row in by_number if name in row], ranges.get(name)) for name in names}
    axes["score"] = _axis([row["score"] for row in rows if _has_score(row)], None, is_listed=False)
    places = {name: LEFT + i * (width - LEFT - RIGHT) / len(names) for i, name in enumerate(axes)}
    scored = [row for row in rows if row["number"] in colours]
    failed = [row for row in rows if row["number"] not in colours]
    body = ""
    for row in [*reversed(scored[1:]), *failed, scored[0]]:
        points = [(places[name], axes[name].place(row[name])) for name in names if name in row]
        points.append((places["score"], axes["score"].place(row["score"]) if row["number"] in colours else BOTTOM + 18))
        body += _setting_line(row, names, points, colours.get(row["number"], FAILED), row is scored[0])
    for name, axis in axes.items():
        title = monitor if name == "score" else _short(name)
        body += _draw_axis(axis, places[name], title, name, on_right=name == "score")
    if failed:
        state = "failed" if all(row["state"] == "failed" for row in failed) else "no score"
        body += _text(places["score"] + 7, BOTTOM + 21.5, state, FAILED)
    return body + _legend(rows, bool(failed), width)


def _axis(values: Sequence[Any], range_: SearchRange | None, is_listed: bool = True) -> ParallelAxis:
    """Return the axis of values: with the scale of their range, else with each of a few values, or with numbers."""
    are_numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    texts = list(dict.fromkeys(cell(value) for value in (sorted(values) if are_numbers else values)))
    if range_ and not (are_numbers and all(range_.low <= value <= range_.high for value in values)):
        range_ = None  # another space of the search has other values
    if range_ is None and (not are_numbers or (is_listed and len(texts) <= MOST_CHOICES)):
        heights = {text: BOTTOM - (BOTTOM - TOP) * (i + 0.5) / len(texts) for i, text in enumerate(texts)}
        shown = texts[:: -(-len(texts) // MOST_CHOICES)]
        return ParallelAxis(lambda value: heights[cell(value)], [(heights[text], text) for text in shown])
    ends = (min(values), max(values)) if range_ is None else (range_.low, range_.highest)
    if is_wide(values) if range_ is None else range_.log:
        scale = make_scale([math.log10(end) for end in ends], BOTTOM, TOP, margin=0)
        marks = [(scale(mark), f"{10**mark:.4g}") for mark in decade_ticks(scale.low, scale.high, 7)]
        return ParallelAxis(lambda value: scale(math.log10(value)), marks)
    scale = make_scale(ends, BOTTOM, TOP, margin=0)
    return ParallelAxis(scale.__call__, [(scale(mark), f"{mark:.6g}") for mark in ticks(scale.low, scale.high, 6)])


def is_wide(values: Sequence[float]) -> bool:
    """Return whether numbers lie so far apart that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) / min(values) >= 100


def _setting_line(row: Row, names: Sequence[str], points: Sequence[Point], colour: str, is_best: bool) -> str:
    """Draw the line of a setting: dashed if its run was ended early, dotted if it failed; what it is shows on hover."""
    dashes = {"finished": "", "failed": ' stroke-dasharray="1.5 3"'}.get(row["state"], ' stroke-dasharray="6 3"')
    setting = ", ".join(f"{name}={cell(row[name])}" for name in names if name in row)
    title = escape(f"{row['number']} ({setting}): {row['state']} {cell(row['score'])}")
    path = "M" + "L".join(f"{x:.1f} {y:.1f}" for x, y in points)
    style = f'stroke="{colour}" stroke-width="{3.5 if is_best else 1.2}" fill="none" stroke-linejoin="round"{dashes}'
    return f'<path d="{path}" {style}><title>{title}</title></path>'


def _draw_axis(axis: ParallelAxis, x: float, title: str, name: str, on_right: bool) -> str:
    heading = _text(x, TOP - 14, title, "#222", "middle", weight=600)
    body = f"<g><title>{escape(name)}</title>{heading}</g>" + f'<path d="M{x:.1f} {BOTTOM}V{TOP}" stroke="#666"/>'
    for y, text in axis.ticks:
        body += f'<path d="M{x - 3:.1f} {y:.1f}h6" stroke="#666"/>'
        side = (x + 7, "start") if on_right else (x - 6, "end")
        body += _text(side[0], y + 3.5, _cut(text), "#333", side[1])
    return body


def _legend(rows: Sequence[Row], has_failed: bool, width: int) -> str:
    """Explain the colours from best to worst, and the dashes of the states that there are."""
    y, x = BOTTOM + 38, float(LEFT)
    body = _text(x, y, "best", "#333")
    for part in range(10):
        body += f'<rect x="{x + 32 + 12 * part}" y="{y - 9}" width="12" height="10" fill="{_blue(part / 9)}"/>'
    body += _text(x + 158, y, "worst", "#333")
    x += 220
    states = {row["state"] for row in rows}
    early = " or ".join(state for state in ("stopped", "cut") if state in states)
    for text, colour, dashes in ((early, "#4292c6", "6 3"), ("failed" if has_failed else "", FAILED, "1.5 3")):
        if text:
            body += f'<path d="M{x} {y - 4}h34" stroke="{colour}" stroke-width="2" stroke-dasharray="{dashes}"/>'
            body += _text(x + 40, y, text, "#333")
            x += 130
    return body


def _curves_panel(
    rows: Sequence[Row], monitor: str, curves: Mapping[int, Sequence[Point]], colours: Mapping[int, str]
) -> Panel | None:
    """Return the panel with a line for each setting, the best one on top and named; None without any value."""
    lines: dict[str, Line] = {}
    for place, row in reversed(list(enumerate(rows))):
        number = row["number"]
        points = [point for point in curves.get(number, ()) if math.isfinite(point[1])]
        if points:
            label = f"setting {number}" if place == 0 else None
            thinned = thin(points, max(10, MOST_POINTS // len(rows)))
            lines[str(number)] = Line(thinned, colours.get(number, FAILED), label)
    if not lines:
        return None
    wide = is_wide([value for line in lines.values() for _, value in line.points])
    return Panel(f"{monitor} by step", lines, y_axis=YAxis(logarithmic=wide))


def _bars(shares: Mapping[str, float], left: float, top: float) -> str:
    """Draw a bar for the importance of each name, the highest first."""
    body = _text(left + 20, top + 24, "importance", "#222", size=13, weight=600)
    body += _text(left + 356, top + 24, "share of the variance of ranks", "#666", "end")
    start, longest, height = left + 150, 170, min(24, 190 / max(1, len(shares)))
    for i, (name, share) in enumerate(list(shares.items())[:MOST_BARS]):
        y = top + 44 + i * height
        body += _text(start - 8, y + 0.62 * height, _short(name), "#333", "end")
        size = f'width="{max(1, share * longest):.1f}" height="{0.7 * height:.1f}"'
        body += f'<rect x="{start}" y="{y + 0.1 * height:.1f}" {size} fill="#4292c6"/>'
        body += _text(start + share * longest + 6, y + 0.62 * height, f"{share:.0%}", "#333")
    return body


def _text(x: float, y: float, text: str, colour: str, anchor: str = "start", size: int = 11, weight: int = 400) -> str:
    """Return text with a white rim, so that it can be read on lines."""
    rim = 'paint-order="stroke" stroke="#fff" stroke-width="3" stroke-linejoin="round"'
    place = f'x="{x:.1f}" y="{y:.1f}" text-anchor="{anchor}" font-size="{size}" font-weight="{weight}"'
    return f'<text {place} fill="{colour}" {rim}>{escape(text)}</text>'


def _short(name: str) -> str:
    """Return the last part of a path, with the name of its layer: "conv1 num_output"."""
    layer = re.search(r"\[([^\]]*)\]", name)
    last = name.rpartition(".")[2]
    return _cut(f"{layer[1]} {last}" if layer else last)


def _cut(text: str) -> str:
    """Return the end of a text that is too long, such as that of a path."""
    return text if len(text) <= LONGEST_TEXT else f"…{text[1 - LONGEST_TEXT :]}"


def _blue(share: float) -> str:
    """Return a colour between the best one's, at 0, and the worst one's, at 1."""
    low, high, part = (BEST, MIDDLE, 2 * share) if share < 0.5 else (MIDDLE, WORST, 2 * share - 1)
    return "#" + "".join(f"{round(a + (b - a) * part):02x}" for a, b in zip(low, high, strict=True))


def _has_score(row: Mapping[str, Any]) -> bool:
    return row["score"] is not None and math.isfinite(row["score"])
