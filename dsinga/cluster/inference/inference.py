"""Evaluation and prediction: forward passes over all records of a store, spread over the Dask workers."""

from __future__ import annotations

import collections
import functools
from collections.abc import Iterator, Sequence

from distributed import Client, Future, SpecCluster

from dsinga.base.errors import RunError, UserError
from dsinga.base.param_arrays import ParamArrays
from dsinga.base.settings import read_setting
from dsinga.cluster.connecting.adaptive import keep_workers
from dsinga.cluster.connecting.expected_workers import await_workers
from dsinga.cluster.dask.dask_workers import Workers, available_workers, require_workers
from dsinga.cluster.dask.shared_objects import share
from dsinga.cluster.dask.supervision import gather
from dsinga.cluster.dask.task_keys import run_span, task_key
from dsinga.cluster.inference.forward_rounds import RoundResult, SharedForward, forward_round
from dsinga.cluster.placing.devices import choose_processors
from dsinga.cluster.placing.room import wanted_processes
from dsinga.cluster.preflight.check import check_workers_ready
from dsinga.cluster.queue.usable_workers import ANYWHERE, WorkerSelection, usable_workers
from dsinga.engine.round_length import RoundLength
from dsinga.job import ClusterConf, Job, Precision
from dsinga.net import NeuralNet
from dsinga.passes.devices import forward_bytes
from dsinga.passes.evaluation import Forward
from dsinga.passes.predictor import BatchResult, Predictor
from dsinga.reading.batch_reader import BatchReader
from dsinga.worker.config import new_run_name

# Rounds for each Dask worker that are computed, or wait in its memory, at a time: enough to keep it busy.
ROUNDS_AHEAD = 3
# How long a round should last: long beside the 5 ms that a task costs, and short beside the whole, so that the Dask
# workers end together. An interruption waits for the rounds that have begun.
ROUND_SECONDS = 0.25
# The most bytes of features in a round of several batches: they stay in memory until the caller has taken them.
ROUND_BYTES = 8 << 20


def forward_on_cluster(job: Job, client: Client, params: ParamArrays, selection: WorkerSelection = ANYWHERE) -> Forward:
    """Return the forward passes of params on the Dask workers of a cluster."""
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
    """Yield the features of the layers ``keep``, and the metrics, of each batch in order; compute a few rounds ahead.

    A task computes a round of batches. ``count`` is the number of batches; 0 means all records. Where a Dask worker is
    lost meanwhile, the others compute its rounds. Raises RunError where all are lost.
    """
    workers = _await_usable_workers(job, client, selection)
    on_gpus = job.gpu or read_setting("device") == "gpu"  # a GPU computes alike beside any processor
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
    """Return the Dask workers that may be used, once there are as many processes as the job asks for."""

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
