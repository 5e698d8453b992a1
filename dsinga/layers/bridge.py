"""Bridge layers carry features and gradients between the workers of a cut net."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.layers.interface.context import Context
from dsinga.layers.interface.declarations import Bfloat16, Connection, Cut
from dsinga.layers.interface.layer import Arrays, Gradients, Layer, Output, Shape


@register("layer", kBridgeSrc=501, kBridgeDst=500)
class Bridge(Layer):
    """Pass on the source's feature, and its gradient, unchanged: kBridgeSrc and kBridgeDst of a job."""

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
    """Base of both ends of a bridge, which send a feature to another worker and receive it there.

    The other end, at worker ``location``, has the same ``key``.

    The net sets ``returns_gradient`` if the gradient comes back, under ``<key>/gradient``. With kBF16, ``bf16_feature``
    and ``bf16_gradient`` send in bfloat16 if the receiving layers round first anyway.
    """

    sends: bool = False
    returns_gradient: bool = False
    bf16_feature: bool = False
    bf16_gradient: bool = False

    def __init__(self, conf: LayerConf, shape: Shape, location: int, key: str):
        super().__init__(conf, [shape] * (self.source_count or 0))
        self.shape, self.location, self.key = shape, location, key
        self.gradient_key = f"{key}/gradient"
