"""Two workers beside two runs of one worker at the same time, which share caches and memory but nothing else.

    python -m tests.benchmarks.bench_scaling [--case cifar10-64 ...] [--turns 5] [--json FILE]

The work of a worker is the same in all, and so are the cores, to which nobody is pinned. Efficiency is the time of an
iteration of the runs of one worker over that of the two workers. The manners take turns, each turn in processes of its
own; figures are medians.

Workers of a group wait for each other in every iteration, and the slower one of the moment counts. What that costs
where the exchange takes no time at all is seen from the runs of one worker: their iterations in pairs, of each the
slower. That is the limit which is printed beside the efficiency, for the machine as it was in these turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
from pathlib import Path

import click

from dsinga.api import with_workers
from dsinga.bench import measure
from dsinga.cluster import connect
from dsinga.job import ClusterConf
from tests.benchmarks.cases import CASES
from tests.benchmarks.ours import job

PATIENCE = 600  # seconds for a turn
GOALS = {"threads": 0.95, "processes": 0.90}
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


def outcomes(running: list[subprocess.Popen[str]]) -> dict[str, float]:
    """Return the figures of turns at the same time: the mean of each; ``paired``, were they to wait for each other."""
    found = [json.loads(one.communicate(timeout=PATIENCE)[0].splitlines()[-1]) for one in running]
    ms, exchange, each = zip(*found, strict=True)
    paired = statistics.median(map(max, zip(*each, strict=True)))
    return {"ms": statistics.mean(ms), "exchange_ms": statistics.mean(exchange), "paired_ms": paired}


@click.command()
@click.option("--case", "names", multiple=True, type=click.Choice(list(CASES)), default=("cifar10-64", "mnist-mlp"))
@click.option("--turns", default=5, show_default=True)
@click.option("--steps", default=30, show_default=True, help="Measured iterations of a turn.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(names: tuple[str, ...], turns: int, steps: int, file: Path | None) -> None:
    """Print milliseconds of an iteration by case and manner, and the efficiency."""
    cores = sorted(os.sched_getaffinity(0))[:2]
    rows = []
    print("| case | manner | ms | exchange ms | two runs at once | efficiency | goal | limit |\n| " + "--- | " * 8)
    for name in names:
        found: dict[str, list[dict[str, float]]] = {}
        for _ in range(turns):
            apart = [start(name, 1, False, steps, cores) for _ in cores]
            found.setdefault("apart", []).append(outcomes(apart))
            for manner in GOALS:
                together = start(name, 2, manner == "processes", steps, cores)
                found.setdefault(manner, []).append(outcomes([together]))
        medians = {
            manner: {key: statistics.median(one[key] for one in of) for key in of[0]} for manner, of in found.items()
        }
        alone, paired = medians["apart"]["ms"], medians["apart"]["paired_ms"]
        for manner, goal in GOALS.items():
            own = {"ms": medians[manner]["ms"], "exchange_ms": medians[manner]["exchange_ms"], "alone_ms": alone}
            rows.append(
                {"case": name, "manner": manner, **own, "efficiency": alone / own["ms"], "limit": alone / paired}
            )
            cells = [f"{ms:.1f}" for ms in own.values()]
            cells += [f"{alone / own['ms']:.2f}", f"{goal:.2f}", f"{alone / paired:.2f}"]
            print("| " + " | ".join([name, manner, *cells]) + " |", flush=True)
    if file:
        file.write_text(json.dumps(rows, indent=1))


if __name__ == "__main__":
    main()
