"""Evaluating and predicting with given params: forward passes over a whole store, spread over the cluster."""

from __future__ import annotations

import collections
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
from distributed import Client

from dsinga.cluster.feed import Feed, open_feed
from dsinga.cluster.outputs import OUTPUTS, write_output
from dsinga.cluster.placement import workers_at_hand
from dsinga.cluster.session import add_metrics, new_run
from dsinga.cluster.slices import Arrays
from dsinga.cluster.travel import check_stores, check_travels
from dsinga.cluster.watch import gather
from dsinga.errors import UserError
from dsinga.job import Job, Phase, check
from dsinga.layers import Context, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from dsinga.registry import nearest
from dsinga.training import Metrics, check_params, forward

# Batches that are computed or waiting to be taken, for each Dask worker: enough to keep it busy, little enough to hold.
AHEAD = 3


def evaluate(job: Job, client: Client, params: Arrays, phase: Phase, roots: Sequence[str] = ()) -> dict[str, float]:
    """Return the mean metrics of ``params`` over every record of the stores of ``phase``, each record once.

    The job's output layers of that phase write their files.
    """
    net, feed = _prepare(job, params, phase, roots)
    parts = [metrics for _, metrics in _batches(client, net, feed, params, job.seed, ())]
    for conf in (node.layer.conf for node in net.nodes):
        if conf.type in OUTPUTS:  # a pass for each: a job has one, if any, and seldom a loss beside it
            batches = _batches(client, net, feed, params, job.seed, (conf.name,))
            write_output(conf, (features[conf.name].data for features, _ in batches))
    return {name: total / count for name, (total, count) in add_metrics(parts).items() if count}


def predict(
    job: Job, client: Client, params: Arrays, layer: str, phase: Phase = Phase.kTest, roots: Sequence[str] = ()
) -> Iterator[Records]:
    """Yield the feature of ``layer`` for batch after batch, in the order of the store: arrays of shape (rows, ...).

    Beside it are the labels (rows,) that come with it, or None.
    """
    net, feed = _prepare(job, params, phase, roots)
    names = [node.layer.name for node in net.nodes]
    if layer not in names:
        raise UserError(f"the {phase.name} net has no layer {layer!r}{nearest(layer, names)}")
    for features, _ in _batches(client, net, feed, params, job.seed, (layer,)):
        yield features[layer]


def _prepare(job: Job, params: Arrays, phase: Phase, roots: Sequence[str]) -> tuple[NeuralNet, Feed]:
    check(job, [phase])
    feed = open_feed(job, phase, 1, roots)
    net = create_net(job.neuralnet, phase, feed.infos)
    check_params(net, params)
    return net, feed


def _batches(
    client: Client, net: NeuralNet, feed: Feed, params: Arrays, seed: int, keep: Sequence[str]
) -> Iterator[tuple[dict[str, Records], Metrics]]:
    """Yield (kept features, metrics) of each batch in order, never more than a few ahead."""
    workers = workers_at_hand(client)
    if not workers:
        raise UserError("the Dask cluster has no workers; start some with `dask worker SCHEDULER --nthreads 1`")
    check_travels(client, workers, [net])
    check_stores(client, workers, [feed])
    run = new_run()
    shared = client.scatter((net, feed, {name: params[name] for name in net.params}), broadcast=True, hash=False)
    flights: collections.deque[Any] = collections.deque()
    starts = iter(range(0, len(feed), feed.batchsize))
    while True:
        for start in starts:
            flights.append(
                client.submit(
                    _forward_range, shared, seed, start, start + feed.batchsize, tuple(keep),
                    pure=False, key=f"forward-rows-{start}-{run}",
                )
            )  # fmt: skip
            if len(flights) >= AHEAD * len(workers):
                break
        if not flights:
            return
        yield gather(client, [flights.popleft()], ())[0]


def _forward_range(
    shared: tuple[NeuralNet, Feed, Mapping[str, np.ndarray]], seed: int, start: int, stop: int, keep: Sequence[str]
) -> tuple[dict[str, Records], Metrics]:
    """Task: one forward pass over the records ``start`` to ``stop`` - 1."""
    net, feed, params = shared
    ops = get_ops()
    ops.set_threads(1)  # as many of these tasks run at once as there are threads
    records = feed.read_range(start, stop)
    rows = min(stop, len(feed)) - start
    ctx = Context(ops, net.phase, Rows(0, rows, rows), seed)
    values = {name: ops.asarray(value) for name, value in params.items()}
    outputs, metrics = forward(net, values, records, ctx, keep)
    return {name: _records(ops.to_numpy(outputs[name].feature), outputs[name].labels) for name in keep}, metrics


def _records(feature: np.ndarray, labels: Any) -> Records:
    """Return a feature with its labels where there is one for each row."""
    one_each = labels is not None and np.shape(labels) == feature.shape[:1]
    return Records(np.ascontiguousarray(feature), np.asarray(labels) if one_each else None)
