"""Bridge layers: kBridgeSrc and kBridgeDst of a job only pass on their source.

Wherever the two ends of an edge are on different workers, a cut net has bridges of its own, whose ends are of the class
BridgeEnd (``dsinga/cutting/bridges.py``).
"""

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
    """Base of both ends of a bridge of a cut net; the other end, at worker ``location``, has the same ``key``.

    One end ``sends`` the feature, and has no destination on its own worker; the other has no source there.

    ``returns_gradient``, which the net sets, says that the gradient comes back, under ``<key>/gradient``. Where the job
    has the precision kBF16, ``bf16_feature`` and ``bf16_gradient`` say that it is sent in bfloat16, because the layers
    that get it round it first. A feature that is bfloat16 already is sent as it is.
    """

    sends: bool = False
    returns_gradient: bool = False
    bf16_feature: bool = False
    bf16_gradient: bool = False

    def __init__(self, conf: LayerConf, shape: Shape, location: int, key: str):
        super().__init__(conf, [shape] * (self.source_count or 0))
        self.shape, self.location, self.key = shape, location, key
        self.gradient_key = f"{key}/gradient"
