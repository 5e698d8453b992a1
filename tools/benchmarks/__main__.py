"""dsinga compared with its peers: ``python -m tools.benchmarks [CASE ...]``, in the root of the checkout.

They run in turn, each in a process of its own with a thread a worker, on as many cores as there are workers. Turns are
repeated until the interquartile range of the ratio is below 5%, and the machine's state is printed with the tables.
Figures are medians of iterations, then of turns; ratios are to the fastest form of any other library, in float32 and in
any precision. A form that fails is left out, with the reason, for instance PyTorch's compiled ones without a C++
compiler; ``--python jax=/path/to/python`` runs a library that lives in another environment.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import statistics
import subprocess
import sys
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import click

from dsinga.ops import describe_kernels
from tools.benchmarks.cases import CASES
from tools.benchmarks.form_process import TURN_SECONDS, FormProcess, take_turns
from tools.benchmarks.machine_state import MachineState
from tools.benchmarks.peers import LIBRARIES, PEERS, allocator
from tools.benchmarks.table import OURS, best, details, states, summary

SPREAD = 0.05  # of the ratio, below which no further turns are taken
MIDDLES = {"ms": statistics.median, "mb": statistics.median, "first_s": max}  # later turns compile from a cache


def compare(
    name: str, forms: Sequence[str], pythons: dict[str, str], turns: int, most: int, steps: int, preload: str = ""
) -> dict[str, Any]:
    """Return the figures of a case: medians by form of a library, why a form is left out, and the machine's state.

    After ``turns`` turns further ones are taken until the spread of the ratio is at most SPREAD, up to ``most``.
    ``pythons`` are interpreters by library; ``preload`` is loaded first by the processes of all but dsinga.
    """
    case, state = CASES[name], MachineState()
    figures: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    with ExitStack() as stack:
        processes = {}
        for form in forms:
            library = PEERS[form].library
            if library in ("dsinga", *case.peers):
                allocator = "" if library == "dsinga" else preload
                process = FormProcess(form, pythons[library], name, case, steps, preload=allocator)
                processes[form] = stack.enter_context(process)
        for number in range(most):
            if number >= turns and (spread := spread_of(figures)) is not None and spread <= SPREAD:
                break
            take_turns(processes, figures, left_out)
        machine = state.figures()
    medians = {
        form: {key: MIDDLES[key](turn[key] for turn in done) for key in MIDDLES if key in done[0]}
        for form, done in figures.items()
    }
    counted = max(map(len, figures.values()), default=0)
    machine |= {"turns": counted} | ({"spread": spread} if (spread := spread_of(figures)) is not None else {})
    return {"case": name, "figures": medians, "left out": left_out, "state": machine}


def spread_of(figures: dict[str, list[dict[str, float]]]) -> float | None:
    """Return the interquartile range of dsinga's ratio to the best peer in float32, turn by turn, as a share of it.

    None where there is no such ratio, or but one turn.
    """
    medians = {form: {"ms": statistics.median(turn["ms"] for turn in done)} for form, done in figures.items()}
    peer = best(medians, "ms", bf16=False)
    if peer is None or OURS[0] not in figures or len(figures[peer]) < 2:
        return None
    pairs = zip(figures[OURS[0]], figures[peer], strict=True)
    low, middle, high = statistics.quantiles((ours["ms"] / theirs["ms"] for ours, theirs in pairs), n=4)
    return (high - low) / middle


def version(python: str, package: str) -> str:
    """Return the version of a package that an interpreter has, or "none"."""
    code = f"from importlib.metadata import version; print(version({package!r}))"
    done = subprocess.run([python, "-c", code], capture_output=True, text=True, timeout=TURN_SECONDS, check=False)
    return done.stdout.strip() or "none"


def processor() -> str:
    """Return the name of the processor, and how many cores of it there are."""
    lines = Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines() if Path("/proc/cpuinfo").exists() else []
    names = [text.partition(":")[2].strip() for text in lines if text.startswith("model name")]
    flags = next((text for text in lines if text.startswith("flags")), "")
    width = "AVX-512" if "avx512f" in flags else "AVX2" if "avx2" in flags else "no AVX2"
    return f"{names[0] if names else platform.processor()}, {os.cpu_count()} cores, {width}"


@click.command()
@click.argument("names", nargs=-1, type=click.Choice(list(CASES)))
@click.option("--turns", default=5, show_default=True, help="Turns of each form, at least.")
@click.option("--most-turns", "most", default=15, show_default=True, help="Turns while the ratio's spread is above 5%.")
@click.option("--steps", default=40, show_default=True, help="Measured iterations of a turn.")
@click.option("--peer", "forms", multiple=True, type=click.Choice(list(PEERS)), help="Only these forms take part.")
@click.option("--python", "interpreters", multiple=True, metavar="LIBRARY=PATH", help="The interpreter for a library.")
@click.option(
    "--preload", default=allocator(), help="Allocator for the peers.  [default: tcmalloc or jemalloc, if any]"
)
@click.option("--json", "file", type=click.Path(path_type=Path), help="Write the figures there, too.")
def main(
    names: Sequence[str],
    turns: int,
    most: int,
    steps: int,
    forms: Sequence[str],
    interpreters: tuple[str, ...],
    preload: str,
    file: Path | None,
) -> None:
    """Print milliseconds of an iteration and peak memory of a worker, and the ratios to the best peer."""
    pythons = dict.fromkeys(LIBRARIES, sys.executable) | dict(option.split("=", 1) for option in interpreters)
    if unknown := pythons.keys() - LIBRARIES.keys():
        raise click.BadParameter(f"{', '.join(unknown)}: a library is one of {', '.join(LIBRARIES)}")
    versions = {package: version(pythons[name], package) for name, (_, package) in LIBRARIES.items()}
    versions["kernels"] = describe_kernels()
    about = {"date": f"{datetime.date.today()}", "machine": processor(), "versions": versions, "preload": preload}
    click.echo(f"{', '.join(map(str, about.values()))}, load {os.getloadavg()[0]:.1f}\n")
    rows = []
    for name in names or CASES:
        rows.append(compare(name, forms or tuple(PEERS), pythons, turns, max(turns, most), steps, preload))
        for form, message in rows[-1]["left out"].items():
            click.echo(f"{form} left out of {name}: {message}", err=True)
        if file:
            file.write_text(json.dumps({**about, "cases": rows}, indent=1), encoding="utf-8")
    cases = {row["case"]: row["figures"] for row in rows}
    click.echo("\n".join([*summary(cases), "", *details(cases), "", *states(rows)]))


if __name__ == "__main__":
    main()
