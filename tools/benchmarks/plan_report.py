"""The table and the picture of predicted and measured times, from the figures of :mod:`tools.benchmarks.bench_plan`."""

from __future__ import annotations

import itertools
import statistics
from collections.abc import Sequence
from typing import NamedTuple

from dsinga.addons.pictures.panels import COLOURS, look, new_figure, show_on_hover, to_svg

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


SIZE = 4.4  # inches
PLACES = {"thread": COLOURS[0], "processes": COLOURS[1], "hosts, 1 Gbit/s": COLOURS[2], "hosts, 10 Gbit/s": COLOURS[3]}


@look()
def draw(rows: Sequence[Figures]) -> str:
    """Return an SVG element with a dot for each prediction, by the measured time, both axes logarithmic.

    Dots on the line are right, those within the band 10% off at most. They are filled in bf16.
    """
    rows = medians(rows)
    figure = new_figure(SIZE, SIZE, "predicted by measured milliseconds of an iteration")
    axis = figure.subplots()
    times = [time for row in rows for time in (row.predicted, row.measured)]
    ends = [min(times) / 1.25, max(times) * 1.25]
    axis.fill_between(ends, [end / 1.1 for end in ends], [end * 1.1 for end in ends], color="#eeeeee")
    axis.plot(ends, ends, color="#999999", linewidth=0.8)
    for row in rows:
        colour = next(colour for name, colour in PLACES.items() if name in row.setup)
        fill = colour if "bf16" in row.setup else "white"
        (dot,) = axis.plot([row.measured], [row.predicted], "o", color=colour, markerfacecolor=fill)
        show_on_hover(dot, f"{row.setup}, {row.strategy}: {row.error:+.0%}")
    for name, colour in PLACES.items():
        axis.plot([], [], "o", color=colour, label=name.replace("thread", "threads"))
    axis.set(xscale="log", yscale="log", xlim=ends, ylim=ends, xlabel="measured ms", ylabel="predicted ms")
    for scale in (axis.xaxis, axis.yaxis):
        scale.set_major_formatter("{x:g}")
        scale.set_minor_formatter("")
    axis.legend(loc="lower right", borderaxespad=1)
    return to_svg(figure)
