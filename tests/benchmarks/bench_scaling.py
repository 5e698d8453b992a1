"""Two workers beside two runs of one worker at the same time, which share caches and memory but nothing else.

    python -m tests.benchmarks.bench_scaling [--case cifar10-64 ...] [--turns 5] [--json FILE]

The work of a worker is the same in all, and so are the cores, to which nobody is pinned. Efficiency is the time of an
iteration of the runs of one worker over that of the two workers. The manners take turns, each turn in processes of its
own; figures are medians. Where PyTorch is installed, DDP takes turns, too, and all are compared with it.

Workers of a group wait for each other in every iteration: the slower one of the moment counts, and both do the same
kind of work at the same time. What that costs where nothing is exchanged and no interpreter is shared is seen from the
two runs when they wait for each other, too: no exchange can be hoped to cost less.
"""

from __future__ import annotations

import json
import os
import socket
import statistics
import subprocess
import sys
from functools import partial
from pathlib import Path
from typing import Any

import click

from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.cluster.benchmark import measure
from dsinga.job import AlgConf, ClusterConf
from dsinga.registry import register
from dsinga.training import Metrics, bp
from tests.benchmarks.__main__ import PATIENCE, take_turn
from tests.benchmarks.cases import CASES
from tests.benchmarks.ours import job

GOALS = {"threads": 0.95, "processes": 0.90}
APART, IN_STEP, DDP = "two runs at once", "the same, in step", "PyTorch DDP"
COMMAND = "from tests.benchmarks.bench_scaling import turn; turn({!r}, {}, {}, {}, {}, {})"


def turn(name: str, workers: int, processes: bool, steps: int, cores: list[int], other: int | None) -> None:
    """Print the median milliseconds of an iteration, and of its exchange, as JSON.

    It runs anywhere on these cores. If ``other`` is a socket, each iteration ends when that of the other end does.
    """
    os.sched_setaffinity(0, cores)
    case = CASES[name]
    wanted = with_workers(job(case.net, case.batch * workers), workers)
    servers = workers if processes else 1
    wanted = wanted.replace(cluster=(wanted.cluster or ClusterConf()).replace(nservers_per_group=servers))
    if other is not None:
        register("algorithm", "InStep")(partial(train_in_step, other))
        wanted = wanted.replace(train_one_batch=AlgConf(user_alg="InStep"))
    with connect(workers=workers, separate_processes=processes) as client:
        figures = measure(wanted, client, steps=steps, synthetic=True)
    print(json.dumps({"ms": figures["ms_per_iteration"], "exchange_ms": figures["exchange_ms"]}))


def train_in_step(other: int, *arguments: Any) -> Metrics:
    """Train by a batch, then wait until whoever has the other end of a socket has, too."""
    metrics = bp(*arguments)
    os.write(other, b".")
    if not os.read(other, 1):
        raise RuntimeError("the other run has ended")
    return metrics


def start(
    name: str, workers: int, processes: bool, steps: int, cores: list[int], other: socket.socket | None = None
) -> subprocess.Popen[str]:
    """Start a turn on some cores; with as many at first as workers, by which Dask decides on kernel threads."""
    end = None if other is None else other.fileno()
    code = COMMAND.format(name, workers, processes, steps, cores, end)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pinned = ["taskset", "-c", ",".join(map(str, cores[:workers])), sys.executable, "-c", code]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=env, pass_fds=() if end is None else (end,))


def outcome(*running: subprocess.Popen[str]) -> dict[str, float]:
    """Return what turns at the same time have printed, the means of it."""
    try:
        said = [one.communicate(timeout=PATIENCE)[0] for one in running]
    finally:
        for one in running:
            one.kill()
    if any(one.returncode for one in running):
        raise click.ClickException("a turn failed, which says above why")
    found = [json.loads(text.splitlines()[-1]) for text in said]
    return {key: statistics.mean(one[key] for one in found) for key in found[0]}


def one_turn(name: str, steps: int, cores: list[int]) -> dict[str, dict[str, float]]:
    """Return the milliseconds of an iteration, and of its exchange, by manner, all of which have one turn."""
    found = {APART: outcome(*[start(name, 1, False, steps, cores) for _ in cores])}
    one, other = socket.socketpair()
    with one, other:
        running = [start(name, 1, False, steps, cores, end) for end in (one, other)]
    found[IN_STEP] = outcome(*running)
    for manner in GOALS:
        found[manner] = outcome(start(name, 2, manner == "processes", steps, cores))
    twin = f"{name.removesuffix('-64')}-two"
    if twin in CASES:
        try:
            found[DDP] = take_turn("pytorch", sys.executable, twin, CASES[twin], steps)
        except RuntimeError as error:
            print(f"{DDP} left out: {error}", file=sys.stderr)
    return found


def line(row: dict[str, Any]) -> str:
    """Return a manner of a case as a row of the table."""
    figures = [f"{row['ms']:.1f}", f"{row['exchange_ms']:.1f}" if row["manner"] in GOALS else ""]
    figures += [f"{row['efficiency']:.2f}", f"{GOALS[row['manner']]:.2f}" if row["manner"] in GOALS else ""]
    figures += [f"{row['of_ddp']:.2f}" if row["of_ddp"] else ""]
    return "| " + " | ".join([row["case"], row["manner"], *figures]) + " |"


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), default=("cifar10-64", "mnist-mlp"))
@click.option("--turns", default=5, show_default=True)
@click.option("--steps", default=30, show_default=True, help="Measured iterations of a turn.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(names: tuple[str, ...], turns: int, steps: int, file: Path | None) -> None:
    """Print milliseconds of an iteration by case and manner, the efficiency, and the share of DDP's time."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    rows = []
    print("| case | manner | ms | exchange ms | efficiency | goal | of DDP |\n| " + "--- | " * 7)
    for name in names:
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(turns):
            for manner, figures in one_turn(name, steps, cores).items():
                found.setdefault(manner, []).append(figures)
        medians = {
            manner: {key: statistics.median(one[key] for one in of) for key in of[0]} for manner, of in found.items()
        }
        for manner, own in medians.items():
            row = {"case": name, "options": manner, **own, "efficiency": medians[APART]["ms"] / own["ms"]}
            row["of_ddp"] = own["ms"] / medians[DDP]["ms"] if DDP in medians else None
            rows.append(row)
            print(line(row), flush=True)
    if file:
        file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
