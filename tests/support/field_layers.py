"""Layers of a user's that declare their reach: each point repeated, points of the opposite edges around a field."""

from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.layers import Layer, Output
from dsinga.layers.interface.region import Reach


@register("layer", "Repeat")
class Repeat(Layer):
    """Each point of images (B, C, H, W) twice along both axes."""

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        rows, channels, height, width = self.source_shapes[0]
        self.shape = (rows, channels, 2 * height, 2 * width)

    def reach(self) -> tuple[Reach, ...]:
        return (Reach(factor=2),) * 2

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(np.ascontiguousarray(sources[0].repeat(2, axis=2).repeat(2, axis=3)))


@register("layer", "Wrap")
class Wrap(Layer):
    """Images (B, C, H, W) with two more columns of the opposite edge on either side."""

    def __init__(self, conf: Any, source_shapes: Any, info: Any = None):
        super().__init__(conf, source_shapes, info)
        *rest, width = self.source_shapes[0]
        self.shape = (*rest, width + 4)

    def reach(self) -> tuple[Reach, ...]:
        return Reach(), Reach(before=2, after=-2, padding="periodic")

    def compute_feature(self, params: Any, sources: Any, ctx: Any) -> Output:
        return Output(np.pad(sources[0], ((0, 0), (0, 0), (0, 0), (2, 2)), mode="wrap"))
