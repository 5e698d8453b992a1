"""Data, hybrid and automatic partitioning of AlexNet's fully connected layers over two workers (the paper's Fig. 20b).

    python tests/benchmarks/bench_partition.py [--batch 32 ...] [--scheduler ADDRESS] [--json FILE]

The layers above pool5: 9216-4096-4096-1000 with ReLU and dropout, 58.6 million params, random records. Without
``--scheduler`` the workers are two processes of this machine; ``hosts.sh 2`` joins two by a link of 1 Gbit/s. With
and without overlap of computing and communicating (Fig. 20a). The strategies run in turn; figures are medians.
"""

from __future__ import annotations

import json
import statistics
from pathlib import Path

import click
import dask
from distributed import Client

from dsinga import models
from dsinga.cluster import connect
from dsinga.cluster.run.benchmark import measure
from dsinga.job import ClusterConf, Job, PartitionMethod

STRATEGIES = ("one worker", "data", "hybrid", "auto")


def job(strategy: str, batch: int, workers: int = 2) -> Job:
    """Return the job of a strategy at a batch size."""
    workers = 1 if strategy == "one worker" else workers
    made = models.mlp([4096, 4096], 9216, 1000, dropout=0.5, batchsize=batch, learning_rate=0.001)
    net = made.neuralnet.replace(partition=PartitionMethod.auto if strategy == "auto" else PartitionMethod.manual)
    if strategy != "auto":
        by_features = {layer.name for layer in net.layer if strategy == "hybrid"} - {"data", "loss"}
        net = net.replace(layer=[layer.replace(partition_dim=int(layer.name in by_features)) for layer in net.layer])
    return made.replace(neuralnet=net, cluster=ClusterConf(nworkers_per_group=workers, nservers_per_group=workers))


@click.command()
@click.option("--batch", "batches", multiple=True, type=int, default=(32, 64, 128, 256), show_default=True)
@click.option("--strategy", "strategies", multiple=True, type=click.Choice(STRATEGIES), default=STRATEGIES)
@click.option("--steps", default=10, show_default=True, help="Measured iterations in a turn.")
@click.option("--turns", default=3, show_default=True)
@click.option("--overlap", type=click.Choice(["on", "off", "both"]), default="on", show_default=True)
@click.option("--scheduler", help="A running cluster of two workers.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    batches: tuple[int, ...], strategies: tuple[str, ...], steps: int, turns: int, overlap: str, scheduler: str | None,
    file: Path | None,
) -> None:  # fmt: skip
    """Print milliseconds of an iteration and megabytes a worker sends and receives, by batch size and strategy."""
    overlaps = {"on": (True,), "off": (False,), "both": (True, False)}[overlap]
    figures: list[dict[str, object]] = []
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


if __name__ == "__main__":
    main()
