"""Partitioning: a net is rewritten into one net a worker, joined by connection layers (5.3 of the paper)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from dsinga.layers.base import Rows
from dsinga.net.neuralnet import NeuralNet
from dsinga.net.partitioned import Cut, PartitionedNet


def partition(
    net: NeuralNet,
    parts: int,
    rows: Sequence[Rows] | None = None,
    cuts: Mapping[str, Cut] | None = None,
    axes: Mapping[str, int | None] | None = None,
) -> PartitionedNet:
    """Cut ``net`` for ``parts`` workers.

    Args:
        net: the whole net of one phase.
        parts: the number of workers of a group; 1 leaves the net as it is.
        rows: the rows of the batch that each worker computes of layers cut on dimension 0; even ones by default.
        cuts: how each layer is cut, by name; by default as the job says (:func:`choose_cuts`).
        axes: how the params are cut already by the net of another phase: param to axis, None for whole ones.

    Raises JobError, naming layer and field, where a layer cannot be cut as the job wants it.
    """
    raise NotImplementedError
