"""The Dask tasks of an evaluation or prediction: rounds of forward passes over consecutive batches."""

from __future__ import annotations

import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed import get_client, get_worker

from dsinga.base.error_frames import cleared_frames
from dsinga.cluster.dask.process_memory import give_back_after
from dsinga.data import connect_sources
from dsinga.layers import Records
from dsinga.ops.processor import Processor
from dsinga.passes.predictor import ONE_CORE, BatchResult, Predictor
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import Metrics

# What a metric of a batch takes in memory: its entry in a dictionary, a tuple and two numbers.
METRIC_BYTES = 200


class JoinedBatches(NamedTuple):
    """Consecutive batches whose records have one shape, as one array, since each array that Dask sends takes time.

    ``sizes`` are the rows of each batch.
    """

    records: Records
    sizes: list[int]


class RoundResult(NamedTuple):
    """What a round returns of its batches, in their order: features by layer, metrics, and the seconds of each."""

    features: dict[str, list[JoinedBatches]]
    metrics: list[Metrics]
    seconds: list[float]

    @property
    def nbytes(self) -> int:
        """The bytes of features, labels and metrics."""
        arrays = [array for parts in self.features.values() for part in parts for array in part.records]
        return sum(array.nbytes for array in arrays if array is not None) + METRIC_BYTES * sum(map(len, self.metrics))

    def batches(self) -> Iterator[BatchResult]:
        """Yield the features, which are parts of the joined ones, and the metrics of each batch."""
        features = {name: _split(parts) for name, parts in self.features.items()}
        for metrics in self.metrics:
            yield {name: next(batches) for name, batches in features.items()}, metrics


def join_batches(batches: Sequence[Records]) -> list[JoinedBatches]:
    """Join consecutive batches of records (rows, ...) of one shape."""
    joined = []
    for _, group in itertools.groupby(batches, lambda batch: tuple(map(_row_type, batch))):
        parts = list(group)
        records = parts[0]
        if len(parts) > 1:
            columns = zip(*parts, strict=True)
            records = Records(*(None if column[0] is None else np.concatenate(column) for column in columns))
        joined.append(JoinedBatches(records, [len(part.data) for part in parts]))
    return joined


def _row_type(array: np.ndarray | None) -> Any:
    """Return the shape of a row, and the dtype: what arrays that are joined have in common."""
    return None if array is None else (array.shape[1:], array.dtype)


def _split(joined: Sequence[JoinedBatches]) -> Iterator[Records]:
    """Yield the records of each batch."""
    for (data, labels), sizes in joined:
        for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True):
            rows = slice(stop - size, stop)
            yield Records(data[rows], None if labels is None else labels[rows])


@dataclass(eq=False)
class SharedForward:
    """The arguments that all tasks of an evaluation or prediction share; sent to each Dask worker once.

    ``processors`` has the processors of the Dask workers, by address; a worker that joins later computes on one core.
    """

    predictor: Predictor
    reader: BatchReader
    processors: Mapping[str, Processor]

    def __post_init__(self) -> None:
        give_back_after(self)

    def __setstate__(self, state: Mapping[str, Any]) -> None:
        vars(self).update(state)
        give_back_after(self)


@cleared_frames()
def forward_round(shared: SharedForward, start: int, stop: int, keep: Sequence[str]) -> RoundResult:
    """Task: a forward pass over each batch of the records ``start`` to ``stop`` - 1.

    The last batch of the records may have fewer rows than the others.
    """
    reader, processor = shared.reader, shared.processors.get(get_worker().address, ONE_CORE)
    connect_sources(reader.stores.values(), get_client)
    batches: list[BatchResult] = []
    seconds: list[float] = []
    for first in range(start, stop, reader.batchsize):
        began = time.perf_counter()
        end = min(first + reader.batchsize, len(reader))
        records = reader.read_range(first, end)
        batches.append(shared.predictor.forward(records, end - first, keep, processor=processor))
        seconds.append(time.perf_counter() - began)
    features = {name: join_batches([features[name] for features, _ in batches]) for name in keep}
    return RoundResult(features, [metrics for _, metrics in batches], seconds)
