"""A layer in its net, joined to its sources by their positions."""

from __future__ import annotations

from typing import NamedTuple

from dsinga.layers.base import Layer
from dsinga.layers.context import Rows


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
