"""Evaluates and predicts on a cluster: forward passes over a store's records, spread over Dask workers."""

from __future__ import annotations

import collections
import functools
import itertools
import time
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
from distributed import Client, Future, SpecCluster, get_client, get_worker

from dsinga.base.arrays import ParamArrays
from dsinga.base.error_frames import cleared_frames
from dsinga.base.errors import RunError, UserError
from dsinga.base.settings import read_setting
from dsinga.cluster.connecting.expected_workers import await_workers, keep_workers
from dsinga.cluster.dask.dask_workers import Workers, available_workers, require_workers
from dsinga.cluster.dask.run_tasks import RoundLength, run_span, task_key
from dsinga.cluster.dask.supervision import gather
from dsinga.cluster.dask.worker_memory import give_back_after, share
from dsinga.cluster.placing.devices import choose_processors
from dsinga.cluster.placing.room import wanted_processes
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection, usable_workers
from dsinga.cluster.worker.config import new_run_name
from dsinga.data import connect_sources
from dsinga.job import ClusterConf, Job, Precision
from dsinga.layers import Records
from dsinga.net import NeuralNet
from dsinga.ops import Processor
from dsinga.passes.predictor import ONE_CORE, BatchResult, Forward, Predictor
from dsinga.passes.processors import forward_bytes
from dsinga.reading.batch_reader import BatchReader
from dsinga.training import Metrics

# Rounds for each Dask worker that are computed, or wait in its memory, at a time: enough to keep it busy.
ROUNDS_AHEAD = 3
# How long a round should last: long beside the 5 ms that a task costs, and short beside the whole, so that the Dask
# workers end together. An interruption waits for the rounds that have begun.
ROUND_SECONDS = 0.25
# The most bytes of features in a round of several batches: they stay in memory until the caller has taken them.
ROUND_BYTES = 8 << 20
# What a metric of a batch takes in memory: its entry in a dictionary, a tuple and two numbers.
METRIC_BYTES = 200


def forward_on_cluster(job: Job, client: Client, params: ParamArrays, selection: WorkerSelection = ANYWHERE) -> Forward:
    """Return a function that computes forward passes with ``params`` on Dask workers."""
    return functools.partial(_batches, job, client, params, selection)


def _batches(
    job: Job,
    client: Client,
    params: ParamArrays,
    selection: WorkerSelection,
    net: NeuralNet,
    reader: BatchReader,
    keep: Sequence[str],
    count: int,
) -> Iterator[BatchResult]:
    """Yield each batch's features of the layers ``keep`` and its metrics, computed a few rounds ahead.

    ``count`` is the number of batches, 0 for all records.
    """
    workers = _await_usable_workers(job, client, selection)
    on_gpus = job.gpu or read_setting("device") == "gpu"  # a GPU computes the same with any processor
    precision = Precision.kFloat32 if on_gpus else job.precision
    check_workers_ready(client, workers, [net], readers=[reader], precision=precision)
    run = new_run_name()
    threads = max(info["nthreads"] for info in workers.values())
    processors = choose_processors(job, client, tuple(workers), lambda: forward_bytes(net, threads))
    predictor = Predictor(net, params, seed=job.seed)
    arguments = SharedForward(predictor, reader, dict(zip(workers, processors, strict=True)))
    shared = share(client, arguments, workers, task_key("forward pass", run))
    in_flight: collections.deque[Future] = collections.deque()
    length = RoundLength(workers=len(workers), seconds=ROUND_SECONDS)
    sent, records = 0, min(len(reader), count * reader.batchsize) if count else len(reader)
    while True:
        while sent < records and len(in_flight) < ROUNDS_AHEAD * len(workers):
            stop = min(records, sent + length.steps * reader.batchsize)
            with run_span():
                in_flight.append(
                    client.submit(
                        forward_round, shared, sent, stop, tuple(keep),
                        workers=list(workers) if selection.is_limited else None,
                        resources=dict(selection.resources) or None,
                        pure=False, key=task_key("forward pass", run, f"records {sent} to {stop - 1}"),
                    )
                )  # fmt: skip
            sent = stop
        if not in_flight:
            return
        try:
            result: RoundResult = gather(client, [in_flight.popleft()], ())[0]
        except RunError as error:
            if workers.keys() & available_workers(client).keys():
                raise
            raise RunError(
                f"all Dask workers that had the net and its params were lost: {', '.join(workers)}"
            ) from error
        length.most = max(1, ROUND_BYTES * len(result.metrics) // max(1, result.nbytes))
        length.learn(result.seconds)
        yield from result.batches()
        del result  # or the features of this round would stay while the next one is waited for


def _await_usable_workers(job: Job, client: Client, selection: WorkerSelection) -> Workers:
    """Return the usable Dask workers, once there are as many processes as the job asks for."""

    def choose(workers: Workers) -> Workers:
        usable = usable_workers(client, selection, workers)
        if workers and not usable:
            raise UserError(f"the Dask cluster has no workers {selection}")
        return require_workers(usable)

    def shortage(usable: Workers, _: Workers) -> str:
        return "" if len(usable) >= wanted else f"{len(usable)} of {wanted} Dask workers are there"

    # The jobs that a cluster object has requested may wait in a queue for hours.
    wanted = wanted_processes(job) if job.cluster and not isinstance(client.cluster, SpecCluster) else 1
    patience = (job.cluster or ClusterConf()).patience
    with keep_workers(client, 1):
        return await_workers(client, choose, patience=patience, shortage=shortage)


class JoinedBatches(NamedTuple):
    """Batches of records of one shape, joined in one array because each array costs Dask time."""

    records: Records
    sizes: list[int]


class RoundResult(NamedTuple):
    """The results of one task's batches, in order: features by layer, metrics and seconds."""

    features: dict[str, list[JoinedBatches]]
    metrics: list[Metrics]
    seconds: list[float]

    @property
    def nbytes(self) -> int:
        """The bytes of features, labels and metrics, to limit what is computed ahead."""
        arrays = [array for parts in self.features.values() for part in parts for array in part.records]
        return sum(array.nbytes for array in arrays if array is not None) + METRIC_BYTES * sum(map(len, self.metrics))

    def batches(self) -> Iterator[BatchResult]:
        """Yield the features and metrics of each batch."""
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
    return None if array is None else (array.shape[1:], array.dtype)


def _split(joined: Sequence[JoinedBatches]) -> Iterator[Records]:
    for (data, labels), sizes in joined:
        for size, stop in zip(sizes, itertools.accumulate(sizes), strict=True):
            rows = slice(stop - size, stop)
            yield Records(data[rows], None if labels is None else labels[rows])


@dataclass(eq=False)
class SharedForward:
    """The arguments that all tasks of an evaluation or prediction share, sent to each Dask worker once.

    ``processors`` has each Dask worker's processor, by address.
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
    """Task: compute a forward pass over each batch of the records ``start`` to ``stop`` - 1."""
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
