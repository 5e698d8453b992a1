"""``Node``: a layer in its net, with its sources; ``Param``: a param with its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dsinga.job import ParamConf
from dsinga.layers.interface.context import Rows
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Layer, Shape


class Node(NamedTuple):
    """A layer in its net, with positions of its sources and names of its params.

    ``params`` follow ``layer.params``; a shared param has its owner's name. ``rows`` are the batch's rows that the node
    computes, None for all of the worker. ``takes`` says which part the node reads of each source with parts; empty
    means the net's order.
    """

    layer: Layer
    sources: tuple[int, ...]
    params: tuple[str, ...]
    rows: Rows | None = None
    takes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Param:
    """A param of the layer that owns it; params that share it have no entry.

    ``spec`` comes from the layer, ``conf`` from the job, by default ``ParamConf()``.
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
        """Whether job or layer keep its value constant."""
        return self.conf.static or self.spec.static

    @property
    def first_step(self) -> int:
        """The training step before which it keeps its value."""
        return self.conf.first_step

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate."""
        return self.conf.lr_scale

    @property
    def wd_scale(self) -> float:
        """Factor of the weight decay."""
        return self.conf.wd_scale
