"""Back-propagation (kBP, kBPTT): a forward and a backward pass that hands over each gradient when complete.

Gradients for params can wait for the next collective. Outputs of layers can be recomputed instead of kept.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from functools import cache
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.layers.interface.context import Context, PassObserver, Records
from dsinga.layers.interface.contract import (
    add_layer_note,
    check_gradients,
    check_param_gradients,
    check_source_gradients,
)
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Array, Gradients, Layer
from dsinga.net import NeuralNet, Stage
from dsinga.net.dataflow import WHOLE_FEATURE, row_share
from dsinga.ops import SparseRows
from dsinga.ops.factored_gradient import to_dense
from dsinga.ops.sparse import add_up, no_rows
from dsinga.training.divergence import check_layer_gradient, check_losses
from dsinga.training.forward_pass import (
    TapeEntry,
    forward_pass,
    needed_for_gradient,
    sources_of_layer,
    without_features,
)
from dsinga.training.metrics import Metrics, defer_metrics, read_metrics, report_metrics

MOST_DEFERRED = 2  # gradients that wait: each keeps a feature and its gradient in memory


class Recomputation:
    """Saves memory: frees outputs after the forward pass, and computes them again in the backward pass.

    Layers with ``recompute`` are computed again from the nearest kept outputs below, with the same params and random
    numbers, so gradients have the same bits. Sums and rows from other workers are kept: nothing is sent again. State,
    labels and metrics come from the first pass (Chen et al., Training Deep Nets with Sublinear Memory Cost, 2016).
    """

    def __init__(self, net: NeuralNet, observer: PassObserver | None):
        self._net, self._observer = net, observer
        self._freed = [stage.recompute for stage in net.stages]

    def free(self, entry: TapeEntry) -> TapeEntry:
        """Free the outputs of a layer that can be recomputed in the backward pass."""
        stage, params, sources, output, ctx = entry if entry.stage.recompute else needed_for_gradient(entry)
        stages = self._net.stages
        if stage.edges:
            again = [stages[edge.node].recompute and not edge.labels for edge in stage.edges]
            sources = [None if freed else source for freed, source in zip(again, sources, strict=True)]
        if stage.recompute:
            output = output._replace(feature=None, saved=None)
        return TapeEntry(stage, params, sources, output, ctx)

    def restore(self, tape: list[TapeEntry]) -> None:
        """Recompute the freed outputs that the next layer of the backward pass needs."""
        needed, pending = set[int](), [len(tape) - 1]
        while pending:
            position = pending.pop()
            if position not in needed:
                needed.add(position)
                pending += [node for node in self._sources(position) if self._freed[node]]
        for position in sorted(needed):
            entry = tape[position]._replace(sources=self._filled(tape, position))
            tape[position] = self._computed(entry) if self._freed[position] else entry
            self._freed[position] = False

    def _sources(self, position: int) -> list[int]:
        """Return which sources of a layer are recomputed."""
        stages = self._net.stages
        return [edge.node for edge in stages[position].edges if stages[edge.node].recompute and not edge.labels]

    def _filled(self, tape: list[TapeEntry], position: int) -> list[Any]:
        stage, sources = tape[position].stage, list(tape[position].sources)
        for k, edge in enumerate(stage.edges):
            if self._net.stages[edge.node].recompute and not edge.labels:
                feature = tape[edge.node].output.feature
                sources[k] = feature if edge.part == WHOLE_FEATURE else feature[edge.part]
        return sources

    def _computed(self, entry: TapeEntry) -> TapeEntry:
        stage, params, sources, output, ctx = entry
        layer, compute = stage.layer, stage.layer.compute_feature
        sources = sources_of_layer(layer, sources, ctx)
        try:
            if self._observer is None:
                again = compute(params, sources, ctx)
            else:
                again = self._observer(layer, "forward", compute, params, sources, ctx)
        except Exception as error:
            add_layer_note(error, layer, "compute_feature")
            raise
        return entry._replace(output=output._replace(feature=again.feature, saved=again.saved))


class Deferral:
    """Computes gradients of params while the backward pass would wait for messages of other workers.

    Args:
        waiting: the functions that collectives call (:attr:`Context.meanwhile`).
        push: receives the gradient of a param.
    """

    def __init__(self, net: NeuralNet, waiting: deque[Callable[[], None]], push: Callable[[str, Array], None]):
        self._net, self._waiting, self._push = net, waiting, push

    def source_gradients(self, entry: TapeEntry, grad: Any, begun: AbstractSet[str]) -> Sequence[Array | None] | None:
        """Return a layer's gradients for its sources at once, and compute its params' gradients later.

        Returns None if the layer computes both together, or if other layers use a param.
        """
        stage, params, sources, output, ctx = entry
        layer, names = stage.layer, stage.params
        has_other_uses = set(names) - set(stage.completes) or not begun.isdisjoint(names)
        if not defers(type(layer)) or has_other_uses or not self._net.static.isdisjoint(names):
            return None
        deferred = layer.defer_gradient(params, sources, output, grad, stage.needs, ctx)
        if deferred is None:
            return None
        for_sources, compute = deferred
        check_source_gradients(layer, sources, for_sources)

        def push() -> None:
            try:
                gradients = compute()
                check_param_gradients(layer, params, gradients)
            except Exception as error:
                add_layer_note(error, layer, "compute_gradient")
                raise
            for name, gradient in zip(names, gradients, strict=True):
                self._push(name, gradient)

        self.finish(MOST_DEFERRED - 1)
        self._waiting.append(push)
        return for_sources

    def finish(self, left: int = 0) -> None:
        """Compute and push the gradients that were left for later, until at most ``left`` remain."""
        while len(self._waiting) > left:
            self._waiting.popleft()()


@cache
def defers(cls: type[Layer]) -> bool:
    """Whether a layer class can compute gradients for sources and params separately."""
    owner = next(base for base in cls.__mro__ if "compute_gradient" in vars(base))
    return owner is not Layer and "defer_gradient" in vars(owner)


Push = Callable[[str, Array], None]


@register("algorithm", kBP=1, kBPTT=3)
def bp(
    net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
) -> Metrics:
    """Back-propagation: one forward and one backward pass over the records of one batch (or of a part of it).

    kBPTT is the same algorithm: time steps are layers over sequences, or copies of layers.

    ``values[name]`` is looked up right before the first layer that uses the param, and may block. ``push(name,
    gradient)`` is called once for every param, from the top layer down, as soon as the gradient is complete. The callee
    owns the array. For a param that is not trainable, such as a running mean, the new value times this part's share of
    the batch is pushed, so that parts add up. A param that affects no loss gets zeros; a static param is not pushed.

    Raises UserError if the net has no loss layer. Unless the job skips such batches, raises Diverged if a loss, or a
    gradient of a user's function or layer, is not finite.

    Your own algorithm is called like this function, and returns metrics, ``{"loss": (sum, count)}``. This example
    scales each gradient to length 1 at most:

    >>> import numpy as np
    >>> import dsinga
    >>> @dsinga.register("algorithm", "UnitGradients")  # model.compile(..., algorithm={"user_alg": "UnitGradients"})
    ... def unit_gradients(net, values, records, ctx, push):
    ...     def push_scaled(name, gradient):
    ...         push(name, gradient / max(np.linalg.norm(gradient), np.float32(1)))
    ...
    ...     return dsinga.training.bp(net, values, records, ctx, push_scaled)

    A job names it ``train_one_batch { user_alg: "UnitGradients" }``.
    """
    return back_propagate(net.at(ctx.step).fused_for(ctx.ops), values, records, ctx, push)


def no_loss(phase: str, algorithm: str) -> str:
    """Return the error text that a net has no loss layer."""
    return (
        f"the net has no loss layer in phase {phase}: {algorithm} has no gradient to follow; add one, or call "
        "model.compile(...) first, if it is a model of dsinga.nn"
    )


def back_propagate(
    net: NeuralNet, values: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
) -> Metrics:
    """Run :func:`bp` layer by layer, without fused kernels or recorded passes."""
    if not net.losses and not net.bridged:
        raise UserError(no_loss(net.phase.name or "", "kBP"))
    tape: list[TapeEntry] = []
    again = Recomputation(net, ctx.observer) if any(stage.recompute for stage in net.stages) else None
    for entry in forward_pass(net, values, records, ctx):
        if again is not None and (entry.stage.backward or entry.stage.recompute):
            tape.append(again.free(entry))
        elif entry.stage.backward:
            tape.append(entry if ctx.observer else needed_for_gradient(entry))
        else:
            tape.append(without_features(entry))
        del entry  # or it would keep features alive that the tape has dropped
    unobserved = ctx.changed(observer=None)
    metrics = metrics_of_layers(net, tape, ctx, lambda: forward_pass(net, values, records, unobserved))
    gradients: list[Any] = [None] * len(tape)  # for the feature of each layer, as far as they have come in
    sums: dict[str, Array] = {}  # for params, likewise
    observe = ctx.observer
    deferral = None if ctx.meanwhile is None or observe is not None else Deferral(net, ctx.meanwhile, push)
    while tape:
        if again is not None and tape[-1].stage.backward:
            again.restore(tape)
        stage, params, sources, output, layer_ctx = entry = tape.pop()
        gradient, put_off = gradients.pop(), None
        if stage.backward and (gradient is not None or stage.starts):
            try:
                compute, needs = stage.layer.compute_gradient, stage.needs
                sources = sources_of_layer(stage.layer, sources, ctx)
                if deferral is not None:
                    put_off = deferral.source_gradients(entry, gradient, sums.keys())
                if put_off is not None:
                    computed: Gradients = put_off, (None,) * len(params)
                elif observe is None:
                    computed = compute(params, sources, output, gradient, needs, layer_ctx)
                else:
                    computed = observe(
                        stage.layer, "backward", compute, params, sources, output, gradient, needs, layer_ctx
                    )
                if ctx.ops.has_bf16_features:
                    computed = cast_gradients(computed, sources, ctx)
                if put_off is None:
                    check_gradients(stage.layer, params, sources, computed)
                if stage.layer.runs_user_code and not ctx.skips and ctx.unread is None:
                    check_layer_gradient(stage.layer, gradient, computed, ctx)
                accumulate_gradients(net, stage, computed, gradients, sums, ctx.ops.add)
                del computed  # or it would live while the next layer computes
            except Exception as error:
                add_layer_note(error, stage.layer, "compute_gradient")
                raise
        for k, role, name in stage.state:
            if name not in sums:  # the last of several uses, which has gone on from the others
                spec = stage.layer.params[k]
                sums[name] = new_state(output.state.get(role), params[k], spec, stage.layer, layer_ctx)
        for name in stage.completes:
            if name in net.static or put_off is not None:
                continue
            push(name, sums.pop(name) if name in sums else zero_gradient(net, name, ctx))
    if deferral is not None:
        deferral.finish()
    return metrics


def metrics_of_layers(
    net: NeuralNet, tape: Sequence[TapeEntry], ctx: Context, repeat: Callable[[], Iterable[TapeEntry]]
) -> Metrics:
    """Return the metrics of a forward pass. Raises Diverged if a loss is not finite.

    ``repeat`` computes the pass again, to find the cause.
    """
    layer_metrics = ((entry.stage.layer.name, entry.output.metrics) for entry in tape if entry.output.metrics)
    if ctx.unread is not None:  # the update then asks on the device whether losses are finite
        return defer_metrics(layer_metrics, ctx)
    reports = read_metrics(layer_metrics, ctx.ops)
    metrics = report_metrics(net, reports)
    if not ctx.skips:
        check_losses(net, tape, reports, ctx, repeat)
    return metrics


def cast_gradients(computed: Any, sources: Sequence[Any], ctx: Context) -> tuple[Sequence[Any], Sequence[Any]]:
    """Convert a layer's gradients to the dtypes of its sources."""
    is_pair = isinstance(computed, tuple) and len(computed) == 2
    if not is_pair or not isinstance(computed[0], (tuple, list)) or len(computed[0]) != len(sources):
        return computed  # check_gradients says what is wrong
    for_sources, for_params = computed
    return [ctx.ops.cast_like(*pair) for pair in zip(for_sources, sources, strict=True)], for_params


def accumulate_gradients(
    net: NeuralNet,
    stage: Stage,
    computed: tuple[Sequence[Array | None], Sequence[Array | None]],
    gradients: list[Any],
    sums: dict[str, Array],
    add: Callable[[Array, Array], Array],
) -> None:
    """Add up the gradients that layers compute for the same sources and params."""
    for_sources, for_params = computed
    for i, edge in stage.feeds:
        gradient, node = for_sources[i], edge.node
        if gradient is None:
            continue
        if edge.part != WHOLE_FEATURE:
            if gradients[node] is None:
                gradients[node] = [None] * net.stages[node].parts
            before = gradients[node][edge.part]
            gradients[node][edge.part] = gradient if before is None else add(before, gradient)
        else:
            gradients[node] = gradient if gradients[node] is None else add(gradients[node], gradient)
    for name, gradient in zip(stage.params, for_params, strict=True):
        if gradient is not None and name not in net.static:
            sums[name] = gradient if name not in sums else add_params(sums[name], gradient, add)


def add_params(first: Array, second: Array, add: Callable[[Array, Array], Array]) -> Array:
    """Add up two gradients of a param."""
    if isinstance(first, SparseRows) or isinstance(second, SparseRows):
        return add_up([to_dense(first), to_dense(second)])
    return add(to_dense(first), to_dense(second))


def new_state(new: Array | None, old: Array, spec: ParamSpec, layer: Layer, ctx: Context) -> Array:
    """Return a part's contribution to a lasting state, such as a running mean: all parts add up to it.

    It is a share of the new state, or of the old one if the layer returned none; for a state by rows, the part's rows.
    """
    if spec.by_rows:
        return with_zero_rows(old.copy() if new is None else new, spec, ctx)
    share = row_share(layer, ctx.rows)
    if new is None:
        return old * share
    return new if share == 1.0 else new * share


def with_zero_rows(part: Array, spec: ParamSpec, ctx: Context) -> Array:
    """Extend a worker's rows of a state, such as a running mean, to all rows, with 0 in others."""
    start, stop, _ = ctx.rows
    if stop - start == spec.shape[0]:
        return part
    state = ctx.ops.xp.zeros(spec.shape, part.dtype)
    state[start:stop] = part
    return state


def zero_gradient(net: NeuralNet, name: str, ctx: Context) -> Array | SparseRows:
    """Return the gradient of a param that affects no loss."""
    if net.params[name].spec.sparse:
        return no_rows(net.params[name].shape)
    return ctx.ops.xp.zeros(net.params[name].shape, np.float32)
