"""Defines Node, a layer with its place in a net, and Param, a param with its settings."""

from __future__ import annotations

import math
from dataclasses import dataclass
from typing import NamedTuple

from dsinga.job import ParamConf
from dsinga.layers.interface.context import Rows
from dsinga.layers.interface.declarations import ParamSpec
from dsinga.layers.interface.layer import Layer, Shape


class Node(NamedTuple):
    """A layer in a net, with the positions of its sources and the names of its params.

    A shared param has its owner's name. ``rows`` are the batch's rows that the layer computes, None for all of the
    worker. ``takes`` says which part it reads of each source with parts; empty means the net's order.
    """

    layer: Layer
    sources: tuple[int, ...]
    params: tuple[str, ...]
    rows: Rows | None = None
    takes: tuple[int, ...] = ()


@dataclass(frozen=True)
class Param:
    """A param of a net, with its shape and settings; params that share it have no entry."""

    name: str
    spec: ParamSpec
    conf: ParamConf

    @property
    def shape(self) -> Shape:
        """The shape of the whole param, before it is cut among workers."""
        return self.spec.shape

    @property
    def size(self) -> int:
        """How many elements it has."""
        return math.prod(self.spec.shape)

    @property
    def trainable(self) -> bool:
        """Whether gradients change it, unlike a lasting state such as a running mean."""
        return self.spec.trainable

    @property
    def static(self) -> bool:
        """Whether it keeps its value during training."""
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
