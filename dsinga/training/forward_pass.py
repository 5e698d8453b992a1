"""The forward pass: computes a net's layers in order, and keeps inputs and outputs for the backward pass."""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from dsinga.layers.interface.context import Context, Records
from dsinga.layers.interface.contract import add_layer_note, check_labels, check_output
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Array, Layer, Output
from dsinga.net import Edge, NeuralNet, Stage
from dsinga.net.dataflow import WHOLE_FEATURE
from dsinga.training.metrics import Metrics, defer_metrics, read_metrics, report_metrics


class TapeEntry(NamedTuple):
    """The inputs and the output of a layer in the forward pass, kept for the backward pass.

    Inputs are features as they were made; :func:`sources_of_layer` converts them for the layer.
    """

    stage: Stage
    params: list[Array]
    sources: list[Any]
    output: Output
    ctx: Context


def forward(
    net: NeuralNet,
    values: Mapping[str, Array],
    records: Mapping[str, Records],
    ctx: Context,
    keep: Collection[str] = (),
) -> tuple[dict[str, Output], Metrics]:
    """Run a forward pass: return the outputs of the layers ``keep``, and the metrics.

    ``values[name]`` is looked up right before the first layer that uses the param, and may block.
    """
    positions = {net.position(name) for name in keep}
    outputs: dict[str, Output] = {}
    metrics: list[tuple[str, Mapping[str, tuple[float, float]]]] = []
    for entry in forward_pass(net, values, records, ctx):
        layer = entry.stage.layer
        if entry.output.metrics:
            metrics.append((layer.name, entry.output.metrics))
        if entry.stage.position in positions:
            outputs[layer.name] = entry.output._replace(feature=ctx.ops.to_float32(entry.output.feature))
        del entry  # or it would keep its features alive while the next layer computes
    if ctx.unread is not None:
        return outputs, defer_metrics(metrics, ctx)
    return outputs, report_metrics(net, read_metrics(metrics, ctx.ops))


def forward_pass(
    net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context
) -> Iterator[TapeEntry]:
    """Compute the layers in order; yield inputs and output of each, kept only while needed."""
    features: list[Any] = []
    labels: list[Any] = []
    params_by_name: dict[str, Array] = {}
    observe, has_labels, has_bf16 = ctx.observer, False, ctx.ops.has_bf16_features
    for stage in net.stages:
        layer, edges = stage.layer, stage.edges
        if layer.is_input:
            sources = [records[layer.name]]
        elif stage.plain:
            sources = [features[edge.node] for edge in edges]
        else:
            sources = [labels_of(labels, edge) if edge.labels else part_of(features, edge) for edge in edges]
        for name in stage.params:
            if name not in params_by_name:
                params_by_name[name] = values[name]
        given = sources
        if has_bf16:
            sources = sources_of_layer(layer, sources, ctx)
        layer_ctx = ctx if stage.rows is None else ctx.of(stage.rows, layer.region is not None)
        if stage.recompute:
            layer_ctx = layer_ctx.repeatable()
        params = [params_by_name[name] for name in stage.params]
        for k in stage.by_rows:
            params[k] = params[k][layer_ctx.rows.start : layer_ctx.rows.stop]
        try:
            if observe is None:
                output = layer.compute_feature(params, sources, layer_ctx)
            else:
                output = observe(layer, "forward", layer.compute_feature, params, sources, layer_ctx)
            check_output(layer, params, sources, output)
            if net.bridged:
                check_labels(layer, output)
        except Exception as error:
            add_layer_note(error, layer, "compute_feature")
            raise
        if output.labels is None and has_labels:
            source_labels = [labels_of(labels, edge) for edge in edges]
            if any(array is not None for array in source_labels):
                output = output._replace(labels=layer.hand_on_labels(source_labels, layer_ctx))
        has_labels = has_labels or output.labels is not None
        features.append(output.feature)
        labels.append(output.labels)
        for k, role, name in stage.state:  # which a further use in this pass goes on from
            if k not in stage.by_rows and output.state.get(role) is not None:
                params_by_name[name] = output.state[role]
        for node in stage.releases:
            features[node] = None
        yield TapeEntry(stage, params, given, output, layer_ctx)
        del sources, given, output  # or they would live while the next layer computes


def sources_of_layer(layer: Layer, sources: list[Any], ctx: Context) -> list[Any]:
    """Convert a layer's inputs to dtypes that it accepts: float32 unless it supports bfloat16."""
    if not ctx.ops.has_bf16_features or layer.bf16 is Bfloat16.kFeatures or layer.is_input:
        return sources
    return [ctx.ops.to_float32(source) for source in sources]


def without_features(entry: TapeEntry) -> TapeEntry:
    """Drop the inputs and outputs of a layer that gets no gradient, to free memory."""
    output = entry.output
    return TapeEntry(
        entry.stage, entry.params, [], Output(None, None, output.labels, output.metrics, output.state), entry.ctx
    )


def needed_for_gradient(entry: TapeEntry) -> TapeEntry:
    """Drop the inputs and the output that a layer's gradient does not read, to free memory."""
    stage, params, sources, output, ctx = entry
    keeps = stage.layer.keeps
    if keeps.sources is not None:
        sources = keeps.of(sources)
    return TapeEntry(stage, params, sources, output if keeps.feature else output._replace(feature=None), ctx)


def part_of(features: list[Any], edge: Edge) -> Any:
    """Return the input that a layer reads from a source: the source's whole output or a part."""
    feature = features[edge.node]
    return feature if edge.part == WHOLE_FEATURE else feature[edge.part]


def labels_of(labels: list[Any], edge: Edge) -> Any:
    """Return the labels that come with an input of a layer."""
    node_labels = labels[edge.node]
    if not isinstance(node_labels, tuple):
        return node_labels
    return np.concatenate(node_labels) if edge.part == WHOLE_FEATURE else node_labels[edge.part]
