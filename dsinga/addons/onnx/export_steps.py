"""Finds the inputs of an exported net that may have any number of steps."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import GraphWriter
from dsinga.base.errors import UserError
from dsinga.job import LayerType, NetConf
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net

Values = list[tuple[str, tuple[Any, ...]]]  # names of values, and the shapes of their rows
Write = Callable[[NeuralNet], tuple[GraphWriter, Values]]


def with_any_steps(net: NeuralNet, write: Write, graph: GraphWriter, inputs: Values, outputs: Values) -> None:
    """Name the axis of steps "T" or "T_INPUT" where any number of steps gives the same nodes."""
    sizes = {name: shape[0] for name, shape in inputs if len(shape) == (1 if name in graph.integers else 2)}
    found: dict[tuple[str, ...], Values] = {}
    for name in sizes:
        if longer := _of_one_step_more(net, write, graph, sizes, [name]):
            found[name,] = longer
    left = [name for name in sizes if (name,) not in found]
    for size in {sizes[name] for name in left}:
        together = [name for name in left if sizes[name] == size]
        if len(together) > 1 and (longer := _of_one_step_more(net, write, graph, sizes, together)):
            found[tuple(together)] = longer
    for names, longer in found.items():
        axis = "T" if len(found) == 1 else f"T_{names[0]}"
        inputs[:] = [(name, (axis, *shape[1:]) if name in names else shape) for name, shape in inputs]
        for k, ((output, shape), (_, other)) in enumerate(zip(outputs, longer, strict=True)):
            axes = zip(shape, other, strict=True)
            outputs[k] = output, tuple(n if n in (m, None) or isinstance(n, str) else axis for n, m in axes)


def _of_one_step_more(
    net: NeuralNet, write: Write, graph: GraphWriter, sizes: Mapping[str, int], names: Sequence[str]
) -> Values:
    """Export the net with one more step in some inputs; [] if one more, or one less, changes nodes."""
    size = sizes[names[0]]
    results = []
    for steps in (size + 1, max(size - 1, 1)):
        try:
            other, outputs = write(net_of_steps(net, dict.fromkeys(names, steps)))
        except UserError:
            return []
        if not _are_same(graph, other):
            return []
        results.append(outputs)
    return results[0]


def net_of_steps(net: NeuralNet, steps: Mapping[str, int]) -> NeuralNet:
    """Create the net for other numbers of steps, by input."""
    infos = {}
    for layer in map(net.layer, net.inputs):
        shape = stored_shape(layer)
        labels = layer.label_format
        per_step = labels.shape == shape[:1]
        if layer.name in steps:
            shape = (steps[layer.name], *shape[1:])
        infos[layer.name] = RecordInfo(
            shape, layer.shape[0], labels.dtype is not None, label_shape=shape[:1] if per_step else labels.shape,
            mean=getattr(layer, "mean", None), std=getattr(layer, "std", None), codes=getattr(layer, "codes", 0),
        )  # fmt: skip
    layers = [node.layer.conf for node in net.nodes]
    named = {source for layer in layers for source in layer.srclayers}
    layers = [layer for layer in layers if layer.type is not LayerType.kSplit or layer.name in named]
    return create_net(NetConf(layer=layers), net.phase, infos)


def stored_shape(layer: Any) -> tuple[int, ...]:
    """Return the shape of an input layer's stored record."""
    return tuple(getattr(layer, "stored", layer.shape[1:]))


def _are_same(graph: GraphWriter, other: GraphWriter) -> bool:
    return graph.nodes == other.nodes and graph.weights.keys() == other.weights.keys() and all(
        array.shape == other.weights[name].shape
        and (array.ctypes.data == other.weights[name].ctypes.data or np.array_equal(array, other.weights[name]))
        for name, array in graph.weights.items()
    )  # fmt: skip
