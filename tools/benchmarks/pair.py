"""Two versions of the package side by side: ``python -m tools.benchmarks.pair BEFORE AFTER [CASE ...]``.

``BEFORE`` and ``AFTER`` are the roots of two checkouts. Each runs its own ``tools.benchmarks.ours`` by its own
``.venv``, or where it has none by the interpreter of this command. They take turns in the order A B B A, so that a
machine that grows slower or faster during the run favours neither. The median of the ratios of pairs that ran one after
the other is the figure to trust on a busy machine; the ratio of the medians is that of a quiet one.
"""

from __future__ import annotations

import json
import os
import statistics
import sys
from pathlib import Path
from typing import Any

import click

from tools.benchmarks.__main__ import processor
from tools.benchmarks.cases import CASES
from tools.benchmarks.form_process import FormProcess

DEFAULT = ("cifar10-64", "mnist-mlp-two", "resnet")
Turn = dict[str, float]


def interpreter(tree: Path) -> str:
    """Return the Python of a checkout: that of its virtual environment, or else this one."""
    python = tree / ".venv" / "bin" / "python"
    return str(python) if python.exists() else sys.executable


def pairs_of(name: str, before: Path, after: Path, pairs: int, steps: int) -> list[tuple[Turn, Turn]]:
    """Return the figures of both checkouts for a case, by pairs; the second comes first in every other pair."""
    figures = []
    for number in range(pairs):
        order = (before, after) if number % 2 == 0 else (after, before)
        turns = {}
        for tree in order:
            with FormProcess("dsinga", interpreter(tree), name, CASES[name], steps, tree) as process:
                turns[tree] = process.turn()
        figures.append((turns[before], turns[after]))
    return figures


def summary(name: str, pairs: list[tuple[Turn, Turn]]) -> dict[str, Any]:
    """Return the medians of both checkouts, their ratio, and the median and range of the ratios of pairs."""
    before, after = (
        {key: statistics.median(pair[side][key] for pair in pairs) for key in ("ms", "mb")} for side in (0, 1)
    )
    ratios = [second["ms"] / first["ms"] for first, second in pairs]
    return {
        "case": name,
        "before": before,
        "after": after,
        "ratio of medians": after["ms"] / before["ms"],
        "median ratio of pairs": statistics.median(ratios),
        "range of ratios": [min(ratios), max(ratios)],
        "memory": after["mb"] / before["mb"],
    }


def line(row: dict[str, Any]) -> str:
    """Return a case as a row of the table."""
    cells = [f"{row[side]['ms']:.2f}" for side in ("before", "after")]
    cells += [f"{row[key]:.3f}" for key in ("ratio of medians", "median ratio of pairs")]
    low, high = row["range of ratios"]
    return "| " + " | ".join([row["case"], *cells, f"{low:.2f} to {high:.2f}", f"{row['memory']:.2f}"]) + " |"


@click.command()
@click.argument("before", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.argument("after", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--pairs", default=8, show_default=True, type=click.IntRange(1), help="Turns of each checkout.")
@click.option("--steps", default=40, show_default=True, help="Measured iterations of a turn.")
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(before: Path, after: Path, names: tuple[str, ...], pairs: int, steps: int, file: Path | None) -> None:
    """Print milliseconds of an iteration in two checkouts, and their ratios."""
    if before == after:
        raise click.UsageError("give two checkouts; a checkout and a copy of it show how much a machine's figures vary")
    click.echo(f"{processor()}, load {os.getloadavg()[0]:.1f}, {pairs} pairs of {steps} iterations\n")
    click.echo("| case | before ms | after ms | ratio of medians | median ratio of pairs | range | memory |")
    click.echo("| " + "--- | " * 7)
    rows = []
    for name in names or DEFAULT:
        turns = pairs_of(name, before, after, pairs, steps)
        rows.append({**summary(name, turns), "pairs": turns})
        click.echo(line(rows[-1]))
    if file:
        file.write_text(json.dumps({"machine": processor(), "cases": rows}, indent=1), encoding="utf-8")


if __name__ == "__main__":
    main()
