"""Trains on a table larger than the memory of a cluster of two workers: xgboost.dask, LightGBM.dask and dsinga.

    python -m tools.benchmarks.large_tables memory FOLDER --gigabytes 20 --memory 1024 --json FILE
    python -m tools.benchmarks.large_tables picture --json FILE memory.svg
    python -m tools.benchmarks.large_tables seconds FOLDER --gigabytes 1
    python -m tools.benchmarks.large_tables kill FOLDER --gigabytes 0.2

FOLDER is made, unless it is there, and is left. ``memory`` writes the memory of the workers at each second to the file,
``seconds`` compares times and areas under the curve where all fits, ``kill`` ends a worker process at a random step
and compares the params with those of an undisturbed run.
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Callable, Sequence
from functools import partial
from pathlib import Path
from typing import Any

import click

from dsinga.addons.pictures.panels import COLOURS, Line, Panel, draw_panels, thin
from tools.benchmarks import made_table
from tools.benchmarks.table_net import same_after_a_kill, train
from tools.benchmarks.table_trees import TREES
from tools.benchmarks.watched_cluster import MIB, Run, watch

TRAINERS: dict[str, Callable[..., Any]] = {**TREES, "dsinga": train}
TEST_SEED = 1
PLENTY = 16 << 30  # bytes of memory in which all fits

folder = click.argument("folder", type=click.Path(path_type=Path))
gigabytes = click.option("--gigabytes", default=0.2, show_default=True, help="Of the table in files.")
trainers = click.option("--with", "names", multiple=True, type=click.Choice([*TRAINERS]), default=[*TRAINERS])


def made(where: Path, size: float, seed: int = 0) -> Path:
    """Return the folder of a table, which is made unless it is there."""
    path = where / f"{size:g}GB-seed{seed}"
    if not path.exists():
        click.echo(f"{path}: {made_table.write(path, size, seed) / 1e9:.1f} GB", err=True)
    return path


def run(name: str, train: Callable[[Any], Any], memory: int, most_seconds: int) -> Run:
    """Return what becomes of a run; what the workers put on the disk is deleted."""
    with tempfile.TemporaryDirectory(prefix="dsinga-bench-") as scratch:
        return watch(name, train, memory, Path(scratch), most_seconds)


def draw(runs: Sequence[Run], limit: float) -> str:
    """Return an SVG element with a panel for each run: the memory of each worker process over time, and the limit."""
    panels = []
    for each in runs:
        ends = [points[-1][0] for points in each.memory]
        lines = {"": Line([(0, limit), (max(ends), limit)], COLOURS[6], "limit")}
        for number, points in enumerate(each.memory):
            lines[f"worker process {number + 1}"] = Line(thin(points), COLOURS[number % 6], None)
        panels.append(Panel(f"{each.name}: MiB", lines, "seconds", includes=(0.0,)))
    return draw_panels(panels, "memory of worker processes over time, of a run each")


def read(file: Path) -> list[Run]:
    """Return the runs of a file, with points as tuples, which JSON has as lists."""
    runs = [Run(**json.loads(line)) for line in file.read_text("utf-8").splitlines()]
    return [each._replace(memory=[[(at, mib) for at, mib in points] for points in each.memory]) for each in runs]


@click.group()
def main() -> None:
    """Compare training on a large table."""


@main.command()
@folder
@gigabytes
@trainers
@click.option("--memory", default=1024, show_default=True, help="Of each of two worker processes, in MiB.")
@click.option("--seconds", default=1800, show_default=True, help="After which a run is ended.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="File to which the runs are added, a line each.")
def memory(folder: Path, gigabytes: float, names: Sequence[str], memory: int, seconds: int, file: Path | None) -> None:
    """Print what becomes of each, and write down the memory of the workers."""
    path, test = made(folder, gigabytes), made(folder, min(0.1, gigabytes), TEST_SEED)
    for name in names:
        found = run(name, partial(TRAINERS[name], folder=path, test=test), memory * MIB, seconds)
        click.echo(found if found.fault else f"{found}, AUC {found.result:.4f}")
        if file:
            with file.open("a", encoding="utf-8") as lines:
                lines.write(json.dumps(found._asdict()) + "\n")


@main.command()
@click.argument("to", type=click.Path(path_type=Path))
@click.option("--json", "file", type=click.Path(path_type=Path), required=True)
@click.option("--memory", default=1024, show_default=True, help="The limit of a worker process, in MiB.")
def picture(to: Path, file: Path, memory: int) -> None:
    """Draw the runs of a file."""
    to.write_text(draw(read(file), memory), encoding="utf-8")


@main.command()
@folder
@gigabytes
@trainers
@click.option("--epochs", default=1, show_default=True, help="Passes of dsinga over the rows.")
def seconds(folder: Path, gigabytes: float, names: Sequence[str], epochs: int) -> None:
    """Print seconds and areas under the curve of held-out rows, where all fits into memory."""
    path, test = made(folder, gigabytes), made(folder, gigabytes / 5, TEST_SEED)
    for name in names:
        passes = {"epochs": epochs} if name == "dsinga" else {}
        for held in (None, test):  # the time is that of training alone
            found = run(name, partial(TRAINERS[name], folder=path, test=held, **passes), PLENTY, 3600)
            click.echo(found if held is None else f"{name}: AUC {found.result:.4f}")


@main.command()
@folder
@gigabytes
@click.option("--seed", default=0, show_default=True, help="Of the step, and of the worker that is killed.")
def kill(folder: Path, gigabytes: float, seed: int) -> None:
    """Print whether a run of which a worker is killed gives the same bits as an undisturbed one."""
    path = made(folder, gigabytes)
    step, is_same = same_after_a_kill(path, lambda train: run("dsinga", train, PLENTY, 3600), seed)
    click.echo(f"a worker process killed at step {step}: params {'are equal' if is_same else 'differ'}")


if __name__ == "__main__":
    main()
