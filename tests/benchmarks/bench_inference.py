"""Evaluation and prediction beside a bare loop: ``python -m tests.benchmarks.bench_inference [--records N]``.

A small net over records of two numbers, in batches of 20: what Dask adds to a forward pass is largest there. The bare
loop is :class:`LocalNet` over the same batches, read in the same way, in one thread. Seconds of the clock, and their
ratio to the bare loop's, in one run; a worker in this process, one in another process, and two of these. To measure a
version that lacks this file, start in its root with both roots on the path, its own first.
"""

from __future__ import annotations

import datetime
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
from distributed import Client, LocalCluster

import dsinga
from dsinga.api.jobs import job_with_data
from dsinga.cluster.inference.inference import open_inference
from dsinga.engine.local_net import LocalNet
from dsinga.job import Phase
from tests.benchmarks.__main__ import processor

BATCH = 20
JOB = f"""
name: "small" train_steps: 1 updater {{ type: kSGD learning_rate {{ type: kFixed base_lr: 0.1 }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ batchsize: {BATCH} }} }}
  layer {{ name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 16 }}
    param {{ init {{ type: kUniformSqrtFanIn }} }} }}
  layer {{ name: "tanh" type: kSTanh srclayers: "hidden" }}
  layer {{ name: "ip" type: kInnerProduct srclayers: "tanh" innerproduct_conf {{ num_output: 2 }}
    param {{ init {{ type: kUniformSqrtFanIn }} }} }}
  layer {{ name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }}
}}
"""


def seconds_of(function: Callable[[], Any]) -> float:
    """Return how long a call takes."""
    began = time.perf_counter()
    function()
    return time.perf_counter() - began


@click.command(help=__doc__.split("\n")[0])
@click.option("--records", default=200_000, show_default=True)
def main(records: int) -> None:
    """Print a table."""
    random = np.random.default_rng(0)
    x = random.standard_normal((records, 2)).astype(np.float32)
    y = (x[:, 0] * x[:, 1] > 0).astype(int)
    job = dsinga.loads(JOB)
    net = LocalNet(job, x, y, threads=1)
    params = net.initial_params()
    _, reader = open_inference(job_with_data(job, (x, y), Phase.kTest, None), params, Phase.kTest, ())

    def bare(predicts: bool) -> None:
        for start in range(0, records, BATCH):
            (batch,) = reader.read_range(start, start + BATCH).values()
            if predicts:
                net.forward(params, batch.data, layers=("ip",))
            else:
                net.forward(params, batch.data, batch.labels)

    print(
        f"{records:,} records in batches of {BATCH}; {processor()}, {datetime.date.today()}; s (ratio to the bare loop)"
    )
    bare(False)
    for name, workers, processes in (("in process", 1, False), ("a process", 1, True), ("two processes", 2, True)):
        options = {"n_workers": workers, "threads_per_worker": 1, "processes": processes, "dashboard_address": ":0"}
        with LocalCluster(**options) as cluster, Client(cluster) as client:
            loops = [seconds_of(lambda: bare(False)), seconds_of(lambda: bare(True))]
            calls = [
                seconds_of(lambda: dsinga.evaluate(job, params, data=(x, y), client=client)),
                seconds_of(lambda: dsinga.predict(job, params, "ip", data=x, client=client)),
            ]
        for what, loop, call in zip(("evaluate", "predict"), loops, calls, strict=True):
            print(f"{name:14} {what:9} bare {loop:6.2f}  dsinga {call:6.2f} ({call / loop:.2f})")


if __name__ == "__main__":
    main()
