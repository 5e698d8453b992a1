"""Draws a partitioned net as a self-contained SVG with a swimlane and a colour for each worker."""

from __future__ import annotations

import colorsys
import math
from collections.abc import Mapping, Sequence
from html import escape

from dsinga.addons.pictures.drawing import net_svg
from dsinga.addons.pictures.drawing.swimlanes import LayerBox, SwimlaneLayout, find_boxes, place_boxes
from dsinga.cutting.bridges import BridgeDst, BridgeSrc
from dsinga.cutting.description import PartRow, describe_parts, part_shape
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.layers.bridge import BridgeEnd

LAYER_HEIGHT, SMALL_HEIGHT, GAP_Y, WIDE_GAP_Y, GAP_X, LANE_GAP, HEAD = 44, 19, 22, 40, 18, 36, 30
SMALL_WIDTH = 5.6  # of a character in the 10 px font
EDGE = "#888888"
GOLDEN_ANGLE = 137.508 / 360  # gives neighbours different hues for any number of workers


def partitioned_to_svg(net: PartitionedNet) -> str:
    """Draw a partitioned net with a swimlane for each worker, data at the top, parts of a layer side by side.

    Connection layers that partitioning adds are small; those that communicate are white. Edges between workers have a
    tip at both ends if the gradient comes back. Hovering over a box shows what it computes, its params, and why it is
    not cut as the job asks.
    """
    picture = _Picture(net)
    params = sum(param.size for param in net.whole.params.values())
    title = f"{len(net.whole.nodes)} layers, {params:,} params, {len(net.locals)} workers"
    return "\n".join(
        [
            *net_svg.head(picture.width, picture.height, title),
            "<defs>",
            marker("tip", EDGE),
            *(marker(f"tip{k}", colours(k)[1]) for k in range(len(net.locals))),
            *(marker(f"back{k}", colours(k)[1], back=True) for k in range(len(net.locals))),
            "</defs>",
            *(picture.lane(location) for location in range(len(net.locals))),
            *picture.edges(),
            *(picture.box(k) for k in range(len(picture.boxes))),
            "</svg>",
        ]
    )


def colours(location: int) -> tuple[str, str]:
    """Return the fill and frame colours of a worker's boxes, readable on white and on black."""
    hue = (210 / 360 + location * GOLDEN_ANGLE) % 1
    return hexadecimal(hue, 0.88, 0.6), hexadecimal(hue, 0.5, 0.5)


def hexadecimal(hue: float, lightness: float, saturation: float) -> str:
    """Format a colour as #rrggbb."""
    return "#" + "".join(f"{round(255 * part):02x}" for part in colorsys.hls_to_rgb(hue, lightness, saturation))


def marker(name: str, colour: str, back: bool = False) -> str:
    """Define an arrow's tip in SVG, for the end or (``back``) the start of a path."""
    reach, path = (1, "M8 0.5 0 4 8 7.5z") if back else (7, "M0 0.5 8 4 0 7.5z")
    return (
        f'<marker id="{name}" viewBox="0 0 8 8" refX="{reach}" refY="4" markerUnits="userSpaceOnUse" markerWidth="8" '
        f'markerHeight="8" orient="auto"><path d="{path}" fill="{colour}"/></marker>'
    )


class _Picture:
    def __init__(self, net: PartitionedNet):
        self.net = net
        self.rows: Mapping[tuple[str, int], PartRow] = {(row.layer, row.location): row for row in describe_parts(net)}
        self.boxes = find_boxes(net)
        self.texts = [self._texts(box) for box in self.boxes]
        self.small = [len(text) == 1 for text in self.texts]
        widths = [net_svg.text_width(*text) if text[1:] else SMALL_WIDTH * len(text[0]) + 20 for text in self.texts]
        widest = max((width for width, small in zip(widths, self.small, strict=True) if not small), default=0)
        self.widths = [width if small else widest for width, small in zip(widths, self.small, strict=True)]
        room = {box: width + GAP_X for box, width in zip(self.boxes, self.widths, strict=True)}
        self.lanes: SwimlaneLayout = place_boxes(net, self.boxes, room.__getitem__, net_svg.EDGE_WIDTH, LANE_GAP)
        ranks = range(max(self.lanes.rank, default=-1) + 1)
        tall = {rank for rank, small in zip(self.lanes.rank, self.small, strict=True) if not small}
        self.heights = [LAYER_HEIGHT if rank in tall else SMALL_HEIGHT for rank in ranks]
        crossed = {self.lanes.rank[source] for source, _ in self._between()}
        gaps = [WIDE_GAP_Y if rank in crossed else GAP_Y for rank in ranks]
        self.tops = [net_svg.MARGIN + HEAD + 12 + sum(self.heights[:rank]) + sum(gaps[:rank]) for rank in ranks]
        self.left = net_svg.MARGIN + 8
        self.width = max((right for _, right in self.lanes.extents), default=0) + 2 * self.left
        self.height = (self.tops[-1] + self.heights[-1] if self.tops else net_svg.MARGIN + HEAD) + 12 + net_svg.MARGIN

    def lane(self, location: int) -> str:
        fill, frame = colours(location)
        left, right = self.lanes.extents[location]
        local = self.net.locals[location]
        count = sum(param.size for param in local.params.values())
        x, y, width, height = self.left + left - 8, net_svg.MARGIN, right - left + 16, self.height - 2 * net_svg.MARGIN
        return (
            f'<rect class="lane" x="{x:.1f}" y="{y}" width="{width:.1f}" height="{height:.1f}" '
            f'rx="10" fill="{frame}" fill-opacity="0.09" stroke="{frame}" stroke-opacity="0.35"/>'
            + net_svg.draw_text(x + 12, y + 21, f"worker {location}", 14, frame, "start", bold=True)
            + net_svg.draw_text(x + width - 12, y + 21, f"{count:,} params" if count else "", 11, frame, "end")
        )

    def edges(self) -> list[str]:
        between = self._between()
        within = [
            self._edge(source, k)
            for k, box in enumerate(self.boxes)
            for source in box.sources
            if (source, k) not in between
        ]
        return within + [self._bridge(source, k) for source, k in between]

    def _between(self) -> dict[tuple[int, int], None]:
        pairs = ((source, k) for k, box in enumerate(self.boxes) for source in box.sources)
        return {pair: None for pair in pairs if self.boxes[pair[0]].location != self.boxes[pair[1]].location}

    def box(self, k: int) -> str:
        box, texts = self.boxes[k], self.texts[k]
        fill, frame = colours(box.location)
        x, y, width, height = self._x(k) - self.widths[k] / 2, self._top(k), self.widths[k], self._height(k)
        bridge = isinstance(self.net.nodes[box.nodes[0]].layer, BridgeEnd)
        rect = (
            f'<rect class="{"bridge" if bridge else "connection" if self.small[k] else "layer"}" x="{x:.1f}" '
            f'y="{y:.1f}" width="{width:.1f}" height="{height}" rx="{height / 2 if self.small[k] else 6:.1f}" '
            f'fill="{"#ffffff" if bridge else fill}" stroke="{frame}" stroke-width="{1.6 if bridge else 1.2}"/>'
        )
        if self.small[k]:
            body = net_svg.draw_text(x + width / 2, y + 13, texts[0], 10, "#333333", "middle")
        else:
            body = net_svg.draw_texts(x, x + width, y, texts)
        return f"<g><title>{escape(self._hover(box))}</title>{rect}{body}</g>"

    def _texts(self, box: LayerBox) -> Sequence[str]:
        node = self.net.nodes[box.nodes[0]]
        row = self.rows.get((node.layer.name, box.location))
        if row:
            params = f"{row.count:,} param{'s' if row.count > 1 else ''}" if row.count else ""
            return row.layer, params, row.type.removeprefix("k"), net_svg.format_shape(row.shape)
        layers = [self.net.nodes[position].layer for position in box.nodes]
        peers = {layer.location for layer in layers if isinstance(layer, BridgeEnd)}
        if peers:
            workers = ", ".join(map(str, sorted(peers)))
            return (f"send to {workers}" if isinstance(node.layer, BridgeSrc) else f"receive from {workers}",)
        return (node.layer.name.partition("(")[0],)

    def _hover(self, box: LayerBox) -> str:
        node = self.net.nodes[box.nodes[0]]
        row = self.rows.get((node.layer.name, box.location))
        if row:
            params = [f"{name} {net_svg.format_shape(self.net.parts[name].shape)}" for name in row.params]
            why = [f"gathered: {row.reason}"] if row.reason else []
            return "\n".join([f"{row.layer}: {row.type}", f"{row.part}, on worker {row.location}", *params, *why])
        shown = [self.net.nodes[position] for position in box.nodes]
        return "\n".join(f"{node.layer.name} {net_svg.format_shape(part_shape(node))}" for node in shown)

    def _x(self, k: int) -> float:
        return self.left + self.lanes.x[k]

    def _height(self, k: int) -> int:
        return SMALL_HEIGHT if self.small[k] else LAYER_HEIGHT

    def _top(self, k: int) -> float:
        rank = self.lanes.rank[k]
        return self.tops[rank] + (self.heights[rank] - self._height(k)) / 2

    def _edge(self, source: int, target: int) -> str:
        y, row = self._top(source) + self._height(source), self.lanes.rank[source] + 1
        bends = enumerate(self.lanes.routes[source, target], start=row)
        passed = [(self.left + x, self.tops[row], self.tops[row] + self.heights[row]) for row, x in bends]
        path = net_svg.edge_path(self._x(source), y, passed, (self._x(target), self._top(target)))
        dashes = ' stroke-dasharray="4 3"' if self._labels_only(source, target) else ""
        style = f'fill="none" stroke="{EDGE}" stroke-width="1.3"{dashes} marker-end="url(#tip)"'
        return f'<path d="{path}" {style}/>'

    def _bridge(self, source: int, target: int) -> str:
        sender = self.boxes[source].location
        spread = min(6.0, self.widths[target] / 2 / len(self.net.locals)) * (sender - self.boxes[target].location)
        x, y = self._x(source), self._top(source) + self._height(source)
        aside = math.copysign(self.widths[source] / 4, self._x(target) - x)
        path = net_svg.edge_path(x + aside, y, (), (self._x(target) + spread, self._top(target)))
        layers = [self.net.nodes[position].layer for position in self.boxes[target].nodes]
        back = any(isinstance(layer, BridgeDst) and layer.returns_gradient for layer in layers)
        start = f' marker-start="url(#back{sender})"' if back else ""
        return (
            f'<path class="between" d="{path}" fill="none" stroke="{colours(sender)[1]}" stroke-width="1.8"{start} '
            f'marker-end="url(#tip{sender})"/>'
        )

    def _labels_only(self, source: int, target: int) -> bool:
        carried = [
            k == self.net.nodes[position].layer.labels.source
            for position in self.boxes[target].nodes
            for k, node_source in enumerate(self.net.nodes[position].sources)
            if node_source in self.boxes[source].nodes
        ]
        return all(carried)
