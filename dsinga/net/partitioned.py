"""A net that was cut for the workers of a group: the net of each worker, and the parts into which its params fall."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.layers.base import Shape
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.node import Node

ROWS, FEATURES = 0, 1  # the dimensions on which a layer can be cut
WHOLE_LAYER = -1  # instead of a dimension


class Cut(NamedTuple):
    """How a layer is cut: one part a worker along ``dim`` (0 rows, 1 features), or WHOLE_LAYER, at ``location``.

    ``because`` says why that is not what the job asks for, empty where it is.
    """

    dim: int
    location: int = 0
    because: str = ""


class ParamPart(NamedTuple):
    """What one or more workers use of a param, and servers keep as a param of its own.

    ``name`` is the param's own where it is whole (``axis`` None), else ``<param>@<part>``: the elements ``start`` to
    ``stop`` along ``axis``. ``users`` are the locations that compute a gradient for it, in rising order; of a
    ``gathered`` one each computes the whole gradient (``InnerProduct.gathers``), so that none need be sent.
    """

    name: str
    param: str
    shape: Shape
    users: tuple[int, ...]
    axis: int | None = None
    start: int = 0
    stop: int = 0
    gathered: bool = False

    def of(self, whole: np.ndarray) -> np.ndarray:
        """Return this part of an array of the whole param's shape, as a view."""
        return whole if self.axis is None else whole[(slice(None),) * self.axis + (slice(self.start, self.stop),)]


class Place(NamedTuple):
    """Where a node of the partitioned net runs, and what it is a part of: the name of a layer of the whole net.

    For a connection layer that partitioning has put in, ``layer`` is the source whose feature it carries.
    """

    location: int
    layer: str


@dataclass(frozen=True, eq=False, repr=False)
class PartitionedNet:
    """A net, cut for ``len(locals)`` workers.

    ``nodes`` are those of all workers in the one order that every worker follows as far as they are its own, so that
    no two wait for each other; ``places`` goes with them. A BridgeDst has its BridgeSrc as its source here.
    ``locals`` has the net of each worker, in which a BridgeDst has no source. ``parts`` are the param parts by name.
    """

    whole: NeuralNet
    cuts: Mapping[str, Cut]
    nodes: tuple[Node, ...]
    places: tuple[Place, ...]
    locals: tuple[NeuralNet, ...]
    parts: Mapping[str, ParamPart]

    _repr_html_: ClassVar[Callable[[Any], str]]  # set by dsinga.net.drawing

    def __repr__(self) -> str:
        sizes = ", ".join(str(len(local.nodes)) for local in self.locals)
        return f"PartitionedNet({self.whole.phase.name}: {len(self.locals)} workers with {sizes} layers)"


def cut_values(parts: Mapping[str, ParamPart], whole: Mapping[str, np.ndarray]) -> dict[str, np.ndarray]:
    """Return the value of each param part, C-contiguous, from those of whole params."""
    return {name: np.ascontiguousarray(part.of(whole[part.param])) for name, part in parts.items()}


def join_values(
    parts: Mapping[str, ParamPart], values: Mapping[str, np.ndarray], shapes: Mapping[str, Shape]
) -> dict[str, np.ndarray]:
    """Return whole params of the given shapes from the values of their parts; of an only part it is that itself."""
    whole: dict[str, np.ndarray] = {}
    for name, value in values.items():
        part, shape = parts[name], shapes[parts[name].param]
        if part.shape == shape:
            whole[part.param] = value.reshape(shape)
            continue
        if part.param not in whole:
            whole[part.param] = np.zeros(shape, np.float32)
        part.of(whole[part.param])[...] = value.reshape(part.shape)
    return whole
