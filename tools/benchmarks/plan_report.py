"""The table and the picture of predicted and measured times, from the figures of :mod:`tools.benchmarks.bench_plan`."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Sequence
from html import escape
from typing import NamedTuple

from dsinga.addons.pictures.panels import COLOURS, decade_ticks, draw_frame

APART = 0.15  # strategies whose times differ by more must be ranked right


class Figures(NamedTuple):
    """Predicted and measured milliseconds of an iteration, and those of computing, of a strategy in a setup."""

    setup: str
    strategy: str
    predicted: float
    measured: float
    predicted_computing: float
    measured_computing: float

    @property
    def error(self) -> float:
        """The relative error of the prediction."""
        return self.predicted / self.measured - 1

    def line(self) -> str:
        """Return the figures as a row of the table."""
        computing = f"{self.predicted_computing:.1f} | {self.measured_computing:.1f}"
        return (
            f"| {self.setup}, {self.strategy} | {self.predicted:.1f} | {self.measured:.1f} | {self.error:+.0%} | "
            f"{computing} |"
        )


def medians(rows: Sequence[Figures]) -> list[Figures]:
    """Return the rows with the median figures of each strategy and setup."""
    turns: dict[tuple[str, str], list[Figures]] = {}
    for row in rows:
        turns.setdefault((row.setup, row.strategy), []).append(row)
    return [
        Figures(*key, *map(statistics.median, zip(*(row[2:] for row in same), strict=True)))
        for key, same in turns.items()
    ]


def misranked(rows: Sequence[Figures]) -> list[tuple[Figures, Figures]]:
    """Return the pairs of strategies of a setup of which the planner did not predict the faster one."""
    return [
        (first, second)
        for first, second in itertools.combinations(rows, 2)
        if first.setup == second.setup
        and max(first.measured, second.measured) > (1 + APART) * min(first.measured, second.measured)
        and (first.predicted < second.predicted) != (first.measured < second.measured)
    ]


def table(rows: Sequence[Figures]) -> str:
    """Return the table and, below, the median and the worst error, and what is not ranked right."""
    rows = medians(rows)
    lines = ["| | predicted ms | measured ms | | computing: predicted | measured |", "|" + " --- |" * 6]
    lines += [row.line() for row in rows]
    worst = max(rows, key=lambda row: abs(row.error))
    median = statistics.median(abs(row.error) for row in rows)
    lines.append(f"\n{len(rows)} figures: error {median:.1%} in the median, {worst.error:+.0%} at worst")
    wrong = [f"misranked: {first.setup}: {first.strategy}, {second.strategy}" for first, second in misranked(rows)]
    return "\n".join([*lines, *(wrong or ["all strategies are ranked right"])])


SIZE, MARGIN = 420, 50  # pixels
PLACES = {"thread": COLOURS[0], "processes": COLOURS[1], "hosts, 1 Gbit/s": COLOURS[2], "hosts, 10 Gbit/s": COLOURS[3]}


def draw(rows: Sequence[Figures]) -> str:
    """Return an SVG element with a dot for each prediction, by the measured time, both axes logarithmic.

    Dots on the line are right, those within the band 10% off at most. They are filled in bf16.
    """
    rows = medians(rows)
    times = [math.log10(time) for row in rows for time in (row.predicted, row.measured)]
    low, high = min(times) - 0.1, max(times) + 0.1
    unit = (SIZE - 2 * MARGIN) / (high - low)

    def place(milliseconds: float) -> float:
        return (math.log10(milliseconds) - low) * unit

    left, bottom, band = MARGIN, SIZE - MARGIN, math.log10(1.1) * unit
    end = SIZE - 2 * MARGIN
    body = [
        f'<path d="M{left} {bottom - band:.1f} L{left + end} {bottom - end - band:.1f} V{bottom - end + band:.1f} '
        f'L{left} {bottom + band:.1f} Z" fill="#eeeeee"/>',
        f'<path d="M{left} {bottom - end} V{bottom} H{left + end} M{left} {bottom} L{left + end} {bottom - end}" '
        'stroke="#999" fill="none"/>',
        f'<text x="{left}" y="{bottom - end - 24}" fill="#222">predicted ms</text>',
        f'<text x="{left + end}" y="{bottom + 32}" text-anchor="end" fill="#222">measured ms</text>',
    ]
    for tick in decade_ticks(low, high, 8):
        at = (tick - low) * unit
        text = f"{10**tick:.0f}"
        body.append(f'<text x="{left + at:.1f}" y="{bottom + 16}" text-anchor="middle" fill="#666">{text}</text>')
        body.append(f'<text x="{left - 6}" y="{bottom - at + 4:.1f}" text-anchor="end" fill="#666">{text}</text>')
    for row in rows:
        colour = next(colour for name, colour in PLACES.items() if name in row.setup)
        fill = colour if "bf16" in row.setup else "white"
        at = f'cx="{left + place(row.measured):.1f}" cy="{bottom - place(row.predicted):.1f}"'
        title = f"<title>{escape(row.setup)}, {row.strategy}: {row.error:+.0%}</title>"
        body.append(f'<circle {at} r="4" fill="{fill}" stroke="{colour}" stroke-width="1.5">{title}</circle>')
    for number, (name, colour) in enumerate(PLACES.items()):
        y = bottom - 16 - 16 * number
        body.append(f'<circle cx="{SIZE - 150}" cy="{y - 4}" r="4" fill="{colour}"/>')
        body.append(f'<text x="{SIZE - 140}" y="{y}" fill="#444">{name.replace("thread", "threads")}</text>')
    return draw_frame("".join(body), SIZE, SIZE, "predicted by measured milliseconds of an iteration")
