"""Draws worker groups with server groups of their own, such as sites, and the links between them, above a net."""

from __future__ import annotations

import re
from collections.abc import Iterator

from dsinga.job.topology import Topology
from dsinga.net.drawing.net_svg import COLOURS, MARGIN, TEXT_WIDTH, draw_text

WIDTH, GAP, HEAD, ROW, CELL = 190, 50, 34, 26, 26
MOST_CELLS = 6  # members that are drawn in a row; the others are counted


def with_sites(net_svg: str, topology: Topology, label: str) -> str:
    """Return the SVG of a net below a picture of the groups that train it; ``label`` says what their links carry."""
    size = re.search(r'width="(\d+)" height="(\d+)"', net_svg)
    assert size is not None
    groups = topology.server_groups
    highest = max((second - first for first, second in topology.edges), default=0)
    top = MARGIN + 22 + 18 * highest
    height, inner = top + HEAD + 2 * ROW + MARGIN, groups * (WIDTH + GAP) - GAP + 2 * MARGIN
    width = max(inner, TEXT_WIDTH * len(label) + 2 * MARGIN, float(size[1]))
    below = net_svg.replace("<svg ", f'<svg x="{(width - float(size[1])) / 2:.0f}" y="{height}" ', 1)
    left = (width - inner) / 2 + MARGIN
    return "\n".join(
        [
            f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height + int(size[2])}" '
            'font-family="Helvetica, Arial, sans-serif">',
            draw_text(width / 2, MARGIN + 11, label, 11, "#444444", "middle"),
            *_links(topology, left, top),
            *(part for group in range(groups) for part in _group(topology, group, left + group * (WIDTH + GAP), top)),
            below,
            "</svg>",
        ]
    )


def _links(topology: Topology, left: float, top: float) -> Iterator[str]:
    """Yield the links, as arcs above the groups."""
    for first, second in topology.edges:
        x0, x1 = (left + group * (WIDTH + GAP) + WIDTH / 2 for group in (first, second))
        x0, x1, y = x0 + 9 * (second - first), x1 - 9 * (second - first), top - 24 * (second - first)
        path = f"M{x0:.1f} {top:.1f} C{x0:.1f} {y:.1f} {x1:.1f} {y:.1f} {x1:.1f} {top:.1f}"
        dashes = "" if topology.is_synchronous else ' stroke-dasharray="4 3"'
        yield f'<path class="link" d="{path}" fill="none" stroke="#cc4125" stroke-width="1.6"{dashes}/>'


def _group(topology: Topology, group: int, x: float, y: float) -> Iterator[str]:
    """Yield the box of a group: its number, where it is, and its workers and servers."""
    pattern = topology.mean.site[group] if topology.mean is not None and topology.mean.site else ""
    height = HEAD + 2 * ROW - 6
    yield (
        f'<rect class="site" x="{x:.1f}" y="{y:.1f}" width="{WIDTH}" height="{height}" rx="8" fill="#ffffff" '
        'stroke="#8c8c8c"/>'
    )
    yield draw_text(x + 10, y + 20, f"{'site' if topology.mean else 'group'} {group}", 13, "#111111", "start", True)
    yield draw_text(x + WIDTH - 10, y + 20, pattern, 11, "#444444", "end")
    members = {"trained": ("w", topology.workers), "connection": ("s", topology.servers)}
    for row, (colour, (letter, count)) in enumerate(members.items()):
        fill, frame = COLOURS[colour]
        for number in range(min(count, MOST_CELLS)):
            left, above = x + 10 + number * CELL, y + HEAD - 6 + row * ROW
            yield (
                f'<rect x="{left:.1f}" y="{above:.1f}" width="{CELL - 4}" height="{ROW - 4}" rx="3" fill="{fill}" '
                f'stroke="{frame}"/>'
            )
            yield draw_text(left + CELL / 2 - 2, above + 15, f"{letter}{number}", 10, "#333333", "middle")
        if count > MOST_CELLS:
            yield draw_text(x + WIDTH - 8, y + HEAD + 9 + row * ROW, f"+{count - MOST_CELLS}", 10, "#333333", "end")
