"""Small nets compared with PyTorch and JAX: ``python -m tools.benchmarks.bench_small_net [CASE ...]``.

On one core with one thread, in turn, each library in a process of its own, in the root of the checkout: the
microseconds of processor time of a step of :mod:`tools.benchmarks.small_nets`, and the Python functions that a step of
dsinga calls. PyTorch is eager and compiled by TorchInductor, JAX's step is jitted. ``--before CHECKOUT`` lets the
dsinga of another checkout, which has these benchmarks, take part. Ratios are medians of those of dsinga's to another's
turn by turn.
"""

from __future__ import annotations

import datetime
import json
import os
import statistics
import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, NamedTuple

import click

from tools.benchmarks.__main__ import processor, version
from tools.benchmarks.cases import Case
from tools.benchmarks.form_process import FormProcess, take_turns
from tools.benchmarks.pair import interpreter
from tools.benchmarks.small_nets import SMALL_CASES
from tools.benchmarks.table import rounded, row_of


class Form(NamedTuple):
    """A form of a library: the package that computes, the module of this folder, and its form in PEERS."""

    package: str
    module: str
    peer: str


OURS, BEFORE = "dsinga", "before"
FORMS = {
    OURS: Form("numpy", "small_ours", "dsinga"),
    BEFORE: Form("numpy", "small_ours", "dsinga"),
    "PyTorch": Form("torch", "small_torch", "PyTorch"),
    "PyTorch compiled": Form("torch", "small_torch", "PyTorch compiled"),
    "JAX": Form("jax", "small_jax", "JAX"),
}
OTHERS = ("PyTorch", "PyTorch compiled", "JAX")
LIBRARIES = {"numpy": "dsinga", "torch": "pytorch", "jax": "jax"}  # by package
Turns = dict[str, list[dict[str, float]]]  # the figures of each turn, by form


def processes_of(
    name: str, forms: Sequence[str], pythons: Mapping[str, str], before: Path | None, steps: int
) -> dict[str, FormProcess]:
    """Return the processes of a case by form. ``pythons`` are interpreters by library."""
    processes, case = {}, Case(name, 1, 0.5)
    for form_name in forms:
        form, root = FORMS[form_name], before if form_name == BEFORE else None
        python = interpreter(root) if root else pythons[LIBRARIES[form.package]]
        processes[form_name] = FormProcess(form.peer, python, name, case, steps, root, module=form.module)
    return processes


def compare(processes: Mapping[str, FormProcess], turns: int) -> tuple[Turns, dict[str, str]]:
    """Return the figures of all forms, turn by turn, and why a form is left out."""
    figures: Turns = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        for process in processes.values():
            stack.enter_context(process)
        for _ in range(turns):
            take_turns(processes, figures, left_out)
    return figures, left_out


def median_ratio(figures: Turns, form: str) -> float | None:
    """Return the median of the ratios of dsinga's time to another form's by turn, None where one of both is missing."""
    if OURS not in figures or form not in figures:
        return None
    pairs = zip(figures[OURS], figures[form], strict=True)
    return statistics.median(ours["us"] / other["us"] for ours, other in pairs)


def cells_of(figures: Turns, forms: Sequence[str]) -> Iterator[str]:
    """Yield the cells of a row of the table, without the case's name."""
    for form in forms:
        known = form in figures
        yield f"{statistics.median(turn['us'] for turn in figures[form]):.0f}" if known else "-"
    for form in forms[1:]:
        yield rounded(median_ratio(figures, form))
    for form in forms:
        if form in (OURS, BEFORE):
            calls = figures[form][0] if form in figures else {}
            yield f"{calls['calls']:.0f}, {calls['own_calls']:.0f}" if "calls" in calls else "-"


def table(cases: Mapping[str, Turns], forms: Sequence[str]) -> Iterator[str]:
    """Yield the lines of the table, whose first form is dsinga, and of the geometric means of its ratios."""
    head = ["us a step", *forms, *(f"of {form}" for form in forms[1:])]
    head += [f"calls of {form} a step, those of its own functions" for form in forms if form in (OURS, BEFORE)]
    yield row_of(head)
    yield row_of(["---"] * len(head))
    for name, figures in cases.items():
        yield row_of([name, *cells_of(figures, forms)])
    for form in forms[1:]:
        if medians := [ratio for figures in cases.values() if (ratio := median_ratio(figures, form))]:
            yield f"\nGeometric mean of {len(medians)} ratios to {form}: {statistics.geometric_mean(medians):.2f}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(SMALL_CASES)))
@click.option("--turns", default=9, show_default=True, type=click.IntRange(1), help="Turns of each form.")
@click.option("--steps", default=1000, show_default=True, type=click.IntRange(1), help="Measured steps of a turn.")
@click.option("--peer", "chosen", multiple=True, type=click.Choice(OTHERS), help="Only these take part beside dsinga.")
@click.option("--python", "interpreters", multiple=True, metavar="LIBRARY=PATH", help="The interpreter for a library.")
@click.option(
    "--before",
    type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path),
    help="Another checkout, whose dsinga takes part.",
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    names: Sequence[str],
    turns: int,
    steps: int,
    chosen: tuple[str, ...],
    interpreters: tuple[str, ...],
    before: Path | None,
    file: Path | None,
) -> None:
    """Print the time of steps, the ratios of dsinga's to others', and its calls of Python functions."""
    pythons = dict.fromkeys(LIBRARIES.values(), sys.executable) | dict(option.split("=", 1) for option in interpreters)
    forms = [OURS, *([BEFORE] if before else []), *(chosen or OTHERS)]
    versions = {package: version(pythons[library], package) for package, library in LIBRARIES.items()}
    named = ", ".join(f"{package} {number}" for package, number in versions.items())
    click.echo(f"{datetime.date.today()}, {processor()}, {named}, medians of {turns} turns of {steps} steps\n")
    cases: dict[str, Turns] = {}
    out: list[dict[str, Any]] = []
    for name in names or SMALL_CASES:
        cases[name], left_out = compare(processes_of(name, forms, pythons, before, steps), turns)
        for form, message in left_out.items():
            click.echo(f"{form} left out of {name}: {message}", err=True)
        out.append({"case": name, "figures": cases[name], "left out": left_out, "load": os.getloadavg()[0]})
        if file:
            file.write_text(json.dumps({"versions": versions, "cases": out}, indent=1), encoding="utf-8")
    click.echo("\n".join(table(cases, forms)))


if __name__ == "__main__":
    main()
