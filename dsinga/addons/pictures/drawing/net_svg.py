"""Draws a net as a self-contained SVG with a box for each layer and the data at the top."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Sequence
from html import escape

from dsinga.addons.pictures.drawing.layered_layout import layered_layout
from dsinga.cutting.cluster_topology import Topology
from dsinga.layers.interface.layer import Layer
from dsinga.net.description import LayerRow, describe
from dsinga.net.neuralnet import NeuralNet

MOST_CELLS = 6  # members that are drawn in a row; the others are counted
COLOURS = {  # category: (fill, frame), readable on white and on black
    "input": ("#d9ead3", "#6aa84f"),
    "trained": ("#cfe2f3", "#3d85c6"),
    "neuron": ("#eeeeee", "#8c8c8c"),
    "loss": ("#f4cccc", "#cc4125"),
    "output": ("#fff2cc", "#d6a520"),
    "connection": ("#e6dcf2", "#8e7cc3"),
}
BOX_HEIGHT, GAP_Y, GAP_X, EDGE_WIDTH, MARGIN = 44, 26, 28, 26, 12
NAME_WIDTH, TEXT_WIDTH = 7.6, 6.4  # of a character in the bold 13 px and the plain 11 px font, on the wide side


def net_to_svg(net: NeuralNet) -> str:
    """Draw a net as SVG: each layer's name, type, feature shape and number of params, coloured by category.

    Edges that carry only labels are dashed. Hovering over a box shows the names and shapes of its params.
    """
    rows = describe(net)
    width = max(text_width(*box_texts(row)) for row in rows)
    grid = layered_layout([node.sources for node in net.nodes], width + GAP_X, EDGE_WIDTH)
    total_width = grid.width - GAP_X + 2 * MARGIN
    total_height = (max(grid.rank) + 1) * (BOX_HEIGHT + GAP_Y) - GAP_Y + 2 * MARGIN
    x = [MARGIN - GAP_X / 2 + place for place in grid.x]
    y = [MARGIN + rank * (BOX_HEIGHT + GAP_Y) for rank in grid.rank]
    parts = [
        *head(total_width, total_height, f"{len(rows)} layers, {sum(row.count for row in rows):,} params"),
        '<defs><marker id="tip" viewBox="0 0 8 8" refX="7" refY="4" markerWidth="7" markerHeight="7" orient="auto">'
        '<path d="M0 0 8 4 0 8z" fill="#777777"/></marker></defs>',
    ]
    for position, stage in enumerate(net.stages):
        for source in dict.fromkeys(stage.edges):
            bends, top = grid.routes[source.node, position], y[source.node]
            tops = (top + (BOX_HEIGHT + GAP_Y) * row for row in range(1, len(bends) + 1))
            passed = [(MARGIN - GAP_X / 2 + x_, top, top + BOX_HEIGHT) for x_, top in zip(bends, tops, strict=True)]
            path = edge_path(x[source.node], top + BOX_HEIGHT, passed, (x[position], y[position]))
            dashes = ' stroke-dasharray="4 3"' if source.labels else ""
            parts.append(
                f'<path d="{path}" fill="none" stroke="#777777" stroke-width="1.3"{dashes} marker-end="url(#tip)"/>'
            )
    parts += [draw_box(net, k, row, x[k], y[k], width) for k, row in enumerate(rows)]
    return "\n".join([*parts, "</svg>"])


def draw_box(net: NeuralNet, position: int, row: LayerRow, x: float, y: float, width: float) -> str:
    """Draw a layer's box with the middle of its upper side at (x, y)."""
    fill, frame = COLOURS[category(net.nodes[position].layer)]
    left, right = x - width / 2, x + width / 2
    params = [f"{name} {format_shape(net.params[name].shape)}" for name in row.params]
    hover = "\n".join([f"{row.layer}: {row.type}", *params])
    rect = (
        f'<rect x="{left:.1f}" y="{y:.1f}" width="{width:.1f}" height="{BOX_HEIGHT}" rx="6" fill="{fill}" '
        f'stroke="{frame}" stroke-width="1.2"/>'
    )
    return f"<g><title>{escape(hover)}</title>{rect}{draw_texts(left, right, y, box_texts(row))}</g>"


def head(width: float, height: float, title: str) -> Iterator[str]:
    """Yield the beginning of an SVG of ``width`` x ``height`` pixels."""
    yield (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{width:.0f}" height="{height:.0f}" '
        f'viewBox="0 0 {width:.0f} {height:.0f}" font-family="Helvetica, Arial, sans-serif">'
    )
    yield f"<title>{escape(title)}</title>"


def draw_texts(left: float, right: float, y: float, texts: Sequence[str]) -> str:
    """Draw the texts in the corners of a layer's box, the upper left one in bold."""
    name, params, kind, shape = texts
    return (
        draw_text(left + 10, y + 18, name, 13, "#111111", "start", bold=True)
        + draw_text(right - 10, y + 18, params, 11, "#444444", "end")
        + draw_text(left + 10, y + 35, kind, 11, "#444444", "start")
        + draw_text(right - 10, y + 35, shape, 11, "#444444", "end")
    )


def draw_text(x: float, y: float, text: str, size: int, colour: str, anchor: str, bold: bool = False) -> str:
    """Draw a text; return "" for an empty text."""
    weight = ' font-weight="bold"' if bold else ""
    style = f'font-size="{size}" fill="{colour}" text-anchor="{anchor}"{weight}'
    return f'<text x="{x:.1f}" y="{y:.1f}" {style}>{escape(text)}</text>' if text else ""


def edge_path(x: float, y: float, passed: Iterable[tuple[float, float, float]], end: tuple[float, float]) -> str:
    """Draw an edge from (x, y) to ``end``, straight past rows between: (x, top, bottom) each."""
    path = [f"M{x:.1f} {y:.1f}"]
    for place, top, bottom in passed:
        path.append(f"{curve(x, y, place, top)} V{bottom:.1f}")
        x, y = place, bottom
    return " ".join([*path, curve(x, y, *end)])


def curve(x0: float, y0: float, x1: float, y1: float) -> str:
    """Return an SVG path that leaves and arrives straight down."""
    middle = (y0 + y1) / 2
    return f"C{x0:.1f} {middle:.1f} {x1:.1f} {middle:.1f} {x1:.1f} {y1:.1f}"


def category(layer: Layer) -> str:
    """Return the category that colours a layer, a key of COLOURS."""
    family = layer.conf.type.value // 100
    if layer.is_input or family == 1:
        return "input"
    if layer.is_loss:
        return "loss"
    if layer.is_output:
        return "output"
    if family == 5:
        return "connection"
    return "trained" if layer.params else "neuron"


def box_texts(row: LayerRow) -> Sequence[str]:
    """Return the texts of a layer's box: name, params, type and feature shape."""
    return row.layer, params_text(row), type_text(row), format_shape(row.shape)


def text_width(name: str, params: str, kind: str, shape: str) -> float:
    """Compute the width that the two lines of a box need."""
    return max(NAME_WIDTH * len(name) + TEXT_WIDTH * len(params), TEXT_WIDTH * (len(kind) + len(shape))) + 40


def type_text(row: LayerRow) -> str:
    """Return the layer's type without SINGA's prefix k."""
    return row.typed[1:] if row.type[:1] == "k" and row.type[1:2].isupper() else row.typed


def params_text(row: LayerRow) -> str:
    """Return "1,234 params" for the layer's own params, "shared" for others, both, or ""."""
    owned = f"{row.count:,} param{'s' if row.count > 1 else ''}" if row.count else ""
    return " + ".join(filter(None, [owned, "shared" if row.shared else ""]))


def format_shape(shape: tuple[int, ...]) -> str:
    """Format (64, 3, 32, 32) as "64×3×32×32"."""
    return "×".join(map(str, shape))


WIDTH, GAP, HEAD, ROW, CELL = 190, 50, 34, 26, 26


def with_sites(net_svg: str, topology: Topology, label: str) -> str:
    """Draw the groups that train a net above its SVG; ``label`` says what their links carry."""
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
    for first, second in topology.edges:
        x0, x1 = (left + group * (WIDTH + GAP) + WIDTH / 2 for group in (first, second))
        x0, x1, y = x0 + 9 * (second - first), x1 - 9 * (second - first), top - 24 * (second - first)
        path = f"M{x0:.1f} {top:.1f} C{x0:.1f} {y:.1f} {x1:.1f} {y:.1f} {x1:.1f} {top:.1f}"
        dashes = "" if topology.is_synchronous else ' stroke-dasharray="4 3"'
        yield f'<path class="link" d="{path}" fill="none" stroke="#cc4125" stroke-width="1.6"{dashes}/>'


def _group(topology: Topology, group: int, x: float, y: float) -> Iterator[str]:
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
