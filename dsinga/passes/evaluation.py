"""Evaluation: the metrics of batches in their order, by one runner, wherever params are and however nets are cut."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.layers import Records
from dsinga.net import NeuralNet
from dsinga.passes.predictor import BatchResult
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.prefetch import Prefetch
from dsinga.training import Metrics

# Computes the batches of a net, in order, the first so many or, for 0, those of all records: their features of the
# layers that are named, and their metrics. The batches are those of a BatchReader, or what else it can read.
Forward = Callable[[NeuralNet, Any, Sequence[str], int], Iterator[BatchResult]]

ReadFunction = Callable[[int], dict[str, Records]]


class EvaluationPass(NamedTuple):
    """Consecutive batches of one size: the net for batches of this size, whole or cut, their reader, their number."""

    net: Any
    reader: BatchReader
    batches: int


def evaluate(passes: Iterable[tuple[NeuralNet, Any, int]], compute: Forward) -> list[Metrics]:
    """Return the metrics of each batch of some passes: of the net, what is read, and the number of batches."""
    return [metrics for net, reader, batches in passes for _, metrics in compute(net, reader, (), batches)]


def forward_in_order(
    read_function: Callable[[NeuralNet, BatchReader], ReadFunction],
    compute: Callable[[NeuralNet, BatchReader, int, Mapping[str, Records]], Metrics],
) -> Forward:
    """Return forward passes without features that one thread computes while another one reads batches ahead.

    Args:
        read_function: returns a function that reads the records of a batch of a pass, for a net and a reader.
        compute: returns the metrics of a batch, given net and reader, its number among those of all passes, and its
            records.
    """
    numbers = itertools.count()

    def forward(net: NeuralNet, reader: BatchReader, keep: Sequence[str], batches: int) -> Iterator[BatchResult]:
        with Prefetch(read_function(net, reader), 0, batches) as prefetch:
            for records in prefetch:
                yield {}, compute(net, reader, next(numbers), records)

    return forward
