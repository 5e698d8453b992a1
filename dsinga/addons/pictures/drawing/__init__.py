"""Draws a net, or a partitioned net with a swimlane for each worker, as a self-contained SVG."""

from dsinga.addons.pictures.drawing.net_svg import net_to_svg, with_sites
from dsinga.addons.pictures.drawing.partitioned_svg import partitioned_to_svg
from dsinga.base.arguments import format_bytes
from dsinga.base.registry import register
from dsinga.cutting.cluster_topology import topology
from dsinga.cutting.partitioned import PartitionedNet
from dsinga.job import Job
from dsinga.net.neuralnet import NeuralNet


@register("drawing", "NeuralNet", "PartitionedNet")
def picture(net: NeuralNet | PartitionedNet, job: Job | None = None) -> str:
    """Draw a net as SVG, below its job's server groups if there are several."""
    drawing = net_to_svg(net) if isinstance(net, NeuralNet) else partitioned_to_svg(net)
    groups = topology(job or Job(), 1, 1)
    if groups.server_groups == 1:
        return drawing
    from dsinga.cluster.server.compression import BITS

    whole = net if isinstance(net, NeuralNet) else net.whole
    bits = BITS[groups.mean.compression] if groups.mean else 32.0
    size = format_bytes(sum(param.size for param in whole.params.values()) * bits / 8)
    return with_sites(drawing, groups, f"each link carries {size} each way, every {groups.sync_freq} steps")
