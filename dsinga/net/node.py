"""``Node``, a layer in its net with the positions of its sources; ``Param``, a param with its settings in the job."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dsinga.job import ParamConf
from dsinga.layers.interface.context import Rows
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Layer, Shape


class Node(NamedTuple):
    """A layer in its net: the positions of its sources, and the names of the params it uses.

    ``params`` are in the order of ``layer.params``; a shared param has the owner's name. ``rows`` are the rows of the
    layer's batch that the node computes, None for all rows of the worker. ``takes`` says which part the node takes of
    each source that hands out parts; where it is empty, destinations take them in the order of the net.
    """

    layer: Layer
    sources: tuple[int, ...]
    params: tuple[str, ...]
    rows: Rows | None = None
    takes: tuple[int, ...] = ()


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
    def first_step(self) -> int:
        """The step of training before which it keeps its value."""
        return self.conf.first_step

    @property
    def lr_scale(self) -> float:
        """Factor of the learning rate."""
        return self.conf.lr_scale

    @property
    def wd_scale(self) -> float:
        """Factor of the weight decay."""
        return self.conf.wd_scale
