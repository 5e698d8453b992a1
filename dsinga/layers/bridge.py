"""Bridge layers: one worker sends a feature, another receives it and sends the gradient back (5.3 of the paper).

kBridgeSrc and kBridgeDst in a job only pass on their source. Partitioning inserts a BridgeSrc and a BridgeDst wherever
the two ends of an edge are on different workers, whether the job has bridges there or not.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.ops.types import BFLOAT16


@register("layer", kBridgeSrc=501, kBridgeDst=500)
class Bridge(Layer):
    """Pass on the source's feature, and the gradient for it, unchanged."""

    source_count = 1
    cut = Cut(Connection.kOneToOne, by_space=True)
    bf16 = Bfloat16.kFeatures

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (grad if needs[0] else None,), ()


class BridgeEnd(Layer):
    """Base of both ends of a bridge from partitioning; the other end, at worker ``location``, has the same ``key``.

    ``returns_gradient``, which the net sets, says that the gradient comes back, under ``<key>/gradient``. Where the job
    has the precision kBF16, ``bf16_feature`` and ``bf16_gradient`` say that it is sent in bfloat16, because the layers
    that get it round it first. A feature that is bfloat16 already is sent as it is.
    """

    returns_gradient: bool = False
    bf16_feature: bool = False
    bf16_gradient: bool = False

    def __init__(self, conf: LayerConf, shape: Shape, location: int, key: str):
        super().__init__(conf, [shape] * (self.source_count or 0))
        self.shape, self.location, self.key = shape, location, key
        self.gradient_key = f"{key}/gradient"


class BridgeSrc(BridgeEnd):
    """The sending end of a bridge, which has no destination on its own worker.

    Where the gradient comes back, its backward pass waits for it.
    """

    source_count = 1
    bf16 = Bfloat16.kFeatures

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        assert ctx.peers is not None, self.name
        ctx.peers.send(self.location, self.key, _to_host(sources[0], self.bf16_feature, ctx))
        return Output(None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        assert ctx.peers is not None, self.name
        return (_to_device(ctx.peers.receive(self.gradient_key), ctx),), ()


class BridgeDst(BridgeEnd):
    """The receiving end of a bridge, which has no source on its own worker."""

    source_count = 0
    bf16 = Bfloat16.kFeatures

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        assert ctx.peers is not None, self.name
        feature = _to_device(ctx.peers.receive(self.key), ctx)
        if self.returns_gradient and not self.bf16_gradient:
            feature = ctx.ops.to_float32(feature)  # or the gradient for it would be rounded
        return Output(feature)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        assert ctx.peers is not None, self.name
        if grad is None:  # no layer after it gave a gradient, but the other end waits for one
            grad = ctx.ops.xp.zeros_like(output.feature)
        ctx.peers.send(self.location, self.gradient_key, _to_host(grad, self.bf16_gradient, ctx))
        return (), ()


def _to_host(array: Any, rounds: bool, ctx: Context) -> Any:
    """Return an array to be sent, in host memory; with ``rounds``, in bfloat16 where the job's precision is that."""
    return ctx.ops.to_numpy_bf16(array) if rounds else ctx.ops.to_numpy(array)


def _to_device(array: Any, ctx: Context) -> Any:
    """Return a received array, which is in host memory, on the device; labels and codes stay in host memory."""
    return ctx.ops.upload(array).result() if array.dtype.kind == "f" or array.dtype == BFLOAT16 else array
