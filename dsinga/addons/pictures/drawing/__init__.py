"""Draws a net, or a partitioned net with a swimlane for each worker, as a self-contained SVG."""

from dsinga.addons.pictures.drawing.net_svg import net_to_svg, with_sites
from dsinga.addons.pictures.drawing.partitioned_svg import partitioned_to_svg
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.partitioned import PartitionedNet

__all__ = ["net_to_svg", "partitioned_to_svg", "with_sites"]

# Notebooks show nets as these pictures. It is set here because the nets must not import what draws them.
NeuralNet._repr_html_ = net_to_svg
PartitionedNet._repr_html_ = partitioned_to_svg
