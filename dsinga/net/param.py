"""A param of a net: its name, which is unique in the job, its shape, and what the job says about it."""

from __future__ import annotations

import math
from dataclasses import dataclass

from dsinga.job import ParamConf
from dsinga.layers.base import ParamSpec, Shape


@dataclass(frozen=True)
class Param:
    """A param of the layer that owns it; params that share from it have no entry of their own.

    ``spec`` comes from the layer, ``conf`` from the job (``ParamConf()`` where the job has none).
    """

    name: str
    spec: ParamSpec
    conf: ParamConf

    @property
    def shape(self) -> Shape:
        """The whole shape, before any partitioning."""
        return self.spec.shape

    @property
    def size(self) -> int:
        """The number of elements."""
        return math.prod(self.spec.shape)

    @property
    def trainable(self) -> bool:
        """False for lasting state, such as running means."""
        return self.spec.trainable

    @property
    def static(self) -> bool:
        """Whether it keeps its value, because the job or its layer says so."""
        return self.conf.static or self.spec.static

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate."""
        return self.conf.lr_scale

    @property
    def wd_scale(self) -> float:
        """Factor of the weight decay."""
        return self.conf.wd_scale
