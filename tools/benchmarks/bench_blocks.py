"""Training with ``blocks=4`` compared with none: ``python -m tools.benchmarks.bench_blocks [NET ...]``.

Each side trains in a process of its own, in turn. ``--workers 0`` trains in that process, which should be bound to one
core (``taskset -c 0``), and states processor time; more workers are Dask workers with one thread, timed by the clock.
``--before CHECKOUT`` runs the sides by another checkout's dsinga, too.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import subprocess
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import click
import numpy as np

from dsinga import nn
from tools.benchmarks.__main__ import processor
from tools.benchmarks.pair import interpreter

BATCH, BLOCKS = 64, 4


def _mlp(*widths: int) -> nn.Sequential:
    layers = [nn.Dense(width, activation="relu") for width in widths[1:]]
    return nn.Sequential([nn.Input((widths[0],)), *layers, nn.Dense(10)])


def _convnet() -> nn.Sequential:
    layers: list[Any] = [nn.Input((3, 32, 32))]
    for width in (32, 32, 64):
        layers += [nn.Conv2D(width, 5, padding="same", activation="relu"), nn.MaxPooling2D(3, 2)]
    return nn.Sequential([*layers, nn.Flatten(), nn.Dense(10)])


def _residual() -> nn.Model:
    x = inputs = nn.Input((3, 32, 32))
    for width, count in ((16, 8), (32, 6)):
        x = nn.Conv2D(width, 1)(x) if width == 16 else nn.Conv2D(width, 1)(nn.MaxPooling2D(2)(x))
        for _ in range(count):
            y = nn.BatchNormalization()(nn.Conv2D(width, 3, padding="same", use_bias=False)(x))
            x = nn.Activation("relu")(nn.Add()([x, y]))
    return nn.Model(inputs, nn.Dense(10)(nn.GlobalAveragePooling2D()(x)))


def _gru() -> nn.Sequential:
    return nn.Sequential([nn.Input((30, 64)), nn.GRU(128, return_sequences=True), nn.GRU(128), nn.Dense(10)])


def _transformer() -> nn.Model:
    x = inputs = nn.Input((64, 128))
    for _ in range(3):
        x = nn.LayerNormalization()(nn.Add()([x, nn.MultiHeadAttention(4, 32)(x, x)]))
        x = nn.LayerNormalization()(nn.Add()([x, nn.Dense(128)(nn.Dense(512, activation="relu")(x))]))
    return nn.Model(inputs, nn.Dense(10)(nn.GlobalAveragePooling1D()(x)))


NETS: dict[str, tuple[Callable[[], nn.Model], tuple[int, ...]]] = {
    "convnet": (_convnet, (3, 32, 32)),
    "residual": (_residual, (3, 32, 32)),
    "gru": (_gru, (30, 64)),
    "transformer": (_transformer, (64, 128)),
    "mlp": (lambda: _mlp(1000, 2500, 2000, 1500, 1000), (1000,)),
    "small-mlp": (lambda: _mlp(64, 32), (64,)),
}


def usage() -> tuple[float, float]:
    """Return this process's seconds of processor time, and the most megabytes that it has had."""
    return time.process_time(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024


@contextmanager
def _cluster(workers: int) -> Iterator[Any]:
    from distributed import Client, LocalCluster

    with LocalCluster(n_workers=workers, threads_per_worker=1, dashboard_address=None) as cluster:
        with Client(cluster) as client:
            yield client


def train(name: str, blocks: int, workers: int, steps: int) -> dict[str, float]:
    """Train a net in this process or on Dask workers; return the milliseconds of a step, and a process's megabytes."""
    make, shape = NETS[name]
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(4 * BATCH, *shape)).astype("f4"), rng.integers(10, size=4 * BATCH)
    model = make()
    model.compile(nn.Adam(1e-3), "sparse_categorical_crossentropy")
    options: dict[str, Any] = {"batch_size": BATCH, "seed": 1, "progress": False}
    if blocks:
        options["blocks"] = blocks
    if not workers:
        model.fit(x, y, train_steps=5, **options)
        started = time.process_time()
        model.fit(x, y, train_steps=steps, **options)
        cpu = 1e3 * (time.process_time() - started) / steps
        return {"ms": cpu, "cpu": cpu, "mb": usage()[1]}
    with _cluster(workers) as client:
        model.fit(x, y, train_steps=5, client=client, workers=workers, **options)
        before, started = client.run(usage), time.perf_counter()
        model.fit(x, y, train_steps=steps, client=client, workers=workers, **options)
        seconds, after = time.perf_counter() - started, client.run(usage)
        cpu = sum(after[key][0] - before[key][0] for key in after)
        return {"ms": 1e3 * seconds / steps, "cpu": 1e3 * cpu / steps, "mb": max(mb for _, mb in after.values())}


def run(root: Path, *arguments: object) -> dict[str, float]:
    """Return the figures of :func:`train` in a process of its own, with a checkout's dsinga."""
    command = [interpreter(root), __file__, "--one", *map(str, arguments)]
    environment = {**os.environ, "PYTHONPATH": str(root)}
    done = subprocess.run(command, stdout=subprocess.PIPE, check=True, cwd=root, env=environment, timeout=600)
    return json.loads(done.stdout.splitlines()[-1])


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(NETS)))
@click.option("--workers", default=0, show_default=True, help="Dask workers; 0 is this process.")
@click.option("--turns", default=5, show_default=True, type=click.IntRange(1), help="Turns of each side.")
@click.option("--steps", default=30, show_default=True, type=click.IntRange(1), help="Measured steps of a turn.")
@click.option("--before", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--one", type=int, hidden=True, help="Measure one side in this process: its number of blocks.")
def main(names: tuple[str, ...], workers: int, turns: int, steps: int, before: Path | None, one: int | None) -> None:
    """Print the time of a step with blocks and without, and their ratio."""
    if one is not None:
        click.echo(json.dumps(train(names[0], one, workers, steps)))
        return
    click.echo(f"{processor()}, load {os.getloadavg()[0]:.1f}, {workers} workers, {turns} turns of {steps} steps\n")
    click.echo("| net | checkout | blocks | ms | cpu ms | MB | time, of none | cpu | memory |\n" + "| --- " * 9 + "|")
    roots = {"this": Path(__file__).parents[2], **({"before": before} if before else {})}
    for name in names or NETS:
        sides = [(checkout, blocks) for checkout in roots for blocks in (0, BLOCKS)]
        figures: dict[tuple[str, int], list[dict[str, float]]] = {side: [] for side in sides}
        for turn in range(turns):
            for checkout, blocks in sides if turn % 2 == 0 else sides[::-1]:
                options = f"{blocks} {name} --workers {workers} --steps {steps}"
                figures[checkout, blocks].append(run(roots[checkout], *options.split()))
        for checkout, blocks in sides:
            own, none = figures[checkout, blocks], figures[checkout, 0]
            middles = [f"{statistics.median(turn[key] for turn in own):.2f}" for key in ("ms", "cpu", "mb")]
            ratios = [
                f"{statistics.median(a[key] / b[key] for a, b in zip(own, none, strict=True)):.2f}"
                for key in ("ms", "cpu", "mb")
            ]
            click.echo("| " + " | ".join([name, checkout, str(blocks), *middles, *ratios]) + " |")


if __name__ == "__main__":
    main()
