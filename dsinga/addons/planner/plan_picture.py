"""Draws a plan as SVG: partitionings side by side, and how they scale with the number of workers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

from dsinga.addons.pictures.panels import (
    COLOURS,
    PANEL_HEIGHT,
    PANEL_WIDTH,
    Line,
    Panel,
    Point,
    YAxis,
    draw_frame,
    draw_panel,
)
from dsinga.addons.planner.plan import Alternative, Plan
from dsinga.base.arguments import format_bytes

ROW_HEIGHT, BAR_HEIGHT = 22, 13  # pixels
TITLE_HEIGHT = 46
TEXT_WIDTH = 6.2  # of a character, on average
NAME_WIDTH = 108


class Bar(NamedTuple):
    """One row of a bar chart: its name, the lengths of the parts of its bar by name, and the text at its end.

    The name is empty in a second column of bars, whose rows are those of the first.
    """

    name: str
    parts: Mapping[str, float]
    text: str


def draw_bars(
    title: str, bars: Sequence[Bar], colours: Mapping[str, str], left: float, top: float, width: float
) -> str:
    """Return the SVG of bars below each other, with the title and the names of their parts above.

    All begin at the same place, so that their lengths can be compared; the longest one ends where its text has room.

    Args:
        title: the title.
        bars: the bars from top to bottom, of which one at least has a length above 0.
        colours: a colour for each part, in the order in which parts follow each other.
        left: the left edge, in pixels.
        top: the upper edge, in pixels.
        width: the width, in pixels, names and texts included.
    """
    names = NAME_WIDTH if any(bar.name for bar in bars) else 8
    room = width - names - TEXT_WIDTH * max(len(bar.text) for bar in bars) - 12
    unit = room / max(sum(bar.parts.values()) for bar in bars)
    parts = [
        f'<text x="{left + 8:g}" y="{top + 16:g}" font-size="13" font-weight="600" fill="#222">{escape(title)}</text>'
    ]
    x = left + names
    for name, colour in colours.items() if len(colours) > 1 else ():
        parts.append(f'<rect x="{x:.1f}" y="{top + 25:g}" width="9" height="9" fill="{colour}"/>')
        parts.append(f'<text x="{x + 13:.1f}" y="{top + 33:g}" fill="#666">{escape(name)}</text>')
        x += TEXT_WIDTH * len(name) + 28
    for number, bar in enumerate(bars):
        y = top + TITLE_HEIGHT + ROW_HEIGHT * number
        parts.append(_row(bar, colours, left + names, y, unit))
    return "".join(parts)


def _row(bar: Bar, colours: Mapping[str, str], left: float, top: float, unit: float) -> str:
    """Return the SVG of one row; ``unit`` is the number of pixels of a length of 1."""
    baseline = top + BAR_HEIGHT - 2.5
    drawn = [f'<text x="{left - 8:g}" y="{baseline:g}" text-anchor="end" fill="#222">{escape(bar.name)}</text>']
    x = left
    for name, colour in colours.items():
        length = bar.parts.get(name, 0.0) * unit
        drawn.append(
            f'<rect x="{x:.1f}" y="{top:g}" width="{length:.1f}" height="{BAR_HEIGHT}" fill="{colour}">'
            f"<title>{escape(name)}</title></rect>"
        )
        x += length
    drawn.append(f'<text x="{x + 6:.1f}" y="{baseline:g}" fill="#444">{escape(bar.text)}</text>')
    return "".join(drawn)


COMPUTING, WAITING = "computing", "exchange and waiting"
TIME_COLOURS = {COMPUTING: COLOURS[0], WAITING: COLOURS[4]}
MEMORY_COLOURS = {"memory": COLOURS[2]}
IDEAL_COLOUR = "#bbbbbb"
WIDTH = 2 * PANEL_WIDTH + 20
MEMORY_WIDTH = 240  # of the bars of memory
HEADER_HEIGHT = 34


def draw_plan(plan: Plan) -> str:
    """Return an SVG element that shows a plan.

    Above, a row for each strategy: the time of an iteration, split into computing and the rest, and the memory of a
    worker. Below, for 1, 2, 4, ... workers: the time of an iteration, both axes logarithmic, and the efficiency.
    """
    bars = TITLE_HEIGHT + ROW_HEIGHT * len(plan.alternatives) + 12
    height = HEADER_HEIGHT + bars + 24 + PANEL_HEIGHT
    workers = _workers(plan)
    body = [
        _sentence(f"{plan.job}: batch {plan.batch}, {workers}: {plan.where}", 20, 13),
        draw_bars(
            "time of an iteration, × speed of one worker",
            [_time_bar(row) for row in plan.alternatives],
            TIME_COLOURS,
            10,
            HEADER_HEIGHT,
            WIDTH - MEMORY_WIDTH - 20,
        ),
        draw_bars(
            "memory of a worker",
            [Bar("", {"memory": row.memory_bytes}, format_bytes(row.memory_bytes)) for row in plan.alternatives],
            MEMORY_COLOURS,
            WIDTH - MEMORY_WIDTH - 10,
            HEADER_HEIGHT,
            MEMORY_WIDTH,
        ),
        _sentence(f"scaling: {plan.scaling}", HEADER_HEIGHT + bars + 12, 11),
    ]
    top = HEADER_HEIGHT + bars + 16
    for number, panel in enumerate(scaling_panels(plan)):
        body.append(draw_panel(panel, PANEL_WIDTH * number + 10, top))
    return draw_frame("".join(body), WIDTH, height, f"{plan.job}: time of an iteration by strategy and by workers")


def scaling_panels(plan: Plan) -> list[Panel]:
    """Return the panels of time and of efficiency by the number of workers, a line for each strategy."""
    names = list(dict.fromkeys(row.name for row in plan.curve))
    first, counts = plan.curve[0], sorted({row.workers for row in plan.curve})
    times: dict[str, Line] = {}
    if len(counts) > 1:
        ideal = [(float(count), 1e3 * first.prediction.seconds / count) for count in counts]
        times["ideal"] = Line(ideal, IDEAL_COLOUR, "ideal")
    efficiencies: dict[str, Line] = {}
    for name, colour in zip(names, COLOURS, strict=False):
        rows = _with_first([row for row in plan.curve if row.name == name], first)
        seconds: list[Point] = [(row.workers, 1e3 * row.prediction.seconds) for row in rows]
        times[name] = Line(seconds, colour, name)
        last = f"{name} {rows[-1].efficiency:.0%}"
        efficiencies[name] = Line([(row.workers, row.efficiency) for row in rows], colour, last)
    percent = YAxis(percent=True, includes=(0.0, 1.0))
    return [
        Panel(
            "ms for an iteration", times, "workers", logarithmic=True, x_ticks=counts, y_axis=YAxis(logarithmic=True)
        ),
        Panel("efficiency", efficiencies, "workers", logarithmic=True, x_ticks=counts, y_axis=percent),
    ]


def _with_first(rows: Sequence[Alternative], first: Alternative) -> Sequence[Alternative]:
    """Return the rows of a strategy, beginning with one worker, which all strategies have in common."""
    return rows if rows[0].workers == 1 else [first, *rows]


def _workers(plan: Plan) -> str:
    count = max(row.workers for row in plan.alternatives)
    return f"{count} worker{'s' if count > 1 else ''}"


def _time_bar(row: Alternative) -> Bar:
    milliseconds, computing = 1e3 * row.prediction.seconds, 1e3 * row.prediction.compute
    text = f"{milliseconds:,.1f} ms, {row.efficiency * row.workers:.2f}×"
    return Bar(row.name, {COMPUTING: min(computing, milliseconds), WAITING: max(0.0, milliseconds - computing)}, text)


def _sentence(text: str, y: float, size: int) -> str:
    return f'<text x="18" y="{y:g}" font-size="{size}" fill="#222">{escape(text)}</text>'
