"""The net: params, the graph of layers of one phase, how it is built, drawn and described."""

from dsinga.net.build import create_net, filter_layers, input_layers
from dsinga.net.cut import cut_rows
from dsinga.net.dataflow import Edge, Stage
from dsinga.net.describe import LayerRow, describe
from dsinga.net.draw import to_svg
from dsinga.net.neuralnet import NeuralNet, Node
from dsinga.net.param import Param

__all__ = [
    "Edge",
    "LayerRow",
    "NeuralNet",
    "Node",
    "Param",
    "Stage",
    "create_net",
    "cut_rows",
    "describe",
    "filter_layers",
    "input_layers",
    "to_svg",
]
