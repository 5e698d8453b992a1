"""Bridges of cut nets: a worker sends a feature, another receives it and sends the gradient back (5.3 of the paper)."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.job import LayerConf
from dsinga.layers.bridge import BridgeEnd
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Bfloat16, Cut, LabelFormat, Labels
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.records.label import required_labels
from dsinga.ops.types import BFLOAT16


class BridgeSrc(BridgeEnd):
    """Sends a feature to another worker and, in the backward pass, waits for its gradient if one comes back."""

    sends = True
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
    """Receives a feature from another worker and, in the backward pass, sends its gradient back."""

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


class LabelsAsFeature(Layer):
    """Turns labels into a feature of their shape and dtype, to send them over a bridge.

    Float labels are on the device, integers in host memory.
    """

    source_count = 1
    labels = Labels(source=0, floats=True)
    cut = Cut(gathered_because="has the labels of whole rows")

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[0])
        return Output(ctx.ops.asarray(labels) if labels.dtype.kind == "f" else labels)


class FeatureAsLabels(Layer):
    """Turns a feature that arrived over a bridge back into labels, in host memory."""

    source_count = 1
    new_labels = LabelFormat()
    cut = Cut(gathered_because="has the labels of whole rows")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.new_labels = LabelFormat(self.shape[1:])

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(sources[0], labels=ctx.ops.to_numpy(sources[0]))


def _to_host(array: Any, rounds: bool, ctx: Context) -> Any:
    """Copy an array to host memory; with ``rounds``, in bfloat16 if that is the job's precision."""
    return ctx.ops.to_numpy_bf16(array) if rounds else ctx.ops.to_numpy(array)


def _to_device(array: Any, ctx: Context) -> Any:
    return ctx.ops.upload(array).result() if array.dtype.kind == "f" or array.dtype == BFLOAT16 else array
