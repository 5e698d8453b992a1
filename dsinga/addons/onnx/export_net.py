"""Exports nets for prediction, with their params, as ONNX nets with the inputs and outputs of ``predict``."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Any, NamedTuple

import numpy as np

from dsinga.addons.onnx.export_estimators import ARRAY, write_predictions, write_records
from dsinga.addons.onnx.export_functions import OPSET, traced_function
from dsinga.addons.onnx.export_graph import FLOAT, INT64, ExportedLayer, GraphWriter, Refused
from dsinga.addons.onnx.export_layers_attention import ATTENTION
from dsinga.addons.onnx.export_layers_dense import DENSE
from dsinga.addons.onnx.export_layers_images import IMAGES
from dsinga.addons.onnx.export_layers_records import RECORDS, record_input
from dsinga.addons.onnx.export_layers_sequences import SEQUENCES
from dsinga.addons.onnx.export_layers_tables import TABLES
from dsinga.addons.onnx.export_steps import Values, stored_shape, with_any_steps
from dsinga.addons.onnx.files import onnx_package
from dsinga.addons.onnx.serving import write_checked
from dsinga.base.arguments import is_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.base.version import __version__
from dsinga.layers import Layer
from dsinga.layers.sequences.timedistributed import TimeDistributed
from dsinga.net import NeuralNet
from dsinga.net.dataflow import Stage
from dsinga.nn.model.predictable import Predictable
from dsinga.nn.words.keras_arguments import checked

ML_OPSET = 3  # of the operators of ai.onnx.ml
STEPS = 64  # of codes: the size of the net of a model that accepts any number of steps
LAYERS = {**DENSE, **IMAGES, **RECORDS, **SEQUENCES, **ATTENTION, **TABLES, "kFunction": traced_function}
SAME = {  # older names of types
    "kCConvolution": "kConvolution", "kCudnnConv": "kConvolution", "kCPooling": "kPooling", "kCudnnPool": "kPooling",
    "kCudnnActivation": "kActivation", "kCudnnBM": "kBM", "kCudnnLRN": "kLRN", "kCudnnSoftmax": "kSoftmax",
    "kRGBImage": "kImagePreprocess",
}  # fmt: skip
# Types with the same nodes for one step as for sequences, since they compute each number by itself.
BY_NUMBER = {"kReLU", "kSigmoid", "kSTanh", "kActivation", "kDropout", "kAdd", "kMultiply", "kArithmetic"}
IMAGE_AXES = (4, 5)  # of a batch of images, or of volumes


class OnnxNet(NamedTuple):
    """An ONNX net without its initialisers: ``weights`` has their arrays by name, views of the params.

    So :func:`dsinga.addons.onnx.written_files.write_onnx` needs no copy.
    """

    model: Any
    weights: Mapping[str, np.ndarray]


@register("method", "export")
@checked
def export_model(
    model: Predictable, path: str | os.PathLike[str], opset: int = OPSET, check: Any = None
) -> float | None:
    """Export the net for prediction to an ONNX file for ONNX Runtime and other servers.

    It accepts records as :meth:`predict` does, any number at a time, and returns the same outputs. Requires
    ``dsinga[onnx]``. ``opset`` is the version of ONNX's operators. With records to ``check``, ONNX Runtime predicts
    them from the file, and the largest difference from :meth:`predict` is returned.

    Images keep the axis of their channels. Axes are called "N" (records) and "T" (steps; "T_INPUT" if there are several
    inputs). Nodes have the names of layers, initializers the names of params. The metadata has the version of dsinga,
    and the names of classes and columns. Params of 1 GB and more are in ``NAME.onnx.data``; keep it with the file. A
    layer that calls a PyTorch function requires onnxscript, and is compared with that function for two numbers of
    records. A conditional random field exports its scores.

    Raises UserError, naming all, for layers that ONNX lacks, if the file cannot be written, or if ONNX Runtime is
    missing for ``check``.
    """
    return write_checked("onnx", model_to_onnx(model, opset), path, model, check)


def model_to_onnx(model: Predictable, opset: int = OPSET) -> OnnxNet:
    """Convert a model of ``dsinga.nn`` to an ONNX net for prediction, with its params.

    Rows are the axis "N", any number of steps the axis "T".
    """
    known, lengths = dict(model.record_shapes), model.text_encoders()
    if not known and all(lengths.get(name, "") is None for name in model.input_names()):
        model.record_shapes = dict.fromkeys(lengths, (STEPS,))
    try:
        (net, params), outputs = merged(model), model.output_layers()
        records = model.record_shapes or model.input_shapes()
    finally:
        model.record_shapes = known
    outputs = outputs or [each.layer.name for each in net.nodes if each.layer.conf.type_name == "kRBMHid"]
    shapes = {name: stored_shape(net.layer(name)) for name in net.inputs}
    augmented = {name: records[name] for name in shapes if records.get(name, shapes[name]) != shapes[name]}

    others = Values()  # inputs from which records are made

    def write(net: NeuralNet) -> tuple[GraphWriter, Values]:
        graph = GraphWriter(params, augmented)
        others[:] = write_records(graph, model)
        graph, results = write_graph(net, graph, outputs, model.has_channels_last())
        if model.served is not None:
            results = write_predictions(graph, model.served, *results[0])
            graph.keep([value for value, _ in results])
        return graph, results

    graph, results = write(net)
    records = {name: shape for name, shape in (shapes | augmented).items() if name not in graph.encoded}
    inputs: Values = [(name, shape) for name, shape in (*others, *records.items()) if graph.takes(name)]
    with_any_steps(net, write, graph, inputs, results)
    if model.served is not None and not others:
        inputs = [(graph.rename(name, ARRAY), shape) for name, shape in inputs]
    metadata = {"dsinga": __version__}
    for name, names in model.trained.names.items():
        of_input = "" if name == model.input_names()[0] else f" of {name}"
        metadata |= {f"{what}{of_input}": json.dumps(given) for what, given in names._asdict().items() if given}
    return finished(graph, inputs, results, model.name, metadata, opset)


def merged(model: Predictable) -> tuple[NeuralNet, Mapping[str, np.ndarray]]:
    """Return a model's net for prediction and its params, with LoRA merged if installed."""
    try:
        from dsinga.addons.lora.model_methods import merged_net
    except ModuleNotFoundError:  # the add-on is missing: then its layers are layers like any
        return model.predicting_net(), model.params
    return merged_net(model)


def finished(
    graph: GraphWriter, inputs: Values, outputs: Values, name: str = "net",
    metadata: Mapping[str, str] = MappingProxyType({}), opset: int = OPSET,
) -> OnnxNet:  # fmt: skip
    """Finish a graph as an ONNX net; inputs and outputs are names of values with row shapes."""
    onnx = onnx_package()
    helper, newest = onnx.helper, onnx.defs.onnx_opset_version()
    types = dict.fromkeys(graph.integers, INT64) | graph.types
    if not is_whole(opset, OPSET) or opset > newest:
        raise UserError(f"opset is {opset!r}; this version of onnx has {newest}, and dsinga writes {OPSET} and newer")
    given, results = (
        [helper.make_tensor_value_info(value, types.get(value, FLOAT), ["N", *shape]) for value, shape in values]
        for values in (inputs, outputs)
    )
    domains = {node.domain for node in graph.nodes} - {""}
    opsets = [helper.make_opsetid("", opset), *(helper.make_opsetid(domain, ML_OPSET) for domain in domains)]
    version = helper.find_min_ir_version_for(opsets)
    proto = helper.make_graph(graph.nodes, name, given, results)
    about = {"producer_name": "dsinga", "producer_version": __version__}
    model = helper.make_model(proto, opset_imports=opsets, ir_version=version, **about)
    helper.set_model_props(model, dict(metadata))
    return OnnxNet(model, graph.weights)


def write_graph(
    net: NeuralNet, graph: GraphWriter, outputs: Sequence[str], channels_last: bool
) -> tuple[GraphWriter, Values]:
    """Export a net's layers to a graph; return it, and its outputs with row shapes."""
    refused, needed = list[str](), {net.position(name) for name in outputs}
    for stage in reversed(net.stages):
        needed.update(edge.node for edge in stage.edges if stage.position in needed)
    inputs = {stage.layer.name for stage in net.stages if stage.position in needed and stage.layer.is_input}
    if clash := sorted(name for name in inputs - graph.encoded.keys() if graph.unique(name) != name):
        raise UserError(f"the input {clash[0]!r} is called as a param, which ONNX does not take; rename one of both")
    features: dict[int, Any] = {}
    lengths: dict[int, str | None] = {}
    for stage in net.stages:
        if stage.position not in needed:
            continue
        layer, node = stage.layer, net.nodes[stage.position]
        sources = ["" if edge.labels else _part(features[edge.node], edge.part) for edge in stage.edges]
        if layer.is_input:
            sources = [graph.encoded.get(layer.name, layer.name)]
            if layer.name not in graph.encoded and _takes_codes(net, stage.position):
                graph.integers.add(sources[0])
        ends = [lengths[edge.node] for edge in stage.edges]
        writer = ExportedLayer(graph, layer, node.params, sources, ends, len(layer.source_shapes[0]) if ends else 0)
        first = len(graph.nodes)
        try:
            features[stage.position] = graph.name_layer(layer.name, write_layer(writer), first)
        except Refused as reason:
            refused.append(f"{layer.name!r} ({layer.conf.type_name}, which {reason})")
            features[stage.position] = [""] * len(layer.part_shapes) or ""
        lengths[stage.position] = writer.ends
    if refused:
        raise UserError(f"ONNX has no operators for the layers {', '.join(refused)}; leave them out of the net")
    layers, results = [net.layer(name) for name in outputs], Values()
    for place, layer in enumerate(layers):
        if layer in layers[:place]:  # an output that is there twice
            value, shape = results[layers.index(layer)]
            results.append((graph.copy(value, layer.name), shape))
        else:
            results.append(_result(graph, layer, features[net.position(layer.name)], channels_last))
    graph.keep([value for value, _ in results])
    return graph, results


def _part(feature: Any, part: int) -> str:
    return str(feature[part] if isinstance(feature, list) else feature)


def _takes_codes(net: NeuralNet, position: int) -> bool:
    """Whether all layers use an input layer's records as codes, also through other layers."""
    layer = net.nodes[position].layer
    if layer.conf.type_name == "kCharRNN":
        return True
    is_plain = getattr(layer, "mean", None) is getattr(layer, "std", None) is None
    followers = [stage for stage in net.stages if any(edge.node == position for edge in stage.edges)]
    return is_plain and bool(followers) and all(_as_codes(net, stage, position) for stage in followers)


def _as_codes(net: NeuralNet, stage: Stage, position: int) -> bool:
    name, edges = stage.layer.conf.type_name, [edge for edge in stage.edges if edge.node == position]
    passes_on = name in ("kSplit", "kDropout") and _takes_codes(net, stage.position)
    is_code = stage.layer.takes_codes or name == "kRNNLabel"
    is_code = is_code or (name == "kSequenceLength" and stage.layer.settings.mask_value is None)
    return is_code or passes_on or all(edge.labels for edge in edges)


def write_layer(w: ExportedLayer) -> Any:
    """Export a layer; return the value of its feature."""
    layer = w.layer
    if layer.is_input:
        return record_input(w)
    name = layer.conf.type_name
    write = LAYERS.get(SAME.get(name, name))
    if write is None:
        raise Refused("is none of those that can be exported")
    if not isinstance(layer, TimeDistributed):
        return write(w)
    inner = layer.layer
    if layer.labels.source is not None:
        raise Refused("takes labels of steps")
    vectors = len(inner.source_shapes[0]) == len(inner.shape) == 2
    w.layer = inner
    if not any(layer.repeated) and (name in BY_NUMBER or (vectors and name in ("kInnerProduct", "kSoftmax"))):
        return write(w)
    return _by_step(w, layer, write)


def _by_step(w: ExportedLayer, layer: TimeDistributed, write: Any) -> str:
    first = next(k for k, is_repeated in enumerate(layer.repeated) if not is_repeated)
    size = w.add("Shape", w.sources[first], start=0, end=2)
    for k, (is_repeated, shape) in enumerate(zip(layer.repeated, layer.layer.source_shapes, strict=True)):
        whole = [("Unsqueeze", [1]), ("Expand", w.add("Concat", size, [*shape[1:]], axis=0))] if is_repeated else []
        w.sources[k] = w.chain(w.floats(k), *whole, ("Reshape", [-1, *shape[1:]]))
    w.rank = len(layer.layer.source_shapes[0])
    return w.add("Reshape", write(w), w.add("Concat", size, [*layer.shape[2:]], axis=0))


def _result(graph: GraphWriter, layer: Layer, value: str, channels_last: bool) -> tuple[str, tuple[int, ...]]:
    shape, order = layer.shape, [*range(len(layer.shape))]
    if channels_last and len(shape) in IMAGE_AXES:
        order = [0, *order[2:], 1]
    is_last = order != sorted(order)
    if value == layer.name and is_last and not layer.is_input:
        value = graph.rename(value, f"{layer.name}/channels_first")
    if value != layer.name or layer.is_input:  # ONNX's outputs are no inputs
        value = graph.copy(value, layer.name, order if is_last else ())
    return value, tuple(shape[axis] for axis in order[1:])
