"""Draws a search: settings as lines through parallel axes, the curves of the runs, and importance."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

from dsinga.addons.pictures import panels
from dsinga.addons.search.importance import importance
from dsinga.addons.search.ranges import SearchRange
from dsinga.addons.search.setting import cell
from dsinga.monitor import Row

# Blues from the best setting to the worst, ColorBrewer's of one hue; vermilion for failed settings, as in panels.
BLUES, FAILED = ("#08306b", "#4292c6", "#bed4e8"), "#d55e00"
MOST_LINES, MOST_POINTS = 200, 6000  # settings that are drawn, and points of all their curves
MOST_CHOICES, MOST_BARS = 12, 9  # values that are listed on an axis, and names with a bar
LONGEST_TEXT = 18  # characters
AXES_HEIGHT, AXIS_WIDTH = 3.1, 1.25  # inches of the parallel axes
BELOW = -0.09  # where settings without a score end, of the height of the axes
EARLY: Any = (0, (6, 3))  # dashes of runs that were ended early
DASHES: dict[str, Any] = {"finished": "solid", "failed": (0, (1.5, 3))}


@panels.look()
def draw_search(
    rows: Sequence[Row],
    names: Sequence[str],
    monitor: str,
    ranges: Mapping[str, SearchRange],
    curves: Mapping[int, Sequence[panels.Point]],
) -> Any:
    """Draw a search as a Matplotlib figure: parallel axes of settings, curves of runs, importance of names.

    ``rows`` have the best setting first, and settings without a score last; ``curves`` has the metric by step, by the
    number of the setting.
    """
    from matplotlib.colors import LinearSegmentedColormap, to_hex

    if not any(_has_score(row) for row in rows):
        return panels.panels_figure([], f"{monitor}: no setting has a score yet")
    drawn = rows[:: -(-len(rows) // MOST_LINES)]
    scored = [row["number"] for row in drawn if _has_score(row)]
    blues = LinearSegmentedColormap.from_list("blues", BLUES)
    colours = {number: to_hex(blues(place / max(1, len(scored) - 1))) for place, number in enumerate(scored)}
    width = max(2 * panels.WIDTH, AXIS_WIDTH * (len(names) + 2))
    figure = panels.new_figure(width, AXES_HEIGHT + panels.HEIGHT, f"{monitor} of {len(rows)} settings")
    above, below = figure.subfigures(2, 1, height_ratios=(AXES_HEIGHT, panels.HEIGHT))
    axis, (steps, bars) = above.subplots(), below.subplots(1, 2)
    count = f"{len(rows):,} settings" if len(drawn) == len(rows) else f"{len(drawn)} of {len(rows):,} settings"
    axis.set_title(count, pad=22)
    by_number = sorted(drawn, key=lambda row: row["number"])
    heights = {
        name: _draw_axis(axis, i / len(names), name, [row[name] for row in by_number if name in row], ranges.get(name))
        for i, name in enumerate(names)
    }
    scores = [row["score"] for row in drawn if _has_score(row)]
    heights["score"] = _draw_axis(axis, 1, monitor, scores, None, is_score=True)
    _draw_settings(axis, drawn, heights, colours)
    panel = _curves_panel(drawn, monitor, curves, colours)
    if panel is None:
        steps.set_visible(False)
    else:
        panels.draw_panel(steps, panel)
    shares = dict([*importance(rows, names).items()][:MOST_BARS])
    texts = [f"{share:.0%}" for share in shares.values()]
    title = "importance: share of the variance of ranks"
    panels.draw_bars(bars, {"share": [*shares.values()]}, texts, title, BLUES[1:2])
    bars.set_yticks(range(len(shares)), [_short(name) for name in shares])
    bars.set(xlim=(0, 1), ylim=(MOST_BARS - 0.5, -0.5))
    return figure


def _draw_axis(
    host: Any, x: float, name: str, values: Sequence[Any], range_: SearchRange | None, is_score: bool = False
) -> Callable[[Any], float]:
    """Draw a vertical axis of values; return the function of a value's height, 0 to 1."""
    axis, side = host.twinx(), "right" if is_score else "left"
    axis.spines[:].set_visible(False)
    axis.spines[side].set(visible=True, position=("axes", x))
    axis.yaxis.set(ticks_position=side)
    axis.grid(visible=False)
    text = host.text(x, 1.06, name if is_score else _short(name), ha="center", weight="bold", color="#222222")
    panels.show_on_hover(text, name)
    are_numbers = all(isinstance(value, (int, float)) and math.isfinite(value) for value in values)
    texts = list(dict.fromkeys(cell(value) for value in (sorted(values) if are_numbers else values)))
    if range_ and not (are_numbers and all(range_.low <= value <= range_.high for value in values)):
        range_ = None  # another space of the search has other values
    if range_ is None and (not are_numbers or (not is_score and len(texts) <= MOST_CHOICES)):
        places = {text: (i + 0.5) / len(texts) for i, text in enumerate(texts)}
        shown = texts[:: -(-len(texts) // MOST_CHOICES)]
        axis.set_yticks([places[text] for text in shown], [_cut(text) for text in shown])
        low, high = 0.0, 1.0
    else:
        places = None
        low, high = (min(values), max(values)) if range_ is None else (range_.low, range_.highest)
        room = 0 if low < high else abs(low) * 0.1 or 1  # a single value gets room on both sides
        low, high, is_log = low - room, high + room, is_wide(values) if range_ is None else range_.log
        axis.set(yscale="log" if is_log else "linear", ylim=(low, high))
        if is_log:
            panels.set_powers(axis, low, high)
        axis.set_yticks([tick for tick in axis.get_yticks() if low <= tick <= high])
        axis.yaxis.set_major_formatter("{x:.4g}" if is_log else "{x:.6g}")
    axis.set_ylim(low, high)
    for label in axis.get_yticklabels():  # so that it can be read on lines
        label.set_bbox({"facecolor": "white", "alpha": 0.7, "linewidth": 0, "pad": 0.5})
    scale = axis.yaxis.get_transform().transform
    start, end = scale([low, high])
    return lambda value: (scale([value])[0] - start) / (end - start) if places is None else places[cell(value)]


def _draw_settings(
    axis: Any, rows: Sequence[Row], heights: Mapping[str, Callable[[Any], float]], colours: Mapping[int, str]
) -> None:
    scored = [row for row in rows if row["number"] in colours]
    failed = [row for row in rows if row["number"] not in colours]
    places = {name: i / (len(heights) - 1) for i, name in enumerate(heights)}
    for row in [*reversed(scored[1:]), *failed, scored[0]]:
        names, colour = [name for name in heights if name in row], colours.get(row["number"], FAILED)
        ys = [BELOW if name == "score" and row["number"] not in colours else heights[name](row[name]) for name in names]
        style = {"color": colour, "linestyle": DASHES.get(row["state"], EARLY), "clip_on": False}
        width = 2.6 if row is scored[0] else 0.9
        (line,) = axis.plot([places[name] for name in names], ys, linewidth=width, solid_capstyle="butt", **style)
        setting = ", ".join(f"{name}={cell(row[name])}" for name in names[:-1])
        panels.show_on_hover(line, f"{row['number']} ({setting}): {row['state']} {cell(row['score'])}")
    axis.set(xlim=(0, 1), ylim=(0, 1), xticks=(), yticks=())
    axis.spines[:].set_visible(False)
    early = " or ".join(state for state in ("stopped", "cut") if any(row["state"] == state for row in rows))
    keys = {"best": (BLUES[0], "solid"), "worst": (BLUES[2], "solid"), early: (BLUES[1], EARLY)}
    if failed:
        state = "failed" if all(row["state"] == "failed" for row in failed) else "no score"
        axis.text(1.012, BELOW, state, color=FAILED, va="center")
        keys["failed"] = FAILED, DASHES["failed"]
    for text, (colour, dashes) in keys.items():
        axis.plot([], [], color=colour, linestyle=dashes, label=text or "_")
    axis.legend(loc="upper left", bbox_to_anchor=(0, -0.12), ncols=4, handlelength=3)


def is_wide(values: Sequence[float]) -> bool:
    """Whether numbers lie so far apart that only a logarithmic axis shows them all."""
    return min(values) > 0 and max(values) / min(values) >= 100


def _curves_panel(
    rows: Sequence[Row], monitor: str, curves: Mapping[int, Sequence[panels.Point]], colours: Mapping[int, str]
) -> panels.Panel | None:
    """Create the panel with a line per setting, the best on top and named; None without values."""
    lines: dict[str, panels.Line] = {}
    for place, row in reversed(list(enumerate(rows))):
        number = row["number"]
        points = [point for point in curves.get(number, ()) if math.isfinite(point[1])]
        if points:
            label = f"setting {number}" if place == 0 else None
            thinned = panels.thin(points, max(10, MOST_POINTS // len(rows)))
            lines[str(number)] = panels.Line(thinned, colours.get(number, FAILED), label)
    if not lines:
        return None
    wide = is_wide([value for line in lines.values() for _, value in line.points])
    return panels.Panel(f"{monitor} by step", lines, y_axis="log" if wide else "linear")


def _short(name: str) -> str:
    layer = re.search(r"\[([^\]]*)\]", name)
    last = name.rpartition(".")[2]
    return _cut(f"{layer[1]} {last}" if layer else last)


def _cut(text: str) -> str:
    return text if len(text) <= LONGEST_TEXT else f"…{text[1 - LONGEST_TEXT :]}"


def _has_score(row: Mapping[str, Any]) -> bool:
    return row["score"] is not None and math.isfinite(row["score"])
