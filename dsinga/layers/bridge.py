"""Bridges: what a worker has computed is sent to another one, and the gradient comes back (5.3 of the paper).

A job's own kBridgeSrc and kBridgeDst mark where its layers part, and hand on what they get. Where the two ends of an
edge really lie on different workers, partitioning puts a BridgeSrc and a BridgeDst between, whatever the job says.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Connection, Gradients, Layer, Output, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kBridgeSrc", "kBridgeDst")
class Bridge(Layer):
    """The source's feature, and the gradient for it, as they are."""

    source_count: ClassVar[int | None] = 1
    connection = Connection.kOneToOne

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0])

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (grad if needs[0] else None,), ()


class BridgeSrc(Layer):
    """The end of a bridge that sends: the source's feature to ``location``, under ``key``.

    It has no destination on its own worker. With ``backward`` the gradient for what it sent comes back under
    ``<key>/gradient``; waiting for it is left to the backward pass.
    """

    source_count: ClassVar[int | None] = 1

    def __init__(self, conf: LayerConf, shape: Shape, location: int, key: str, backward: bool):
        super().__init__(conf, [shape])
        self.shape, self.location, self.key, self.starts_gradient = shape, location, key, backward
        self.gradient_key = f"{key}/gradient"

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        assert ctx.peers is not None, self.name
        ctx.peers.send(self.location, self.key, ctx.ops.to_numpy(sources[0]))
        return Output(None)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        assert ctx.peers is not None, self.name
        return (_of_device(ctx.peers.receive(self.gradient_key), ctx),), ()


class BridgeDst(Layer):
    """The end of a bridge that receives what was sent under ``key``, and sends the gradient back to ``location``.

    It has no source on its own worker.
    """

    source_count: ClassVar[int | None] = 0

    def __init__(self, conf: LayerConf, shape: Shape, location: int, key: str, backward: bool):
        super().__init__(conf, [])
        self.shape, self.location, self.key, self.wants_gradient = shape, location, key, backward
        self.gradient_key = f"{key}/gradient"

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        assert ctx.peers is not None, self.name
        return Output(_of_device(ctx.peers.receive(self.key), ctx))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        assert ctx.peers is not None, self.name
        if grad is None:  # no layer here gave one after all, but the other end waits
            grad = ctx.ops.xp.zeros_like(output.feature)
        ctx.peers.send(self.location, self.gradient_key, ctx.ops.to_numpy(grad))
        return (), ()


def _of_device(array: Any, ctx: Context) -> Any:
    """Return what came by mail, which is in host memory, as layers have it: labels and codes stay there."""
    return ctx.ops.upload(array).result() if array.dtype.kind == "f" else array
