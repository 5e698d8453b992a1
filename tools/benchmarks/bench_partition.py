"""Data, hybrid and automatic partitioning of AlexNet's fully connected layers over two workers (the paper's Fig. 20b).

    python tools/benchmarks/bench_partition.py [--batch 32 ...] [--scheduler ADDRESS] [--json FILE] [--picture FILE]

The layers above pool5: 9216-4096-4096-1000 with ReLU and dropout, 58.6 million params, random records. Without
``--scheduler`` the workers are two processes of this machine; ``hosts.sh 2`` joins two by a link of 1 Gbit/s. With
and without overlap of computing and communicating (Fig. 20a). The strategies run in turn; figures are medians.
``--picture`` draws milliseconds by batch: of Fig. 20a with ``--strategy "one worker" --strategy data --overlap both``.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import dask
from distributed import Client

from dsinga import models
from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels
from dsinga.addons.planner.benchmark import measure
from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job, PartitionMethod

STRATEGIES = ("one worker", "data", "hybrid", "auto")
WITHOUT = ", without overlap"


def job(strategy: str, batch: int, workers: int = 2) -> Job:
    """Return the job of a strategy at a batch size."""
    workers = 1 if strategy == "one worker" else workers
    made = models.mlp([4096, 4096], 9216, 1000, dropout=0.5, batchsize=batch, learning_rate=0.001)
    net = made.neuralnet.replace(partition=PartitionMethod.auto if strategy == "auto" else PartitionMethod.manual)
    if strategy != "auto":
        by_features = {layer.name for layer in net.layer if strategy == "hybrid"} - {"data", "loss"}
        net = net.replace(layer=[layer.replace(partition_dim=int(layer.name in by_features)) for layer in net.layer])
    return made.replace(neuralnet=net, cluster=ClusterConf(nworkers_per_group=workers, nservers_per_group=workers))


def draw(figures: Sequence[Mapping[str, Any]]) -> str:
    """Return an SVG element with the milliseconds of an iteration by batch size, a line for each setup."""
    points: dict[str, list[tuple[float, float]]] = {}
    for figure in figures:
        name = figure["strategy"] + ("" if figure["overlap"] else WITHOUT)
        points.setdefault(name, []).append((figure["batch"], figure["ms_per_iteration"]))
    lines = {name: Line(line, colour, name) for (name, line), colour in zip(points.items(), COLOURS, strict=False)}
    batches = sorted({figure["batch"] for figure in figures})
    panel = Panel("ms", lines, "batch", logarithmic=True, x_ticks=batches, includes=(0,))
    return draw_panels([panel], "milliseconds of an iteration by batch size")


@click.command()
@click.option("--batch", "batches", multiple=True, type=int, default=(32, 64, 128, 256), show_default=True)
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), default=STRATEGIES)
@click.option("--steps", default=10, show_default=True, help="Measured iterations in a turn.")
@click.option("--turns", default=3, show_default=True)
@click.option("--overlap", type=click.Choice(["on", "off", "both"]), default="on", show_default=True)
@click.option("--scheduler", help="A running cluster of two workers.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
@click.option("--picture", type=click.Path(path_type=Path), help="SVG file to draw the times by batch to.")
def main(
    batches: tuple[int, ...], strategies: tuple[str, ...], steps: int, turns: int, overlap: str, scheduler: str | None,
    file: Path | None, picture: Path | None,
) -> None:  # fmt: skip
    """Print milliseconds of an iteration and megabytes a worker sends and receives, by batch size and strategy."""
    overlaps = {"on": (True,), "off": (False,), "both": (True, False)}[overlap]
    figures: list[dict[str, Any]] = []
    with Client(scheduler) if scheduler else connect(workers=2, separate_processes=True) as client:
        for batch in batches:
            turns_by_setup: dict[tuple[str, bool], list[dict[str, float]]] = {}
            for _ in range(turns):
                for strategy in strategies:
                    for on in overlaps if strategy != "one worker" else (True,):
                        with dask.config.set({"dsinga.overlap": on}):
                            turn = measure(job(strategy, batch), client, steps=steps, synthetic=True)
                        turns_by_setup.setdefault((strategy, on), []).append(turn)
            for (strategy, on), turns_of in turns_by_setup.items():
                median = {name: statistics.median(turn[name] for turn in turns_of) for name in turns_of[0]}
                figures.append({"batch": batch, "strategy": strategy, "overlap": on, **median})
                print(
                    f"batch {batch:4} {strategy:10} overlap {'on ' if on else 'off'} "
                    f"{median['ms_per_iteration']:8.1f} ms {median.get('crossing_mb', 0):8.1f} MB",
                    flush=True,
                )
    if file:
        file.write_text(json.dumps(figures, indent=1))
    if picture:
        picture.write_text(draw(figures), encoding="utf-8")


if __name__ == "__main__":
    main()
