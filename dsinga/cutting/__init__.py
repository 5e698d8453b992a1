"""Divides a net over the workers of a group: which part each computes, what it sends, and the memory it needs."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.cutting.cluster_topology import Topology, topology
    from dsinga.cutting.description import PartRow, bridge_traffic, cut_reasons, describe_parts
    from dsinga.cutting.layer_segments import segments
    from dsinga.cutting.partitioned import LayerCut, ParamPart, PartitionedNet
    from dsinga.cutting.partitioning import partition
    from dsinga.cutting.strategy import choose_cuts
else:
    __getattr__, __dir__ = lazy_names(__name__)
