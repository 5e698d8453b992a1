"""Two workers beside two runs of one worker at the same time, which share caches and memory but nothing else.

    python -m tests.benchmarks.bench_scaling [--case cifar10-64 ...] [--turns 5] [--json FILE]

The work of a worker is the same in all, and so are the cores, to which nobody is pinned. Efficiency is the time of an
iteration of the runs of one worker over that of the two workers. The manners take turns, each turn in processes of its
own; figures are medians. Where PyTorch is installed, DDP takes turns, too, and all are compared with it.

Workers of a group wait for each other in every iteration, and the slower one of the moment counts. What that costs
where the exchange takes no time at all is seen from the runs of one worker: their iterations in pairs, of each the
slower. That is the limit, for the machine as it was in these turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from importlib.util import find_spec
from pathlib import Path
from typing import Any

import click

from dsinga.api import with_workers
from dsinga.bench import measure
from dsinga.cluster import connect
from dsinga.job import ClusterConf
from tests.benchmarks.__main__ import take_turn
from tests.benchmarks.cases import CASES
from tests.benchmarks.ours import job

PATIENCE = 600  # seconds for a turn
GOALS = {"threads": 0.95, "processes": 0.90}
APART, PAIRED, DDP = "two runs at once", "the slower of each pair", "PyTorch DDP"
COMMAND = "from tests.benchmarks.bench_scaling import turn; turn({!r}, {}, {}, {}, {})"


def turn(name: str, workers: int, processes: bool, steps: int, cores: list[int]) -> None:
    """Print the median milliseconds of an iteration, and of its exchange, and those of each iteration, as JSON.

    It runs anywhere on these cores.
    """
    os.sched_setaffinity(0, cores)
    case = CASES[name]
    wanted = with_workers(job(case.net, case.batch * workers), workers)
    servers = workers if processes else 1
    wanted = wanted.replace(cluster=(wanted.cluster or ClusterConf()).replace(nservers_per_group=servers))
    each: list[float] = []
    with connect(workers=workers, separate_processes=processes) as client:
        figures = measure(wanted, client, steps=steps, synthetic=True, data_root=None, seconds=each)
    print(json.dumps([figures["ms_per_iteration"], figures["exchange_ms"], [1e3 * seconds for seconds in each]]))


def start(name: str, workers: int, processes: bool, steps: int, cores: list[int]) -> subprocess.Popen[str]:
    """Start a turn on some cores; with as many at first as workers, by which Dask decides on kernel threads."""
    code = COMMAND.format(name, workers, processes, steps, cores)
    env = {**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"}
    pinned = ["taskset", "-c", ",".join(map(str, cores[:workers])), sys.executable, "-c", code]
    return subprocess.Popen(pinned, stdout=subprocess.PIPE, text=True, env=env)


def outcome(running: subprocess.Popen[str]) -> tuple[float, float, list[float]]:
    """Return what a turn has printed."""
    return json.loads(running.communicate(timeout=PATIENCE)[0].splitlines()[-1])


def one_turn(name: str, steps: int, cores: list[int]) -> dict[str, dict[str, float]]:
    """Return the milliseconds of an iteration, and of its exchange, by manner, all of which have one turn."""
    apart = [outcome(one) for one in [start(name, 1, False, steps, cores) for _ in cores]]
    pairs = zip(*(each for _, _, each in apart), strict=True)
    found = {
        APART: {"ms": statistics.mean(ms for ms, _, _ in apart)},
        PAIRED: {"ms": statistics.median(map(max, pairs))},
    }
    for manner in GOALS:
        ms, exchange, _ = outcome(start(name, 2, manner == "processes", steps, cores))
        found[manner] = {"ms": ms, "exchange_ms": exchange}
    twin = f"{name.removesuffix('-64')}-two"
    if twin in CASES and find_spec("torch"):
        found[DDP] = {"ms": take_turn("pytorch", sys.executable, twin, CASES[twin], steps)["ms"]}
    return found


def line(row: dict[str, Any]) -> str:
    """Return a manner of a case as a row of the table."""
    figures = [f"{row['ms']:.1f}", f"{row['exchange_ms']:.1f}" if "exchange_ms" in row else ""]
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
            row = {"case": name, "manner": manner, **own, "efficiency": medians[APART]["ms"] / own["ms"]}
            row["of_ddp"] = own["ms"] / medians[DDP]["ms"] if DDP in medians else None
            rows.append(row)
            print(line(row), flush=True)
    if file:
        file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
