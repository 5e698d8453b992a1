"""Draws a plan: partitionings side by side, and how they scale with the number of workers."""

from __future__ import annotations

from typing import Any

from dsinga.addons.pictures import panels
from dsinga.addons.planner.plan import Plan
from dsinga.base.arguments import format_bytes

ROW_HEIGHT, HEADERS = 0.23, 1.2  # inches
COMPUTING, WAITING = "computing", "exchange and waiting"
TIME_COLOURS, MEMORY_COLOURS = (panels.COLOURS[0], panels.COLOURS[4]), panels.COLOURS[2:3]
IDEAL_COLOUR = "#bbbbbb"


def draw_plan(plan: Plan) -> str:
    """Draw a plan as an SVG element, see :func:`plan_figure`."""
    return panels.to_svg(plan_figure(plan))


@panels.look()
def plan_figure(plan: Plan) -> Any:
    """Draw a plan as a Matplotlib figure.

    Above, a row for each strategy has an iteration's time, split into computing and the rest, and a worker's memory.
    Below are time (both axes logarithmic) and efficiency for 1, 2, 4, ... workers.
    """
    rows, count = plan.alternatives, max(row.workers for row in plan.alternatives)
    heights = HEADERS + ROW_HEIGHT * len(rows), panels.HEIGHT + 0.3
    label = f"{plan.job}: time of an iteration by strategy and by workers"
    figure = panels.new_figure(2 * panels.WIDTH, sum(heights), label)
    above, below = figure.subfigures(2, 1, height_ratios=heights)
    workers = f"{count} worker{'s' if count > 1 else ''}"
    above.suptitle(f"{plan.job}: batch {plan.batch}, {workers}: {plan.where}", x=0.02, ha="left", size=9.5)
    times, memory = above.subplots(1, 2, width_ratios=(7, 3))
    texts = [f"{1e3 * row.prediction.seconds:,.1f} ms, {row.efficiency * row.workers:.2f}×" for row in rows]
    computing = [min(row.prediction.compute, row.prediction.seconds) for row in rows]
    waiting = [row.prediction.seconds - part for row, part in zip(rows, computing, strict=True)]
    parts, title = {COMPUTING: computing, WAITING: waiting}, "time of an iteration, × speed of one worker"
    panels.draw_bars(times, parts, texts, title, TIME_COLOURS)
    sizes = {"memory": [row.memory_bytes for row in rows]}
    texts = [format_bytes(size) for size in sizes["memory"]]
    panels.draw_bars(memory, sizes, texts, "memory of a worker", MEMORY_COLOURS)
    times.set_yticks(range(len(rows)), [row.name for row in rows])
    below.suptitle(f"scaling: {plan.scaling}", x=0.02, ha="left", size=8)
    for axis, panel in zip(below.subplots(1, 2), scaling_panels(plan), strict=True):
        panels.draw_panel(axis, panel)
    return figure


def scaling_panels(plan: Plan) -> list[panels.Panel]:
    """Create the panels of time and efficiency by workers, a line for each strategy."""
    names = list(dict.fromkeys(row.name for row in plan.curve))
    first, counts = plan.curve[0], sorted({row.workers for row in plan.curve})
    times: dict[str, panels.Line] = {}
    if len(counts) > 1:
        ideal = [(float(count), 1e3 * first.prediction.seconds / count) for count in counts]
        times["ideal"] = panels.Line(ideal, IDEAL_COLOUR, "ideal")
    efficiencies: dict[str, panels.Line] = {}
    for name, colour in zip(names, panels.COLOURS, strict=False):
        rows = [row for row in plan.curve if row.name == name]
        rows = rows if rows[0].workers == 1 else [first, *rows]  # all strategies have one worker in common
        seconds: list[panels.Point] = [(row.workers, 1e3 * row.prediction.seconds) for row in rows]
        times[name] = panels.Line(seconds, colour, name)
        last = f"{name} {rows[-1].efficiency:.0%}"
        efficiencies[name] = panels.Line([(row.workers, row.efficiency) for row in rows], colour, last)
    axis: dict[str, Any] = {"x_label": "workers", "logarithmic": True, "x_ticks": counts}
    return [
        panels.Panel("ms for an iteration", times, **axis, y_axis="log"),
        panels.Panel("efficiency", efficiencies, **axis, y_axis="percent", includes=(0.0, 1.0)),
    ]
