"""What snapshots cost without faults: ``python -m tests.benchmarks.bench_snapshots [CASE ...]``.

Trains a case over two processes with snapshots and without, in the order A B B A on one cluster. The figure is the mean
of an iteration, because a snapshot falls on few of them, and the median of the ratios of pairs. The driver's memory is
that of its process beyond the runs without snapshots before. Results belong in docs/dev/measurements.md.
"""

from __future__ import annotations

import json
import logging
import os
import resource
import statistics
import tempfile
from pathlib import Path

import click
import dask.config
from distributed import Client

from dsinga.api import with_workers
from dsinga.cluster import connect, train
from dsinga.cluster.run import snapshots as snapshots_module
from dsinga.cluster.run.benchmark import SilentObserver, with_synthetic_records, without_tests
from dsinga.job import ClusterConf, Job
from tests.benchmarks.__main__ import processor
from tests.benchmarks.cases import CASES
from tests.benchmarks.ours import job as job_of

DEFAULT = ("cifar10-64", "mnist-mlp", "char-rnn")
WARM_UP = 10  # iterations in which kernels are made and rounds grow
SHARES = (0.0, 0.02)


class Counter(logging.Handler):
    """Counts the snapshots that the driver logs."""

    def __init__(self) -> None:
        super().__init__(logging.DEBUG)
        self.count = 0

    def emit(self, record: logging.LogRecord) -> None:
        """Count a snapshot."""
        self.count += record.msg.startswith("snapshot of step")


def seconds(job: Job, client: Client, share: float) -> float:
    """Return the mean seconds of an iteration with snapshots of this share of the time."""
    with dask.config.set({"dsinga.snapshot_share": share}):
        timings = train(job, client, SilentObserver()).timings[WARM_UP:]
    return statistics.mean(timing["total"] for timing in timings)


def measure(name: str, pairs: int, turn_seconds: float, counter: Counter) -> dict[str, float]:
    """Return the figures of a case."""
    case = CASES[name]
    job = with_workers(job_of(case.net, case.batch * 2), 2)
    job = job.replace(cluster=(job.cluster or ClusterConf()).replace(nservers_per_group=2))
    with tempfile.TemporaryDirectory() as folder, connect(workers=2, separate_processes=True) as client:
        job = with_synthetic_records(without_tests(job, 40), Path(folder))
        steps = WARM_UP + int(turn_seconds / seconds(job, client, 0.0))
        job = job.replace(train_steps=steps)
        seconds(job, client, 0.0)
        before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
        ratios, means = [], []
        counter.count = 0
        for number in range(pairs):
            order = SHARES if number % 2 == 0 else SHARES[::-1]
            turn = {share: seconds(job, client, share) for share in order}
            ratios.append(turn[SHARES[1]] / turn[SHARES[0]])
            means.append(turn[SHARES[0]])
        after = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    return {
        "ms": 1e3 * statistics.median(means),
        "ratio": statistics.median(ratios),
        "lowest": min(ratios),
        "highest": max(ratios),
        "snapshots a turn": counter.count / pairs,
        "driver MB": (after - before) / 1024,
    }


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--pairs", default=6, show_default=True, type=click.IntRange(1))
@click.option("--seconds", "turn_seconds", default=15.0, show_default=True, help="Length of a turn.")
def main(names: tuple[str, ...], pairs: int, turn_seconds: float) -> None:
    """Print the ratio of an iteration with snapshots to one without."""
    counter = Counter()
    logger = logging.getLogger(snapshots_module.__name__)
    logger.addHandler(counter)
    logger.setLevel(logging.DEBUG)
    logger.propagate = False
    click.echo(f"{processor()}, load {os.getloadavg()[0]:.1f}")
    for name in names or DEFAULT:
        figures = measure(name, pairs, turn_seconds, counter)
        click.echo(f"{name}: {json.dumps({key: round(value, 3) for key, value in figures.items()})}")


if __name__ == "__main__":
    main()
