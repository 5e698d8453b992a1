"""Accuracy against time under each training framework of the paper (5.2; its Fig. 19), on real data.

    python tools/benchmarks/bench_frameworks.py JOB.conf --steps 3000 --test-freq 300 --out frameworks-mnist

    RATE=1gbit tools/benchmarks/hosts.sh 2 python -m tools.benchmarks.bench_frameworks JOB.conf --scheduler '$SCHEDULER'

Trains the job under each framework in turn, on an in-process cluster or that of a scheduler, such as of two hosts that
are network namespaces (as root), and writes OUT.json and OUT.svg. Synchronous
frameworks take ``--steps`` steps; each of G asynchronous groups takes a Gth of them, so that all frameworks read the
same number of records.
"""

from __future__ import annotations

import json
import time
from pathlib import Path
from typing import Any

import click
from distributed import Client

import dsinga
from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels
from dsinga.job import ClusterConf

FRAMEWORKS = {
    "one worker": ClusterConf(),
    "Sandblaster": ClusterConf(nworkers_per_group=2, nservers_per_group=2, server_worker_separate=True),
    "AllReduce": ClusterConf(nworkers_per_group=2, nservers_per_group=2),
    "Downpour": ClusterConf(nworker_groups=2, nservers_per_group=2, server_worker_separate=True),
    "Hogwild": ClusterConf(nworker_groups=2, nserver_groups=2, sync_freq=10),
    "hybrid": ClusterConf(nworker_groups=2, nworkers_per_group=2),
}


@click.command()
@click.argument("conf", type=click.Path(exists=True, dir_okay=False))
@click.option("--steps", default=3000, help="Steps of one worker.")
@click.option("--test-freq", default=300, help="Steps of one worker between tests.")
@click.option("--data-root", help="Folder of the stores, if it is not the job's.")
@click.option(
    "--out", type=click.Path(path_type=Path), default=Path("frameworks"), help="Files to write, without suffix."
)
@click.option("--scheduler", help="Address of a Dask scheduler, in place of a cluster in this process.")
@click.option("--only", multiple=True, type=click.Choice(list(FRAMEWORKS)), help="Train under these frameworks only.")
def main(
    conf: str,
    steps: int,
    test_freq: int,
    data_root: str | None,
    out: Path,
    scheduler: str | None,
    only: tuple[str, ...],
) -> None:
    """Train the job CONF under each framework; print and draw how accuracy rises with time."""
    tests: dict[str, list[dict[str, Any]]] = {}
    client = Client(scheduler) if scheduler else None
    for name in only or FRAMEWORKS:
        cluster = FRAMEWORKS[name]
        groups = cluster.nworker_groups
        job = dsinga.load(conf).replace(
            cluster=cluster, train_steps=steps // groups, test_freq=test_freq // groups, disp_freq=steps
        )
        started = time.perf_counter()
        tests[name] = list(dsinga.train(job, client=client, data_root=data_root).history.phase("test"))
        seconds = time.perf_counter() - started
        print(f"{name:12} {tests[name][-1]['accuracy']:.4f} after {seconds:.0f} s", flush=True)
    out.with_suffix(".json").write_text(json.dumps(tests, indent=1))
    lines = {
        name: Line([(row["time"], row["accuracy"]) for row in rows[1:]], COLOURS[k])  # without the start
        for k, (name, rows) in enumerate(tests.items())
    }
    panel = Panel("accuracy", lines, x_label="seconds", integer_ticks=False)
    out.with_suffix(".svg").write_text(draw_panels([panel], "accuracy by time"))


if __name__ == "__main__":
    main()
