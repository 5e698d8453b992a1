"""Draws panels of lines with Matplotlib; all figures of this package get one look and file format here."""

from __future__ import annotations

import io
import math
import re
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from html import escape
from typing import Any, NamedTuple

from dsinga.base.errors import UserError

Point = tuple[float, float]

# Wong, "Points of view: Color blindness", Nature Methods 8 (2011): distinguishable by colour-blind readers and in grey.
COLOURS = ("#0072b2", "#d55e00", "#009e73", "#cc79a7", "#e69f00", "#56b4e9", "#000000")
WIDTH, HEIGHT = 3.96, 2.81  # inches of a panel: on a screen 380 and 270 pixels
MAX_POINTS = 400  # of a line: more points than a panel has pixels would only make the notebook larger
LEGEND_WIDTH = 56  # characters of the labels in a row; each label has six more for its line
HOVER = "hover: "  # prefix of the ids of elements that show a text on hover
DOTTED = 40  # of a line with at most so many points each has a dot
STYLE = {
    "font.size": 8, "font.sans-serif": ["DejaVu Sans", "Verdana"], "figure.edgecolor": "#e2e2e2",
    "figure.constrained_layout.h_pad": 0.1, "figure.constrained_layout.w_pad": 0.1, "axes.titlelocation": "left",
    "axes.titleweight": "bold", "axes.titlesize": 9.5, "axes.titlecolor": "#222222", "axes.edgecolor": "#999999",
    "axes.labelcolor": "#666666", "axes.spines.top": False, "axes.spines.right": False, "axes.axisbelow": True,
    "axes.grid": True, "axes.grid.axis": "y", "grid.color": "#ececec", "xtick.color": "#999999",
    "ytick.color": "#999999", "xtick.labelcolor": "#666666", "ytick.labelcolor": "#666666", "lines.linewidth": 1.2,
    "lines.markersize": 4, "legend.frameon": False, "legend.handlelength": 1.2, "legend.columnspacing": 1.2,
    "legend.borderpad": 0, "legend.borderaxespad": 0.2, "svg.fonttype": "none", "svg.hashsalt": "dsinga",
    "savefig.dpi": 150, "text.parse_math": False,
}  # fmt: skip


class Line(NamedTuple):
    """A line of a panel: its points in drawing order, and its colour.

    ``label`` is its text in the legend; "" means its name with its last value, None no text.
    """

    points: Sequence[Point]
    colour: str
    label: str | None = ""


class Panel(NamedTuple):
    """One set of axes: its title, lines by name, x label, and whether x ticks are integers only.

    The x axis may be ``logarithmic``, for values above 0, with powers of ten or ``x_ticks`` as ticks. ``y_axis`` is
    "linear", "log" or "percent" (1 is 100%); the axis always shows ``includes``.
    """

    title: str
    lines: Mapping[str, Line]
    x_label: str = "step"
    integer_ticks: bool = True
    logarithmic: bool = False
    x_ticks: Sequence[float] = ()
    y_axis: str = "linear"
    includes: Sequence[float] = ()


def need_matplotlib() -> None:
    """Raise UserError if Matplotlib is not installed."""
    try:
        import matplotlib.pyplot  # noqa: F401
    except ImportError as error:
        raise UserError(f"drawing needs Matplotlib ({error}): pip install 'dsinga[plot]'") from None


@contextmanager
def look() -> Iterator[None]:
    """Give figures the look of this package, as a context or decorator; the user's style is ignored."""
    need_matplotlib()
    from matplotlib import style

    with style.context(["default", STYLE]):
        yield


def new_figure(width: float, height: float, label: str) -> Any:
    """Create a figure without a window, in inches; ``label`` describes it to screen readers."""
    from matplotlib.figure import Figure

    figure = Figure((width, height), layout="constrained", linewidth=1)
    figure.set_label(label)
    return figure


@look()
def to_bytes(figure: Any, ending: str) -> bytes:
    """Render a figure as a file's bytes: PNG or PDF for the endings ".png" and ".pdf", otherwise SVG."""
    ending = ending.lower()
    if ending not in (".png", ".pdf"):
        return to_svg(figure).encode()
    file = io.BytesIO()
    figure.savefig(file, format=ending[1:])
    return file.getvalue()


@look()
def to_svg(figure: Any) -> str:
    """Render a figure as an SVG element."""
    file = io.StringIO()
    figure.savefig(file, format="svg", metadata={"Date": None})
    svg = file.getvalue()
    # A rule for all elements would hold for the whole page.
    svg = re.sub(
        r"<metadata>.*?</metadata>|<defs>\s*<style .*?</style>\s*</defs>", "", svg[svg.index("<svg") :], flags=re.S
    )
    style = f'role="img" aria-label="{escape(str(figure.get_label()))}" stroke-linejoin="round" style="max-width:100%"'
    svg = re.sub(rf'<g id="{HOVER}([^"]*)">', r"<g><title>\1</title>", svg)
    return svg.replace("<svg ", f"<svg {style} ", 1)


def show_on_hover(artist: Any, text: str) -> None:
    """Let an artist show a text on hover, in an SVG."""
    artist.set_gid(f"{HOVER}{text}")


def shown(draw: Callable[[], str]) -> str:
    """Return the result of ``draw``, or its UserError as a paragraph, for notebooks."""
    try:
        return draw()
    except UserError as error:
        return f"<p>{escape(str(error))}</p>"


def draw_panels(panels: Sequence[Panel], label: str, columns: int = 0) -> str:
    """Draw the panels side by side as an SVG element, or the text ``label`` if there are none.

    ``label`` describes the picture to screen readers. NaN and infinity leave a gap.
    """
    return to_svg(panels_figure(panels, label, columns))


@look()
def panels_figure(panels: Sequence[Panel], label: str, columns: int = 0) -> Any:
    """Create the figure of :func:`draw_panels`."""
    columns = columns or max(len(panels), 1)
    rows = max(-(-len(panels) // columns), 1)
    figure = new_figure(WIDTH * columns, HEIGHT * rows, label)
    for number, panel in enumerate(panels):
        draw_panel(figure.add_subplot(rows, columns, number + 1), panel)
    if not panels:
        figure.text(0.5, 0.5, label, ha="center", color="#666666")
    return figure


def draw_panel(axis: Any, panel: Panel) -> None:
    """Draw a panel on Matplotlib axes, with the legend between title and lines."""
    from matplotlib.ticker import MaxNLocator

    for name, line in panel.lines.items():
        text = line.label if line.label is None else line.label or f"{name} {line.points[-1][1]:.4g}".strip()
        marker = "." if len(line.points) <= DOTTED else ""
        axis.plot(*zip(*line.points, strict=True), color=line.colour, label=text or "_", marker=marker)
    axis.set(xlabel=panel.x_label, xscale="log" if panel.logarithmic else "linear")
    if panel.x_ticks:
        axis.set_xticks(panel.x_ticks, [step_text(tick) for tick in panel.x_ticks])
    elif panel.logarithmic:
        axis.xaxis.set_major_formatter(power_text)
    else:
        axis.xaxis.set_major_locator(MaxNLocator(6, integer=panel.integer_ticks, steps=[1, 2, 5, 10]))
        axis.xaxis.set_major_formatter(lambda value, _: step_text(value))
    if panel.y_axis == "log":
        axis.set_yscale("log")
        set_powers(axis, *axis.get_ylim())
    else:
        axis.yaxis.set_major_formatter("{x:.0%}" if panel.y_axis == "percent" else "{x:.6g}")
    axis.set_xticks([], minor=True)
    axis.update_datalim([(1, value) for value in panel.includes], updatex=False)
    axis.autoscale_view()
    draw_legend(axis, panel.title)


def set_powers(axis: Any, low: float, high: float) -> None:
    """Set the ticks of a logarithmic y axis: powers of ten, and numbers between if possible."""
    from matplotlib.ticker import LogLocator

    axis.yaxis.set_major_locator(LogLocator(subs=(1, 2, 5) if high < 200 * low else (1,)))
    axis.yaxis.set_major_formatter(power_text)
    axis.set_yticks([], minor=True)


def draw_legend(axis: Any, title: str) -> None:
    """Give axes a title, and a legend between title and axes."""
    names = axis.get_legend_handles_labels()[1]
    columns = max(1, LEGEND_WIDTH // (6 + max(map(len, names), default=0)))
    axis.set_title(title, pad=6 + 12.5 * math.ceil(len(names) / columns))
    if names:
        axis.legend(loc="lower left", bbox_to_anchor=(0, 1), ncols=columns, labelcolor="linecolor")


def draw_bars(
    axis: Any, parts: Mapping[str, Sequence[float]], texts: Sequence[str], title: str, colours: Sequence[str]
) -> None:
    """Draw horizontal bars, the first on top, each of several parts with a text at its end."""
    starts, rows = [0.0] * len(texts), range(len(texts))
    for (name, lengths), colour in zip(parts.items(), colours, strict=True):
        bars = axis.barh(rows, lengths, 0.6, starts, color=colour, label=name if len(parts) > 1 else "_")
        starts = [start + length for start, length in zip(starts, lengths, strict=True)]
        for bar in bars:
            show_on_hover(bar, name)
    draw_legend(axis, title)
    axis.bar_label(bars, texts, padding=4, color="#444444")
    axis.set(xlim=(0, max(starts, default=0) or 1), ylim=(len(texts) - 0.5, -0.5), xticks=(), yticks=())
    axis.grid(visible=False)
    axis.spines[:].set_visible(False)
    axis.tick_params(left=False, labelcolor="#222222")


def thin(points: Sequence[Point], max_points: int = MAX_POINTS) -> list[Point]:
    """Thin out a line to at most ``max_points`` points: first, last, and the extremes of intervals between."""
    if len(points) <= max_points:
        return list(points)
    count = (max_points - 2) // 2
    inner = points[1:-1]
    selection = [points[0]]
    for i in range(count):
        interval = inner[len(inner) * i // count : len(inner) * (i + 1) // count]
        selection += sorted({min(interval, key=lambda p: p[1]), max(interval, key=lambda p: p[1])})
    return [*selection, points[-1]]


def step_text(value: float) -> str:
    """Format a step: 800, 1000, 20k, 1.5M."""
    for unit, letter in ((1e6, "M"), (1e3, "k")):
        if value >= 10 * unit:
            return f"{value / unit:.6g}{letter}"
    return f"{value:.7g}"


def power_text(value: float, _place: float = 0) -> str:
    """Format a number of a logarithmic axis: 1e-5, 0.01, 1, 1000."""
    return (f"{value:.0e}" if value < 1e-3 else f"{value:.6g}").replace("e-0", "e-").replace("e+0", "e")
