"""The Dask tasks of an evaluation or prediction: rounds of forward passes over consecutive batches."""

from __future__ import annotations

import itertools
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np
from distributed import get_client, get_worker

from dsinga.cluster.dask.error_frames import cleared_frames
from dsinga.cluster.dask.process_memory import give_back_after
from dsinga.data import connect_sources
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet
from dsinga.ops import Array, Ops
from dsinga.training import Metrics, forward
from dsinga.worker.batch_reader import BatchReader
from dsinga.worker.processor import Processor

# What a metric of a batch takes in memory: its entry in a dictionary, a tuple and two numbers.
METRIC_BYTES = 200

# The features of the layers that are asked for, and the metrics, of one batch.
BatchResult = tuple[dict[str, Records], Metrics]


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
class ForwardPass:
    """The arguments that all tasks of an evaluation or prediction share; sent to each Dask worker once.

    In the process of a Dask worker it also keeps the kernels of each thread, and the params on their device.
    ``processors`` has the processors of the Dask workers, by address; a worker that joins later computes on one core.
    """

    net: NeuralNet
    reader: BatchReader
    params: Mapping[str, np.ndarray]
    seed: int
    processors: Mapping[str, Processor]
    _by_thread: dict[tuple[str, int], tuple[Ops, dict[str, Array]]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_by_thread": {}}

    def thread_kernels(self) -> tuple[Ops, Mapping[str, Array]]:
        """Return the kernels of the calling thread, and the params as arrays of these kernels."""
        address = get_worker().address
        thread = address, threading.get_ident()
        if not self._by_thread:
            give_back_after(self)
        if thread not in self._by_thread:
            ops = self.processors.get(address, Processor(1)).ops()
            ops.enter()
            self._by_thread[thread] = ops, {name: ops.asarray(value) for name, value in self.params.items()}
        ops, values = self._by_thread[thread]
        ops.enter()
        ops.set_threads(1)  # each thread of the Dask worker runs such a task at the same time
        return ops, values

    def batch(self, start: int, keep: Sequence[str], ops: Ops, values: Mapping[str, Array]) -> BatchResult:
        """Return the features of the layers ``keep``, and the metrics, of the batch that begins with record ``start``.

        The last batch of the records may have fewer rows than the others.
        """
        stop = min(start + self.reader.batchsize, len(self.reader))
        records, rows = self.reader.read_range(start, stop), stop - start
        ctx = Context(ops, self.net.phase, Rows(0, rows, rows), self.seed)
        outputs, metrics = forward(self.net, values, records, ctx, keep)
        return {name: as_records(ops.to_numpy(outputs[name].feature), outputs[name].labels) for name in keep}, metrics


@cleared_frames()
def forward_round(shared: ForwardPass, start: int, stop: int, keep: Sequence[str]) -> RoundResult:
    """Task: a forward pass over each batch of the records ``start`` to ``stop`` - 1."""
    ops, values = shared.thread_kernels()
    connect_sources(shared.reader.stores.values(), get_client)
    batches: list[BatchResult] = []
    seconds: list[float] = []
    for first in range(start, stop, shared.reader.batchsize):
        began = time.perf_counter()
        batches.append(shared.batch(first, keep, ops, values))
        seconds.append(time.perf_counter() - began)
    features = {name: join_batches([features[name] for features, _ in batches]) for name in keep}
    return RoundResult(features, [metrics for _, metrics in batches], seconds)


def as_records(feature: np.ndarray, labels: Any) -> Records:
    """Return a feature with its labels, or without where they are not those of its rows."""
    has_labels = isinstance(labels, np.ndarray) and len(labels) == len(feature)
    return Records(np.ascontiguousarray(feature), labels if has_labels else None)
