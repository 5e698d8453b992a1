"""The net of one phase: layers in an order in which they can run, joined by indices, and their params."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import NamedTuple

from dsinga.errors import UserError
from dsinga.job import Phase
from dsinga.layers.base import Layer
from dsinga.layers.context import Rows
from dsinga.net.dataflow import Stage, trace
from dsinga.net.fusion import fuse
from dsinga.net.param import Param
from dsinga.registry import nearest


class Node(NamedTuple):
    """A layer in its net: the positions of its sources, and the names of the params it uses.

    ``params`` are in the order of ``layer.params``; of a shared param it is the owner's name. ``rows`` are those of the
    layer's batch that it computes, None for those that the worker computes anyway. ``takes`` says which part it takes
    of each source that hands out parts; where it is empty, destinations take them in the order of the net.
    """

    layer: Layer
    sources: tuple[int, ...]
    params: tuple[str, ...]
    rows: Rows | None = None
    takes: tuple[int, ...] = ()


@dataclass(frozen=True, eq=False, repr=False)
class NeuralNet:
    """A net, ready to run and never changed: ``nodes`` in topological order, ``params`` (owners) by first use."""

    nodes: tuple[Node, ...]
    params: Mapping[str, Param]
    phase: Phase

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """What an iteration does at each node, worked out once."""
        return trace(self)

    @cached_property
    def fused(self) -> NeuralNet:
        """The net as back-propagation computes it, some layers being one: see :mod:`dsinga.net.fusion`."""
        nodes = fuse(self.nodes)
        return self if len(nodes) == len(self.nodes) else replace(self, nodes=nodes)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each layer in ``nodes``, by name."""
        return {node.layer.name: position for position, node in enumerate(self.nodes)}

    @cached_property
    def bridged(self) -> bool:
        """Whether this is the net of one worker of several, whose losses may lie with another one."""
        return any(node.rows is not None for node in self.nodes) or not self.nodes

    @cached_property
    def losses(self) -> tuple[str, ...]:
        """The names of the loss layers."""
        return tuple(node.layer.name for node in self.nodes if node.layer.is_loss)

    def layer(self, name: str) -> Layer:
        """Return the layer of this name; raise UserError, naming the nearest one, where there is none."""
        return self.nodes[self.position(name)].layer

    def position(self, name: str) -> int:
        """Return the position of the layer of this name; raise UserError, naming the nearest one, otherwise."""
        if name not in self.positions:
            raise UserError(f"the net has no layer {name!r} in phase {self.phase.name}{nearest(name, self.positions)}")
        return self.positions[name]

    def __repr__(self) -> str:
        size = sum(param.size for param in self.params.values())
        return f"NeuralNet({self.phase.name}: {len(self.nodes)} layers, {size:,} numbers in {len(self.params)} params)"

    def _repr_html_(self) -> str:
        from dsinga.net.draw import to_svg

        return to_svg(self)
