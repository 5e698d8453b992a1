"""What a run sends to the Dask scheduler: ``python -m tests.benchmarks.bench_scheduler [WORKERS ...]``.

Counts the messages of every kind that the scheduler gets in a second while 2, 8 and 64 Dask workers (threads of this
process) train a net whose steps are short. Their number must not grow with the speed of the steps, and little with the
number of workers: the scheduler has one thread, which takes some hundred microseconds for each.
"""

from __future__ import annotations

import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click
import numpy as np
from distributed import Client

from dsinga import cluster
from dsinga.api import with_workers
from dsinga.data import write_store
from dsinga.job import Job, loads
from tests.support.scheduler_messages import count_messages

JOB = """
name: "short steps"
train_steps: 10000000
disp_freq: 1000000
train_one_batch { alg: kBP }
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 64 shape: 16 std_value: 255 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 10 }
    param { name: "w" init { type: kUniformSqrtFanIn } } param { name: "b" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


class Counted(Exception):
    """Ends the run: the messages have been counted for long enough."""


class RateObserver:
    """An observer that keeps the counts from ``begin`` seconds to ``end`` seconds after the first round."""

    def __init__(self, counts: Counter[str], begin: float, end: float):
        self._counts, self._begin, self._end = counts, begin, end
        self._started: float | None = None
        self.first: tuple[float, int, Counter[str]] | None = None
        self.last: tuple[float, int, Counter[str]] | None = None

    def waiting(self, sentence: str) -> None: ...

    def begin(self, step: int) -> None:
        """Nothing to do."""

    def record(self, row: dict[str, Any]) -> None:
        """Nothing to do."""

    def progress(self, row: dict[str, Any]) -> None:
        """Keep the counts; raise Counted at the end."""
        now = time.perf_counter()
        self._started = self._started or now
        if now - self._started >= self._begin and self.first is None:
            self.first = (now, row["step"], self._counts.copy())
        if now - self._started >= self._end:
            self.last = (now, row["step"], self._counts.copy())
            raise Counted

    def rates(self) -> tuple[float, dict[str, float]]:
        """Return steps a second, and messages a second by name."""
        assert self.first is not None
        assert self.last is not None
        seconds = self.last[0] - self.first[0]
        counts = self.last[2] - self.first[2]
        return (self.last[1] - self.first[1]) / seconds, {name: count / seconds for name, count in counts.items()}


def rates_of(job: Job, client: Client, begin: float, end: float) -> tuple[float, dict[str, float]]:
    """Return steps a second and messages a second of a run on an in-process cluster."""
    observer = RateObserver(count_messages(client.cluster.scheduler), begin, end)
    try:
        cluster.train(job, client, observer)
    except Counted:
        return observer.rates()
    raise RuntimeError("the run has ended too soon")


def job_in(folder: Path) -> Job:
    """Return the job, its records written to a folder."""
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (4096, 16), dtype=np.uint8)
    write_store(folder / "train.zarr", [(records, rng.integers(0, 10, 4096))])
    return loads(JOB, str(folder / "job.conf"))


@click.command()
@click.argument("workers", nargs=-1, type=int)
@click.option("--begin", default=8.0, show_default=True, help="Seconds after the first round when counting begins.")
@click.option("--seconds", default=12.0, show_default=True, help="How long to count.")
def main(workers: Sequence[int], begin: float, seconds: float) -> None:
    """Print messages a second to the scheduler for each number of workers."""
    click.echo("| workers | steps/s | messages/s | a worker | most of them |\n| " + "--- | " * 5)
    for count in workers or (2, 8, 64):
        with tempfile.TemporaryDirectory() as folder, cluster.connect(workers=count) as client:
            job = with_workers(job_in(Path(folder)), count)
            job.neuralnet.layer[0].store_conf.path = f"{folder}/train.zarr"
            steps, rates = rates_of(job, client, begin, begin + seconds)
        total = sum(rates.values())
        most = ", ".join(f"{name} {rate:.1f}" for name, rate in sorted(rates.items(), key=lambda item: -item[1])[:5])
        click.echo(f"| {count} | {steps:.0f} | {total:.1f} | {total / count:.2f} | {most} |")


if __name__ == "__main__":
    main()
