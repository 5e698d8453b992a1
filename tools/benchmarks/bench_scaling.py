"""The scaling of two workers: compared with two runs of one worker at the same time, which share caches and memory.

    python -m tools.benchmarks.bench_scaling [--case cifar10-64 ...] [--turns 5] [--json FILE]

The work of a worker is the same in all, and so are the cores, to which nobody is pinned. Efficiency is the time of an
iteration of the runs of one worker over that of the two workers. The setups run in turn, each turn in processes of its
own; figures are medians. Where PyTorch is installed, DDP runs, too, and all are compared with it.

Workers of a group wait for each other in every iteration, so that the slower one counts. The cost of that alone is
measured by two runs that wait for each other and exchange nothing: no exchange can cost less.
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

from dsinga.addons.planner.benchmark import measure
from dsinga.api import with_workers
from dsinga.base.registry import register
from dsinga.cluster import connect
from dsinga.job import AlgConf, ClusterConf
from dsinga.training import Metrics, bp
from tools.benchmarks.__main__ import TURN_SECONDS, take_turn
from tools.benchmarks.cases import CASES
from tools.benchmarks.ours import job

GOALS = {"threads": 0.95, "processes": 0.90}
APART, IN_STEP, DDP = "two runs at once", "the same, in step", "PyTorch DDP"
COMMAND = "from tools.benchmarks.bench_scaling import turn; turn({!r}, {}, {}, {}, {}, {})"


def turn(name: str, workers: int, processes: bool, steps: int, cores: list[int], barrier: int | None) -> None:
    """Print the median milliseconds of an iteration, and of its exchange, as JSON.

    It runs anywhere on these cores. If ``barrier`` is a socket, an iteration ends when that at the socket's other end
    does.
    """
    os.sched_setaffinity(0, cores)
    case = CASES[name]
    conf = with_workers(job(case.net, case.batch * workers), workers)
    servers = workers if processes else 1
    conf = conf.replace(cluster=(conf.cluster or ClusterConf()).replace(nservers_per_group=servers))
    if barrier is not None:
        register("algorithm", "InStep")(partial(train_in_step, barrier))
        conf = conf.replace(train_one_batch=AlgConf(user_alg="InStep"))
    with connect(workers=workers, separate_processes=processes) as client:
        figures = measure(conf, client, steps=steps, synthetic=True)
    print(json.dumps({"ms": figures["ms_per_iteration"], "exchange_ms": figures["exchange_ms"]}))


def train_in_step(barrier: int, *arguments: Any) -> Metrics:
    """Train by a batch, then wait until the process at the other end of the socket has done so."""
    metrics = bp(*arguments)
    os.write(barrier, b".")
    if not os.read(barrier, 1):
        raise RuntimeError("the other run has ended")
    return metrics


def start(
    name: str, workers: int, processes: bool, steps: int, cores: list[int], barrier: socket.socket | None = None
) -> subprocess.Popen[str]:
    """Start a turn on some cores; at first on as many as workers, from which Dask derives the kernel threads."""
    end = None if barrier is None else barrier.fileno()
    code = COMMAND.format(name, workers, processes, steps, cores, end)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pinned = ["taskset", "-c", ",".join(map(str, cores[:workers])), sys.executable, "-c", code]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=env, pass_fds=() if end is None else (end,))


def outcome(*running: subprocess.Popen[str]) -> dict[str, float]:
    """Return the means of the figures that turns at the same time print."""
    try:
        outputs = [process.communicate(timeout=TURN_SECONDS)[0] for process in running]
    finally:
        for process in running:
            process.kill()
    if any(process.returncode for process in running):
        raise click.ClickException("a turn failed; its error is above")
    figures = [json.loads(text.splitlines()[-1]) for text in outputs]
    return {key: statistics.mean(turn[key] for turn in figures) for key in figures[0]}


def one_turn(name: str, steps: int, cores: list[int]) -> dict[str, dict[str, float]]:
    """Return the milliseconds of an iteration, and of its exchange, of one turn of each setup."""
    figures = {APART: outcome(*[start(name, 1, False, steps, cores) for _ in cores])}
    ends = socket.socketpair()
    with ends[0], ends[1]:
        running = [start(name, 1, False, steps, cores, end) for end in ends]
    figures[IN_STEP] = outcome(*running)
    for setup in GOALS:
        figures[setup] = outcome(start(name, 2, setup == "processes", steps, cores))
    twin = f"{name.removesuffix('-64')}-two"
    if twin in CASES:
        try:
            figures[DDP] = take_turn("PyTorch", sys.executable, twin, CASES[twin], steps)
        except RuntimeError as error:
            print(f"{DDP} left out: {error}", file=sys.stderr)
    return figures


def line(row: dict[str, Any]) -> str:
    """Return a setup of a case as a row of the table."""
    figures = [f"{row['ms']:.1f}", f"{row['exchange_ms']:.1f}" if row["setup"] in GOALS else ""]
    figures += [f"{row['efficiency']:.2f}", f"{GOALS[row['setup']]:.2f}" if row["setup"] in GOALS else ""]
    figures += [f"{row['of_ddp']:.2f}" if row["of_ddp"] else ""]
    return "| " + " | ".join([row["case"], row["setup"], *figures]) + " |"


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), default=("cifar10-64", "mnist-mlp"))
@click.option("--turns", default=5, show_default=True)
@click.option("--steps", default=30, show_default=True, help="Measured iterations of a turn.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(names: tuple[str, ...], turns: int, steps: int, file: Path | None) -> None:
    """Print milliseconds of an iteration by case and setup, the efficiency, and the share of DDP's time."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    rows = []
    print("| case | setup | ms | exchange ms | efficiency | goal | of DDP |\n| " + "--- | " * 7)
    for name in names:
        turns_by_setup: dict[str, list[dict[str, float]]] = {}
        for _ in range(turns):
            for setup, figures in one_turn(name, steps, cores).items():
                turns_by_setup.setdefault(setup, []).append(figures)
        medians = {
            setup: {key: statistics.median(turn[key] for turn in figures) for key in figures[0]}
            for setup, figures in turns_by_setup.items()
        }
        for setup, figures in medians.items():
            row = {"case": name, "setup": setup, **figures, "efficiency": medians[APART]["ms"] / figures["ms"]}
            row["of_ddp"] = figures["ms"] / medians[DDP]["ms"] if DDP in medians else None
            rows.append(row)
            print(line(row), flush=True)
    if file:
        file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
