"""Drawing horizontal bars as SVG: a row for each thing that is compared, with a bar of several parts and a text."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from html import escape
from typing import NamedTuple

ROW_HEIGHT, BAR_HEIGHT = 22, 13  # pixels
TITLE_HEIGHT = 46
TEXT_WIDTH = 6.2  # of a character, on average
NAME_WIDTH = 108


class Bar(NamedTuple):
    """A row: its name, the lengths of the parts of its bar by their names, and the text at its end.

    The name is empty in a second column of bars, whose rows are those of the first.
    """

    name: str
    parts: Mapping[str, float]
    text: str


def bars_height(count: int) -> int:
    """Return the height in pixels of a picture with so many bars."""
    return TITLE_HEIGHT + ROW_HEIGHT * count


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
