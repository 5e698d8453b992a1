"""The tables of the benchmarks: ``python -m tools.benchmarks.table FILE...`` prints those of figures written by --json.

Each file has the figures of some cases, as ``python -m tools.benchmarks --json FILE`` writes them.
"""

from __future__ import annotations

import json
import statistics
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import click

from tools.benchmarks.cases import CASES
from tools.benchmarks.peers import PEERS

Figures = dict[str, dict[str, float]]  # of a case, by form: "ms", "mb" and, where known, "first_s"
OURS = tuple(name for name, peer in PEERS.items() if peer.library == "dsinga")
OTHERS = tuple(name for name in PEERS if name not in OURS)


def best(figures: Figures, key: str, bf16: bool = True) -> str | None:
    """Return the name of the other library's form with the least figure, in float32 or, with ``bf16``, in either."""
    names = [name for name in OTHERS if name in figures and (bf16 or not PEERS[name].bf16)]
    return min(names, key=lambda name: figures[name][key], default=None)


def ratio(figures: Figures, form: str, key: str, peer: str | None) -> float | None:
    """Return the figure of a form of dsinga divided by that of a peer, None where one of them is missing."""
    return figures[form][key] / figures[peer][key] if peer and form in figures else None


def cells_of(figures: Figures) -> Iterator[str]:
    """Yield the cells of a row of the summary, without the case's name and goal."""
    for form, peer in zip(OURS, (best(figures, "ms", bf16=False), best(figures, "ms")), strict=True):
        yield f"{figures[form]['ms']:.1f}" if form in figures else "-"
        yield f"{figures[peer]['ms']:.1f} {peer}" if peer else "-"
        yield rounded(ratio(figures, form, "ms", peer))
    least = best(figures, "mb")
    yield ", ".join(f"{figures[form]['mb']:.0f}" for form in OURS if form in figures)
    yield f"{figures[least]['mb']:.0f} {least}" if least else "-"
    yield ", ".join(rounded(ratio(figures, form, "mb", least)) for form in OURS if form in figures)


def rounded(number: float | None) -> str:
    """Return a ratio as text."""
    return "-" if number is None else f"{number:.2f}"


def row_of(cells: Iterable[str]) -> str:
    """Return a row of a table in Markdown."""
    return f"| {' | '.join(cells)} |"


def summary(cases: dict[str, Figures]) -> Iterator[str]:
    """Yield the lines of the table of ratios: the winner of each case in float32 and in any precision."""
    head = ["case", "dsinga ms", "best float32 ms", "ratio", "goal", "dsinga bf16 ms", "best ms", "ratio"]
    head += ["dsinga MB, bf16", "least MB", "ratios"]
    yield row_of(head)
    yield row_of(["---"] * len(head))
    for name, figures in cases.items():
        milliseconds, float32, of_float32, *further = cells_of(figures)
        yield row_of([name, milliseconds, float32, of_float32, f"{CASES[name].goal:.2f}", *further])
    of_one_process = [figures for name, figures in cases.items() if CASES[name].workers == 1]
    for what, form, bf16 in (("float32", OURS[0], False), ("any precision", OURS[1], True)):
        ratios = [number for case in of_one_process if (number := ratio(case, form, "ms", best(case, "ms", bf16)))]
        if ratios:
            mean = statistics.geometric_mean(ratios)
            yield f"\nGeometric mean of {len(ratios)} ratios of a process to the best peer in {what}: {mean:.2f}"


def details(cases: dict[str, Figures]) -> Iterator[str]:
    """Yield the lines of the table of milliseconds and megabytes by form, and of the seconds that compilers take."""
    names = [name for name in PEERS if any(name in figures for figures in cases.values())]
    yield row_of(["ms, MB", *names])
    yield row_of(["---"] * (len(names) + 1))
    for case, figures in cases.items():
        cells = (f"{figures[name]['ms']:.1f}, {figures[name]['mb']:.0f}" if name in figures else "-" for name in names)
        yield row_of([case, *cells])
    for case, figures in cases.items():
        seconds = [f"{name} {figures[name]['first_s']:.0f} s" for name in names if is_compiled(name, figures)]
        if seconds:
            yield f"\nFirst iteration of {case}, which compiles: {', '.join(seconds)}."


def states(rows: Iterable[dict[str, Any]]) -> Iterator[str]:
    """Yield a line for each case about its turns, the spread of its ratio, and the state of the machine meanwhile."""
    for row in rows:
        if state := row.get("state"):
            spread = state.get("spread")
            steady = "" if spread is None else f", interquartile range of the ratio {spread:.0%}"
            steady += " (not below 5%)" if (spread or 0) > 0.05 else ""
            machine = f"load {state['load']:.1f}, {state['mhz']:.0f} MHz, {state['steal']:.1%} stolen"
            yield f"{row['case']}: {state['turns']} turns{steady}; {machine}"


def is_compiled(name: str, figures: Figures) -> bool:
    """Whether a form took part and compiles in its first iteration."""
    return PEERS[name].compiled and name in figures


@click.command()
@click.argument("files", nargs=-1, required=True, type=click.Path(exists=True, dir_okay=False, path_type=Path))
def main(files: tuple[Path, ...]) -> None:
    """Print the tables of the cases of all files, in the order of the benchmarks."""
    rows = [row for file in files for row in json.loads(file.read_text(encoding="utf-8"))["cases"]]
    cases = {name: row["figures"] for name in CASES for row in rows if row["case"] == name}
    click.echo("\n".join([*summary(cases), "", *details(cases), "", *states(rows)]).rstrip())


if __name__ == "__main__":
    main()
