"""Makes back-propagation faster: replays recorded passes instead of calling the net's layers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from dsinga.layers import Context, Records
from dsinga.net import NeuralNet
from dsinga.ops import Array, SparseRows
from dsinga.ops.interface import PassResult
from dsinga.ops.recorded_array import RecordedResult
from dsinga.ops.types import NotCapturable
from dsinga.passes.captured_passes import CapturedPasses
from dsinga.training import Algorithm, Metrics, Push, bp
from dsinga.training.divergence import CheckedPush


def replayed(algorithm: Algorithm, passes: CapturedPasses | None, copies: bool) -> Algorithm:
    """Return an algorithm that replays recorded passes where it can, and else computes as ``algorithm`` does.

    Only back-propagation is replayed. With ``copies`` gradients outlive the pass; otherwise the next replay may
    overwrite them.
    """
    if passes is None or algorithm is not bp:
        return algorithm

    def replay_or_call(
        net: NeuralNet, params: Mapping[str, Array], records: Mapping[str, Records], ctx: Context, push: Push
    ) -> Metrics:
        result = _replay(passes, net, params, records, ctx)
        if result is None:
            return bp(net, {name: ctx.ops.asarray(value) for name, value in params.items()}, records, ctx, push)
        gradients = owned(result.outputs, copies)
        if isinstance(push, CheckedPush):
            push.push_all(gradients)
        else:
            for name, gradient in gradients.items():
                push(name, gradient)
        metrics: Metrics = result.metrics
        return metrics

    return replay_or_call


def _replay(
    passes: CapturedPasses, net: NeuralNet, params: Mapping[str, Array], records: Mapping[str, Records], ctx: Context
) -> PassResult | None:
    """Replay or record a pass: return its metrics and gradients, or None if it must be called."""
    if ctx.observer is not None:  # which is told each layer
        return None
    net = net.at(ctx.step)

    def compute(batch: Mapping[str, Records], values: Mapping[str, Array], ctx: Context) -> dict[str, Any]:
        pushed: dict[str, Any] = {}
        bp(net, values, batch, without_peers(ctx.changed(adds_later=False)), pushed.__setitem__)
        if any(isinstance(gradient, SparseRows) for gradient in pushed.values()):
            raise NotCapturable("gradients have few rows")
        return pushed

    key: tuple[Any, ...] = net, ctx.rows
    if net.like is not None and passes.is_on_host:  # one recording serves all blocks
        key = net.like, ctx.rows.stop - ctx.rows.start
    return passes.compute(key, net, records, ctx, compute, params)


def owned(gradients: Mapping[str, Any], copies: bool) -> Mapping[str, Any]:
    """Copy the gradients of a replay if requested, since the next one overwrites most of them."""
    if not copies and RecordedResult not in map(type, gradients.values()):
        return gradients
    return {
        name: gradient.value if isinstance(gradient, RecordedResult) else gradient.copy() if copies else gradient
        for name, gradient in gradients.items()
    }


class _NoPeers:
    """Stands for other workers while a pass is recorded: refuses to exchange arrays."""

    def send(self, *_: Any) -> None:
        raise NotCapturable("layers exchange arrays with other workers of the group")

    def receive(self, *_: Any) -> Any:
        raise NotCapturable("layers exchange arrays with other workers of the group")


def without_peers(ctx: Context) -> Context:
    """Return a context for recording a pass, in which exchanges with other workers raise NotCapturable."""
    if ctx.peers is None:
        return ctx
    peers = _NoPeers()
    return replace(ctx, peers=peers, all_reduce=peers.receive, all_gather=peers.receive)
