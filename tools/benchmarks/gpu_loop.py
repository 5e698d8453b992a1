"""A training loop of one worker on a GPU without servers, for the benchmarks."""

from __future__ import annotations

import statistics
import tempfile
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.addons.planner.benchmark import with_synthetic_records
from dsinga.job import Job, Phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.interface.context import PassObserver
from dsinga.net import create_net
from dsinga.ops import Array, Ops
from dsinga.reading.batch_reader import WorkerBatches
from dsinga.reading.checked_job import CheckedJob
from dsinga.training import algorithm, create_updater, initial_values
from dsinga.training.local_updater import LocalUpdater

WARM_UP, REPETITIONS = 20, 3


class Loop:
    """The iterations of a job with one batch of random records on the device."""

    def __init__(self, job: Job, ops: Ops):
        with tempfile.TemporaryDirectory(prefix="dsinga-gpu-") as folder:
            job = with_synthetic_records(job, Path(folder))
            feed = CheckedJob(job).reader(Phase.kTrain)
            self.net = create_net(job.neuralnet, Phase.kTrain, feed.infos)
            self.rows = Rows(0, feed.batchsize, feed.batchsize)
            inputs = [node for node in self.net.nodes if node.layer.is_input]
            read = WorkerBatches(feed, {node.layer.name: node.rows or self.rows for node in inputs})(0)
        self.ops, self.job = ops, job
        ops.enter()
        self.records: dict[str, Records] = {name: on_device(batch, ops) for name, batch in read.items()}
        self.train, self.updater = algorithm(job.train_one_batch), create_updater(job.updater)
        self.first = initial_values(self.net.params, job.seed)
        self.params = LocalUpdater(self.updater, self.net.params, ops)
        self.params.put(self.first)
        self.step = 0
        self.observer: PassObserver | None = None

    def iterate(
        self, values: Mapping[str, Array] | None = None, push: Callable[[str, Any], None] | None = None
    ) -> dict[str, Any]:
        """Run an iteration and return its metrics.

        ``values`` and ``push`` may replace the params that are updated on the device.
        """
        values = self.params.values if values is None else values
        self.params.steps = self.step
        ctx = Context(self.ops, Phase.kTrain, self.rows, self.job.seed, self.step, observer=self.observer)
        metrics = self.train(self.net, values, self.records, ctx, push or self.params.push)
        self.params.finish()
        self.step += 1
        return metrics


def on_device(records: Records, ops: Ops) -> Records:
    """Return the records with images on the device; labels and codes stay in host memory."""
    images = records.data.dtype == np.uint8
    return records._replace(data=ops.asarray(records.data)) if images else records


def milliseconds(ops: Ops, iterate: Callable[[], Any], steps: int) -> float:
    """Return the milliseconds of an iteration by the device's clock: the median of means over ``steps`` iterations."""
    event, means = ops.xp.cuda.Event, []
    for _ in range(WARM_UP):
        iterate()
    for _ in range(REPETITIONS):
        ops.synchronize()
        begin, end = event(), event()
        begin.record()
        for _ in range(steps):
            iterate()
        end.record()
        end.synchronize()
        means.append(float(ops.xp.cuda.get_elapsed_time(begin, end)) / steps)
    return statistics.median(means)
