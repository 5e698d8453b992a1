"""The net of one phase: its layers and params; building, partitioning and describing it."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.net.build import create_net, filter_layers, input_layers
    from dsinga.net.dataflow import Edge, Stage
    from dsinga.net.description import LayerRow, PartRow, bridge_traffic, cut_reasons, describe, describe_parts
    from dsinga.net.needed_layers import without_labels
    from dsinga.net.neuralnet import NeuralNet
    from dsinga.net.node import Node, Param
    from dsinga.net.partitioned import LayerCut, ParamPart, PartitionedNet, join_params, split_params
    from dsinga.net.partitioning import partition
    from dsinga.net.strategy import choose_cuts
else:
    __getattr__, __dir__ = lazy_names(__name__)
