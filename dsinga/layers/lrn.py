"""kLRN (and kCudnnLRN): local response normalisation across channels."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

from dsinga.job import LayerConf, LRNConf
from dsinga.layers.base import Arrays, Gradients, Layer, Output, Shape, as_text
from dsinga.layers.context import Context, RecordInfo
from dsinga.registry import register


@register("layer", "kLRN", "kCudnnLRN")
class LRN(Layer):
    """Local response normalisation of images (B, C, H, W), over ``local_size`` neighbouring channels.

    x·norm^(-beta) with norm = knorm + alpha/local_size · Σ x² over the channels c ± local_size//2. Krizhevsky,
    Sutskever and Hinton, ImageNet Classification with Deep CNNs (2012), 3.3, with alpha divided by local_size.
    """

    source_count: ClassVar[int | None] = 1
    gathered_because = "looks at neighbouring channels"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        lrn = conf.lrn_conf or LRNConf()
        if len(self.source_shapes[0]) != 4:
            shape = as_text(self.source_shapes[0])
            raise self.fail(f"takes images (batch, channels, height, width), but {self.source_name(0)} gives {shape}")
        if lrn.local_size < 1 or lrn.local_size % 2 == 0:
            raise self.fail(
                f"local_size is {lrn.local_size}; give an odd number, for as many channels on either side",
                lrn,
                "local_size",
            )
        if lrn.knorm <= 0 or lrn.alpha < 0:
            raise self.fail(
                f"knorm is {lrn.knorm} and alpha {lrn.alpha}; give a knorm above 0 and an alpha of 0 or more", lrn
            )
        self.settings = (lrn.local_size, lrn.alpha, lrn.beta, lrn.knorm)
        self.shape = self.source_shapes[0]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        return Output(*ctx.ops.lrn(sources[0], *self.settings, ctx.training))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        return (ctx.ops.lrn_grad(sources[0], output.saved, grad, *self.settings) if needs[0] else None,), ()
