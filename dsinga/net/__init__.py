"""Builds and describes the net of one phase, such as training: its layers, shapes and params."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.net.build import create_net, filter_layers, input_layers
    from dsinga.net.dataflow import Edge, Stage
    from dsinga.net.description import LayerRow, describe
    from dsinga.net.needed_layers import without_labels
    from dsinga.net.neuralnet import NeuralNet
    from dsinga.net.node import Node, Param
else:
    __getattr__, __dir__ = lazy_names(__name__)
