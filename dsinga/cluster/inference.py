"""Evaluating and predicting with given params: forward passes over a whole store, spread over the cluster."""

from __future__ import annotations

import collections
import threading
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from distributed import Client, get_worker

from dsinga.cluster.cluster_run import new_run
from dsinga.cluster.devices import HERE, choose_processors
from dsinga.cluster.outputs import OUTPUTS, write_output
from dsinga.cluster.placement import available_workers
from dsinga.cluster.preflight import check_stores, check_user_code
from dsinga.cluster.supervision import gather
from dsinga.errors import UserError
from dsinga.job import Job, Phase, check
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import Array, Ops
from dsinga.registry import nearest
from dsinga.training import Metrics, add_metrics, check_params, forward
from dsinga.worker.batch_reader import BatchReader, open_batch_reader
from dsinga.worker.param_slices import Arrays
from dsinga.worker.processor import Processor

# Batches that are computed or waiting to be taken, for each Dask worker: enough to keep it busy, little enough to hold.
AHEAD = 3


def evaluate(job: Job, client: Client, params: Arrays, phase: Phase, roots: Sequence[str] = ()) -> dict[str, float]:
    """Return the mean metrics of ``params`` over every record of the stores of ``phase``, each record once.

    The job's output layers of that phase write their files.
    """
    net, reader = _prepare(job, params, phase, roots)
    parts = [metrics for _, metrics in _batches(job, client, net, reader, params, ())]
    for conf in (node.layer.conf for node in net.nodes):
        if conf.type in OUTPUTS:  # a pass for each: a job has one, if any, and seldom a loss beside it
            batches = _batches(job, client, net, reader, params, (conf.name,))
            write_output(conf, (features[conf.name].data for features, _ in batches))
    return {name: total / count for name, (total, count) in add_metrics(parts).items() if count}


def predict(
    job: Job, client: Client, params: Arrays, layer: str, phase: Phase = Phase.kTest, roots: Sequence[str] = ()
) -> Iterator[Records]:
    """Yield the feature of ``layer`` for batch after batch, in the order of the store: arrays of shape (rows, ...).

    Beside it are the labels (rows,) that come with it, or None.
    """
    net, reader = _prepare(job, params, phase, roots)
    names = [node.layer.name for node in net.nodes]
    if layer not in names:
        raise UserError(f"the {phase.name} net has no layer {layer!r}{nearest(layer, names)}")
    for features, _ in _batches(job, client, net, reader, params, (layer,)):
        yield features[layer]


def _prepare(job: Job, params: Arrays, phase: Phase, roots: Sequence[str]) -> tuple[NeuralNet, BatchReader]:
    check(job, [phase])
    reader = open_batch_reader(job, phase, 1, roots)
    net = create_net(job.neuralnet, phase, reader.infos)
    check_params(net, params)
    return net, reader


def processor_here(job: Job, net: NeuralNet) -> Processor:
    """Return what this process computes forward passes with, without Dask: a GPU if the job, or the user, wants one."""
    (chosen,) = choose_processors(job, None, (HERE,), lambda: _bytes_needed(net, 1))
    return chosen


@dataclass(eq=False)
class ForwardPass:
    """What the tasks of a pass have in common, and, in each process, kernels and params of each thread that runs some.

    ``processors`` are those of the Dask workers, by address; one that comes later computes on a core.
    """

    net: NeuralNet
    reader: BatchReader
    params: Mapping[str, np.ndarray]
    seed: int
    processors: Mapping[str, Processor]
    _own: dict[tuple[str, int], tuple[Ops, dict[str, Array]]] = field(default_factory=dict)

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_own": {}}

    def own(self) -> tuple[Ops, Mapping[str, Array]]:
        """Return the kernels of the calling thread, and the params where they compute."""
        address = get_worker().address
        place = address, threading.get_ident()
        if place not in self._own:
            ops = self.processors.get(address, Processor(1)).ops()
            ops.enter()
            self._own[place] = ops, {name: ops.asarray(value) for name, value in self.params.items()}
        ops, values = self._own[place]
        ops.enter()
        ops.set_threads(1)  # as many of these tasks run at once as there are threads
        return ops, values


def _bytes_needed(net: NeuralNet, threads: int) -> int:
    """Return what so many threads take on a device for params and features, were none of these let go of."""
    from dsinga.planner.memory import FLOAT_BYTES, feature_sizes  # the planner is for those who want a GPU

    features = sum(size for stage in net.stages for size in feature_sizes(stage))
    return threads * (FLOAT_BYTES * sum(param.size for param in net.params.values()) + features)


def _batches(
    job: Job, client: Client, net: NeuralNet, reader: BatchReader, params: Arrays, keep: Sequence[str]
) -> Iterator[tuple[dict[str, Records], Metrics]]:
    """Yield (kept features, metrics) of each batch in order, never more than a few ahead."""
    workers = available_workers(client)
    if not workers:
        raise UserError("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    check_user_code(client, workers, [net])
    check_stores(client, workers, [reader])
    run = new_run()
    most = max(worker["nthreads"] for worker in workers.values())
    chosen = choose_processors(job, client, tuple(workers), lambda: _bytes_needed(net, most))
    needed = {name: params[name] for name in net.params}
    work = ForwardPass(net, reader, needed, job.seed, dict(zip(workers, chosen, strict=True)))
    shared = client.scatter(work, broadcast=True, hash=False)
    flights: collections.deque[Any] = collections.deque()
    starts = iter(range(0, len(reader), reader.batchsize))
    while True:
        for start in starts:
            flights.append(
                client.submit(
                    _forward_range, shared, start, start + reader.batchsize, tuple(keep),
                    pure=False, key=f"forward-rows-{start}-{run}",
                )
            )  # fmt: skip
            if len(flights) >= AHEAD * len(workers):
                break
        if not flights:
            return
        yield gather(client, [flights.popleft()], ())[0]


def _forward_range(
    shared: ForwardPass, start: int, stop: int, keep: Sequence[str]
) -> tuple[dict[str, Records], Metrics]:
    """Task: one forward pass over the records ``start`` to ``stop`` - 1."""
    ops, values = shared.own()
    records = shared.reader.read_range(start, stop)
    rows = min(stop, len(shared.reader)) - start
    ctx = Context(ops, shared.net.phase, Rows(0, rows, rows), shared.seed)
    outputs, metrics = forward(shared.net, values, records, ctx, keep)
    return {name: _records(ops.to_numpy(outputs[name].feature), outputs[name].labels) for name in keep}, metrics


def _records(feature: np.ndarray, labels: Any) -> Records:
    """Return a feature with its labels where there is one for each row."""
    one_each = labels is not None and np.shape(labels) == feature.shape[:1]
    return Records(np.ascontiguousarray(feature), np.asarray(labels) if one_each else None)
