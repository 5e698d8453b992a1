"""Defines NeuralNet: the layers of one phase, such as training, in order, with their params."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, nearest_or_listed
from dsinga.job import Phase
from dsinga.layers.interface.layer import FLOAT_BYTES, Layer, Shape
from dsinga.net.dataflow import Stage, build_stages
from dsinga.net.fusion import fuse
from dsinga.net.layer_cost import count_operations, in_gib
from dsinga.net.node import Node, Param
from dsinga.net.rounded_products import with_rounded_products
from dsinga.ops import Ops
from dsinga.ops.types import NotCapturable, RecordedStep

# An iteration's operations that a kernel thread must have to do: to wake another thread takes 10 to 50 us.
OPERATIONS_PER_THREAD = 20_000_000


@dataclass(frozen=True, eq=False, repr=False)
class NeuralNet:
    """A net that can be computed: layers in topological order (``nodes``), params by first use.

    ``by_step`` has the net of each stage of training, with its first step, if there are stages. ``like`` is the part of
    a cut net that computes the same for as many other rows of the batch, None for a net that is not such a part.
    """

    nodes: tuple[Node, ...]
    params: Mapping[str, Param]
    phase: Phase
    by_step: tuple[tuple[int, NeuralNet], ...] = ()
    like: NeuralNet | None = None

    def _repr_html_(self) -> str | None:
        return net_picture(self)

    def at(self, step: Any) -> NeuralNet:
        """Return the net that trains at a step, if training has stages."""
        if not self.by_step:
            return self
        if isinstance(step, RecordedStep):
            raise NotCapturable("the net that is trained depends on the step")
        return next(net for first, net in reversed(self.by_step) if step >= first)

    @cached_property
    def stages(self) -> tuple[Stage, ...]:
        """The layers as training steps need them, with inputs, params and gradients."""
        return build_stages(with_rounded_products(self.nodes), self.static)

    @cached_property
    def static(self) -> frozenset[str]:
        """The names of the params that keep their values during training."""
        return frozenset(name for name, param in self.params.items() if param.static)

    @cached_property
    def shapes(self) -> Mapping[str, Shape]:
        """The shapes of the params, by name."""
        return {name: param.shape for name, param in self.params.items()}

    @property
    def fused(self) -> NeuralNet:
        """The net that training computes, with fused layers."""
        return self._fused or self

    def fused_for(self, ops: Ops) -> NeuralNet:
        """Return the net that training computes with the kernels ``ops``."""
        return self._rectified or self if ops.fuses_rectifiers else self.fused

    @cached_property
    def _fused(self) -> NeuralNet | None:
        """The net with fused layers; None if nothing can be fused."""
        return self._with(fuse(self.nodes))

    @cached_property
    def _rectified(self) -> NeuralNet | None:
        """The net with fused layers, products and rectifiers included; None if nothing can be fused."""
        return self._with(fuse(self.nodes, rectified=True))

    def _with(self, nodes: tuple[Node, ...]) -> NeuralNet | None:
        return None if len(nodes) == len(self.nodes) else replace(self, nodes=nodes)

    @cached_property
    def operations(self) -> int:
        """How many operations a training step needs."""
        return count_operations(node.layer for node in self.nodes)

    @cached_property
    def positions(self) -> Mapping[str, int]:
        """The position of each layer in ``nodes``, by name."""
        return {node.layer.name: position for position, node in enumerate(self.nodes)}

    @cached_property
    def bridged(self) -> bool:
        """Whether this is one worker's part of a net, in which other workers may compute the losses."""
        return any(node.rows is not None for node in self.nodes) or not self.nodes

    @cached_property
    def inputs(self) -> tuple[str, ...]:
        """The names of the input layers."""
        return tuple(node.layer.name for node in self.nodes if node.layer.is_input)

    @cached_property
    def losses(self) -> tuple[str, ...]:
        """The names of the loss layers."""
        return tuple(node.layer.name for node in self.nodes if node.layer.is_loss)

    @property
    def is_small(self) -> bool:
        """Whether a second kernel thread would gain nothing."""
        return usable_threads(self, 1) == 1

    def layer(self, name: str) -> Layer:
        """Return the layer of this name. Raises UserError, with the nearest name, if there is none."""
        return self.nodes[self.position(name)].layer

    def position(self, name: str) -> int:
        """Return the position of this layer. Raises UserError, with the nearest name, if there is none."""
        if name not in self.positions:
            hint = nearest_or_listed(name, self.positions, "its layers are")
            raise UserError(f"the net has no layer {name!r} in phase {self.phase.name}{hint}")
        return self.positions[name]

    def __repr__(self) -> str:
        size = sum(param.size for param in self.params.values())
        return f"NeuralNet({self.phase.name}: {len(self.nodes)} layers, {size:,} numbers in {len(self.params)} params)"


def usable_threads(net: NeuralNet, workers: int) -> int:
    """Return how many kernel threads of a worker pay off with this net.

    Small nets gain nothing from several. The number depends on the net alone, because it affects the order of sums and
    so the bits.
    """
    return max(1, net.operations // (workers * OPERATIONS_PER_THREAD))


def net_picture(net: Any) -> str | None:
    """Draw a net as SVG; None without the drawing add-on."""
    try:
        picture = lookup("drawing", type(net).__name__)
    except UserError:
        return None
    return str(picture(net))


def check_memory(nets: Iterable[NeuralNet], workers: int, memory: int) -> None:
    """Raise UserError if a net cannot fit into ``memory`` bytes, a host's largest.

    It counts only what any run needs: params, a worker's gradients, and the largest output.
    """
    for net in nets:
        sizes = {name: FLOAT_BYTES * param.size for name, param in net.params.items()}
        dense = [name for name, param in net.params.items() if param.trainable and not param.spec.sparse]
        features = {
            node.layer.name: FLOAT_BYTES * math.prod(int(size) for size in node.layer.shape) for node in net.nodes
        }
        gradients = sum(sizes[name] for name in dense)
        needed = sum(sizes.values()) + (gradients + max(features.values())) // workers
        if needed > memory:
            kind, largest = "param", max(sizes, key=sizes.__getitem__, default="")
            layer = max(features, key=features.__getitem__)
            if features[layer] > sizes.get(largest, 0):
                kind, largest = "feature of layer", layer
            size = max(features[layer], sizes.get(largest, 0))
            raise UserError(
                f"the net of phase {net.phase.name} needs at least {in_gib(needed)} of memory, but there are "
                f"{in_gib(memory)}; most is for the {kind} {largest!r}, {in_gib(size)}: make it smaller, or the batch"
            )
