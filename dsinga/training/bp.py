"""kBP: forward through the net, backward through the net, gradients handed over as they become complete."""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.errors import UserError
from dsinga.layers.base import Array, Output, ParamSpec
from dsinga.layers.context import Context, Records
from dsinga.layers.contract import blame, check_gradients, check_labels, check_output
from dsinga.net import Edge, NeuralNet, Stage
from dsinga.net.dataflow import WHOLE
from dsinga.ops import SparseRows
from dsinga.ops.sparse import add_up, no_rows
from dsinga.registry import register
from dsinga.training.finite import check_visits
from dsinga.training.metrics import Metrics, read_metrics, report_metrics

Push = Callable[[str, Array], None]


class Visit(NamedTuple):
    """What the forward pass of a layer took and made; all that its backward pass needs."""

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
    """Compute the features of ``net``; return the outputs of the layers named in ``keep``, and the metrics.

    ``values[name]`` is asked for right before the first layer that uses the param, and may block. Other features are
    freed as soon as no layer needs them. Raises UserError for a name in ``keep`` that no layer has.
    """
    kept = {net.position(name) for name in keep}
    outputs: dict[str, Output] = {}
    metrics: list[tuple[str, Mapping[str, tuple[float, float]]]] = []
    for visit in visit_layers(net, values, records, ctx):
        layer = visit.stage.layer
        metrics.append((layer.name, visit.output.metrics))
        if visit.stage.position in kept:
            outputs[layer.name] = visit.output
        del visit  # or it would keep its features alive while the next layer computes
    return outputs, report_metrics(net, read_metrics(metrics, ctx.ops))


@register("algorithm", "kBP", "kBPTT")
def bp(
    net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
) -> Metrics:
    """Back-propagation: one forward and one backward pass over the records of one batch (or of a part of it).

    Through time (kBPTT) it is the same, the time steps being in the net: as layers over sequences, or as copies.

    ``values`` is used as in :func:`forward`. ``push(name, gradient)`` is called once for every param of the net, from
    the top layer down, as soon as the gradient is complete: a shared param's after its lowest layer, summed. The array
    is the callee's. Of a param that is not trainable its new state is pushed, times this part's share of the batch, so
    that the parts add up. A param that no loss depends on gets zeros.

    Raises UserError where the net has neither a loss layer nor a bridge to one. Raises Diverged, before anything is
    pushed, where a loss is not finite and such batches are not to be skipped.
    """
    net = net.fused
    if not net.losses and not net.bridged:
        raise UserError(f"the net has no loss layer in phase {net.phase.name}: kBP has no gradient to follow")
    tape: list[Visit] = []
    for visit in visit_layers(net, values, records, ctx):
        tape.append(visit if visit.stage.backward else without_features(visit))
        del visit  # or it would keep features alive that the tape has dropped
    given = ((visit.stage.layer.name, visit.output.metrics) for visit in tape if visit.output.metrics)
    reports = read_metrics(given, ctx.ops)
    metrics = report_metrics(net, reports)
    if not ctx.skips:
        check_visits(net, tape, reports, ctx)
    gradients: list[Any] = [None] * len(tape)  # for the feature of each layer, as far as they have come in
    sums: dict[str, Array] = {}  # for params, likewise
    while tape:
        stage, params, sources, output, own = tape.pop()
        gradient = gradients.pop()
        if stage.backward and (gradient is not None or stage.starts or stage.layer.wants_gradient):
            try:
                computed = stage.layer.compute_gradient(params, sources, output, gradient, stage.needs, own)
                check_gradients(stage.layer, params, sources, computed)
                collect(net, stage, computed, gradients, sums, ctx.ops.add)
                del computed  # or it would live while the next layer computes
            except Exception as error:
                blame(error, stage.layer, "compute_gradient")
                raise
        for k, role, name in stage.state:
            if name not in sums:  # of several uses of one state, the last in the forward pass holds
                sums[name] = new_state(output.state.get(role), params[k], stage.layer.params[k], own)
        for name in stage.completes:
            push(name, sums.pop(name) if name in sums else zeros(net, name, ctx))
    return metrics


def visit_layers(
    net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context
) -> Iterator[Visit]:
    """Compute the feature of layer after layer, holding on to a feature only while a later layer needs it."""
    features: list[Any] = []
    labels: list[Any] = []
    held: dict[str, Array] = {}
    for stage in net.stages:
        layer, edges = stage.layer, stage.edges
        if layer.is_input:
            sources = [records[layer.name]]
        elif stage.plain:
            sources = [features[edge.node] for edge in edges]
        else:
            sources = [labels_of(labels, edge) if edge.labels else part_of(features, edge) for edge in edges]
        for name in stage.params:
            if name not in held:
                held[name] = values[name]
        own = ctx.of(stage.rows)
        params = [held[name] for name in stage.params]
        for k in stage.by_rows:
            params[k] = params[k][own.rows.start : own.rows.stop]
        try:
            output = layer.compute_feature(params, sources, own)
            check_output(layer, params, sources, output)
            if net.bridged:
                check_labels(layer, output)
        except Exception as error:
            blame(error, layer, "compute_feature")
            raise
        if output.labels is None:
            handed = layer.hand_on_labels([labels_of(labels, edge) for edge in edges], own)
            output = output._replace(labels=handed)
        features.append(output.feature)
        labels.append(output.labels)
        for node in stage.releases:
            features[node] = None
        yield Visit(stage, params, sources, output, own)
        del sources, output  # or they would live while the next layer computes


def without_features(visit: Visit) -> Visit:
    """Return what backward needs of a layer that no gradient reaches: its metrics and state, no big arrays."""
    return visit._replace(sources=[], output=visit.output._replace(feature=None, saved=None))


def part_of(features: list[Any], edge: Edge) -> Any:
    """Return what an edge carries: a whole feature, or one part of it."""
    feature = features[edge.node]
    return feature if edge.part == WHOLE else feature[edge.part]


def labels_of(labels: list[Any], edge: Edge) -> Any:
    """Return the labels that come along an edge: those of a part, where each part has its own."""
    given = labels[edge.node]
    if not isinstance(given, tuple):
        return given
    return np.concatenate(given) if edge.part == WHOLE else given[edge.part]


def collect(
    net: NeuralNet,
    stage: Stage,
    computed: tuple[Sequence[Array | None], Sequence[Array | None]],
    gradients: list[Any],
    sums: dict[str, Array],
    add: Callable[[Array, Array], Array],
) -> None:
    """Add what one layer computed to the gradients of its sources (by part, where a source hands parts) and params."""
    for_sources, for_params = computed
    for i, edge in stage.feeds:
        one, node = for_sources[i], edge.node
        if one is None:
            continue
        if edge.part != WHOLE:
            if gradients[node] is None:
                gradients[node] = [None] * net.stages[node].parts
            before = gradients[node][edge.part]
            gradients[node][edge.part] = one if before is None else add(before, one)
        else:
            gradients[node] = one if gradients[node] is None else add(gradients[node], one)
    for name, one in zip(stage.params, for_params, strict=True):
        if one is not None:
            sums[name] = one if name not in sums else add_params(sums[name], one, add)


def add_params(one: Array, other: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Return the sum of two gradients of one param."""
    if isinstance(one, SparseRows) or isinstance(other, SparseRows):
        return add_up([one, other])
    return add(one, other)


def new_state(new: Array | None, old: Array, spec: ParamSpec, ctx: Context) -> Array:
    """Return what a part of a batch pushes of a lasting state: its share of the new one, or of the old if it stays.

    Of a state by rows that is its own rows, and 0 elsewhere.
    """
    if spec.by_rows:
        return whole_rows(old.copy() if new is None else new, spec, ctx)
    share = (ctx.rows.stop - ctx.rows.start) / ctx.rows.total
    if new is None:
        return old * share
    return new if share == 1.0 else new * share


def whole_rows(own: Array, spec: ParamSpec, ctx: Context) -> Array:
    """Return an array of the shape of a state by rows that has the rows at hand, and 0 elsewhere."""
    start, stop, _ = ctx.rows
    if stop - start == spec.shape[0]:
        return own
    whole = ctx.ops.xp.zeros(spec.shape, own.dtype)
    whole[start:stop] = own
    return whole


def zeros(net: NeuralNet, name: str, ctx: Context) -> Array | SparseRows:
    """Return the gradient of a param that no loss depends on."""
    if net.params[name].spec.sparse:
        return no_rows(net.params[name].shape)
    return ctx.ops.xp.zeros(net.params[name].shape, np.float32)
