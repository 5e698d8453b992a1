"""A net cut for the workers of a group: each layer's cut, and each worker's net and params."""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from dsinga.job import Phase
from dsinga.layers.interface.context import Columns, cut_evenly
from dsinga.layers.interface.layer import Shape
from dsinga.layers.interface.region import Region
from dsinga.net.neuralnet import NeuralNet, net_picture
from dsinga.net.node import Node

ROWS, FEATURES = 0, 1  # the dimensions on which a layer can be cut; SPACE is the first dimension of points
SPACE = 2
WHOLE_LAYER = -1  # in place of a dimension: one worker computes the layer
COPIED = WHOLE_LAYER  # of a feature: each worker that has it has all of it, like the worker of a whole layer


class LayerCut(NamedTuple):
    """How one layer is divided: along ``dim`` (0 rows, 1 features) over all workers, or whole at one.

    A layer cut by space has a ``grid``: the numbers of parts along the axes from ``dim`` (2 or more). With ``dim``
    WHOLE_LAYER only the worker ``location`` computes the layer. ``reason`` says why the cut is not as the job asks.
    """

    dim: int
    location: int = 0
    reason: str = ""
    grid: tuple[int, ...] = ()


def cut_regions(shape: Sequence[int], dim: int, grid: Sequence[int]) -> list[Region]:
    """Divide the points of a feature evenly into ``grid`` parts along the axes from ``dim``, one for each worker.

    Neighbours along the last axis follow each other.
    """
    ranges = [cut_evenly(shape[axis], parts) for axis, parts in enumerate(grid, dim)]
    columns = [[Columns(*range_) for range_ in along_axis] for along_axis in ranges]
    return [Region(dim, region, number) for number, region in enumerate(itertools.product(*columns))]


class ParamPart(NamedTuple):
    """A param, or a part of one, that workers use and servers keep under its own name.

    A whole param (``axis`` None) keeps its name. A part is called ``<param>@<number>`` and has the elements ``start``
    to ``stop`` along ``axis``. ``users`` are the locations of the workers that compute its gradient, in rising order.
    Each user of a ``gathered`` param computes the whole gradient (``InnerProduct.gathers``) and sends none.
    """

    name: str
    param: str
    shape: Shape
    users: tuple[int, ...]
    axis: int | None = None
    start: int = 0
    stop: int = 0
    gathered: bool = False

    def of(self, array: np.ndarray) -> np.ndarray:
        """Return the elements of this part as a view of an array of the whole param's shape."""
        return array if self.axis is None else array[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


class Place(NamedTuple):
    """The worker that runs a node of a cut net, and the uncut net's layer that the node belongs to."""

    location: int
    layer: str


@dataclass(frozen=True, eq=False, repr=False)
class PartitionedNet:
    """A net cut for ``len(locals)`` workers: ``locals`` has the net of each.

    ``whole`` is the uncut net and ``cuts`` the cut of each of its layers. ``nodes`` are the nodes of all workers in one
    order, which each worker follows, so that no two workers wait for each other. In ``nodes`` the source of a BridgeDst
    is its BridgeSrc; in ``locals`` it has none.
    """

    whole: NeuralNet
    cuts: Mapping[str, LayerCut]
    nodes: tuple[Node, ...]
    places: tuple[Place, ...]
    locals: tuple[NeuralNet, ...]
    parts: Mapping[str, ParamPart]

    @property
    def is_training(self) -> bool:
        """Whether this is the net of training."""
        return bool(self.whole.phase & Phase.kTrain)

    def _repr_html_(self) -> str | None:
        return net_picture(self)

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(local.nodes)) for local in self.locals)
        return f"PartitionedNet({self.whole.phase.name}: {len(self.locals)} workers with {sizes} layers)"


def split_params(parts: Mapping[str, ParamPart], params: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the value of each param part, C-contiguous, from the whole params."""
    return {name: np.ascontiguousarray(part.of(params[part.param])) for name, part in parts.items()}


def join_params(
    parts: Mapping[str, ParamPart], values: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]
) -> dict[str, np.ndarray]:
    """Join the values of param parts to whole params of the given shapes; a single part is not copied."""
    params: dict[str, np.ndarray] = {}
    for name, value in values.items():
        part, shape = parts[name], shapes[parts[name].param]
        if part.shape == shape:
            params[part.param] = value.reshape(shape)
            continue
        if part.param not in params:
            params[part.param] = np.zeros(shape, np.float32)
        part.of(params[part.param])[...] = value.reshape(part.shape)
    return params
