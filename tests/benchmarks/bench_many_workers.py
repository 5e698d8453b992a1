"""Embedded clusters of many workers: ``python -m tests.benchmarks.bench_many_workers [--workers 16 --workers 64]``.

Seconds until a cluster of so many Dask workers in this process has started, and what a worker takes for an iteration of
a small job that all of them train in one group, of which the net's mathematics is a small part. The clusters run in
turn, each turn in a process of its own; figures are medians of turns.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import time

import click

from dsinga.cluster import connect
from dsinga.cluster.run.benchmark import measure
from dsinga.job import ClusterConf, loads

COMMAND = "from tests.benchmarks.bench_many_workers import turn; turn({}, {})"
TURN_SECONDS = 300  # at most, for a turn
JOB = """
name: "small"
train_steps: 1
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 128 shape: 64 std_value: 16 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 32 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "tanh" type: kSTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh" innerproduct_conf { num_output: 10 }
    param { name: "w2" init { type: kUniformSqrtFanIn } } param { name: "b2" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip2" srclayers: "data" }
}
"""


def turn(workers: int, steps: int) -> None:
    """Print the seconds of the start and the milliseconds of an iteration, as JSON."""
    job = loads(JOB, "job.conf").replace(cluster=ClusterConf(nworkers_per_group=workers))
    started = time.perf_counter()
    with connect(workers=workers) as client:
        start = time.perf_counter() - started
        figures = measure(job, client, steps=steps, synthetic=True)
    print(json.dumps({"start": start, "ms": figures["ms_per_iteration"]}))


def take_turn(workers: int, steps: int) -> dict[str, float]:
    """Return the figures of a turn, which takes place in a process of its own."""
    command = [sys.executable, "-c", COMMAND.format(workers, steps)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, timeout=TURN_SECONDS, check=True)
    figures: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return figures


@click.command()
@click.option("--workers", "counts", multiple=True, default=(16, 64), show_default=True)
@click.option("--turns", default=3, show_default=True)
@click.option("--steps", default=100, show_default=True, help="Measured iterations of a turn.")
def main(counts: tuple[int, ...], turns: int, steps: int) -> None:
    """Print the seconds of the start, and the milliseconds of an iteration, in all and for each worker."""
    figures: dict[int, list[dict[str, float]]] = {count: [] for count in counts}
    for _ in range(turns):
        for count in counts:
            figures[count].append(take_turn(count, steps))
    click.echo("| workers | start, s | iteration, ms | a worker, ms |\n|" + " --- |" * 4)
    for count, rows in figures.items():
        start, ms = (statistics.median(row[key] for row in rows) for key in ("start", "ms"))
        click.echo(f"| {count} | {start:.2f} | {ms:.1f} | {ms / count:.2f} |")


if __name__ == "__main__":
    main()
