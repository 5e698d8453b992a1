"""Memory of every process after many runs: ``python -m tests.benchmarks.bench_memory [--runs 50] [--json FILE]``.

Runs of a job with 7 million params follow one another on a cluster of two worker processes, in a second cluster with
predictions by the trained params after each run. Half a second after each, the resident memory of every process is
read; that after the last run must be within 3% of that after the third.
"""

from __future__ import annotations

import json
import os
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import click
import numpy as np

import dsinga
from dsinga.cluster import connect
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job, loads

FIRST, GOAL = 3, 0.03  # the run with which the last one is compared, and by what share they may differ
SETTLE_SECONDS = 0.5
PAGE = os.sysconf("SC_PAGE_SIZE") / 2**20

JOB = """
name: "wide"
train_steps: 12
disp_freq: 4
test_freq: 12
train_one_batch { alg: kBP }
updater { type: kSGD momentum: 0.9 learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 64 shape: 784 std_value: 255 } }
  layer { name: "ip1" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 2500 }
    param { name: "w1" init { type: kUniformSqrtFanIn } } param { name: "b1" init { type: kConstant value: 0 } } }
  layer { name: "tanh1" type: kSTanh srclayers: "ip1" }
  layer { name: "ip2" type: kInnerProduct srclayers: "tanh1" innerproduct_conf { num_output: 2000 }
    param { name: "w2" init { type: kUniformSqrtFanIn } } param { name: "b2" init { type: kConstant value: 0 } } }
  layer { name: "tanh2" type: kSTanh srclayers: "ip2" }
  layer { name: "ip3" type: kInnerProduct srclayers: "tanh2" innerproduct_conf { num_output: 10 }
    param { name: "w3" init { type: kUniformSqrtFanIn } } param { name: "b3" init { type: kConstant value: 0 } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip3" srclayers: "data" }
}
"""


def train(job: Job, client: Any) -> None:
    """Train with two workers and two servers."""
    dsinga.train(job, client, progress=False)


def train_and_predict(job: Job, client: Any) -> None:
    """Train, then predict the features of all records."""
    params = dsinga.train(job, client, progress=False).params
    dsinga.predict(job, params, "ip3", "train", client)


KINDS: dict[str, Callable[[Job, Any], None]] = {"training": train, "training and prediction": train_and_predict}


def processes(client: Any) -> dict[str, int]:
    """Return the process numbers of the cluster by what they are; the scheduler is in the client's process."""
    workers = client.run(os.getpid).values()
    return {"client and scheduler": os.getpid(), **{f"worker {number}": pid for number, pid in enumerate(workers)}}


def megabytes(pid: int) -> float:
    """Return the resident memory of a process, in MiB."""
    return PAGE * int(Path(f"/proc/{pid}/statm").read_text(encoding="utf-8").split()[1])


def measure(kind: str, folder: Path, runs: int) -> dict[str, list[float]]:
    """Return the memory of each process of a cluster after each run."""
    random = np.random.default_rng(0)
    records = random.integers(0, 256, (1024, 784), dtype=np.uint8)
    write_store(folder / "train.zarr", [(records, random.integers(0, 10, 1024))])
    job = loads(JOB, str(folder / "job.conf")).replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=2))
    with connect(workers=2, separate_processes=True) as client:
        pids = processes(client)
        table: dict[str, list[float]] = {name: [] for name in pids}
        for _ in range(runs):
            KINDS[kind](job, client)
            time.sleep(SETTLE_SECONDS)
            for name, pid in pids.items():
                table[name].append(megabytes(pid))
    return table


@click.command()
@click.option("--runs", default=50, show_default=True)
@click.option("--only", default="", help="Kinds of runs that begin so.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the memory after each run there, too.")
def main(runs: int, only: str, file: Path | None) -> None:
    """Print the memory of each process after the third and the last run, and the largest."""
    tables = {}
    click.echo(f"| runs | process | run {FIRST}, MiB | run {runs}, MiB | change | largest |\n|" + " --- |" * 6)
    for kind in [kind for kind in KINDS if kind.startswith(only)]:
        with tempfile.TemporaryDirectory() as folder:
            tables[kind] = measure(kind, Path(folder), runs)
        for name, column in tables[kind].items():
            early, late = column[FIRST - 1], column[-1]
            change = late / early - 1
            cells = [kind, name, f"{early:.0f}", f"{late:.0f}", f"{change:+.1%}", f"{max(column):.0f}"]
            click.echo(f"| {' | '.join(cells)} |{'' if abs(change) <= GOAL else ' beyond 3%'}")
    if file:
        file.write_text(json.dumps(tables, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
