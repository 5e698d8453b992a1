"""Draws a net, or a partitioned net with a swimlane for each worker, as a self-contained SVG."""

from dsinga.addons.pictures.drawing.net_svg import net_to_svg, with_sites
from dsinga.addons.pictures.drawing.partitioned_svg import partitioned_to_svg

__all__ = ["net_to_svg", "partitioned_to_svg", "with_sites"]
