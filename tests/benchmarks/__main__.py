"""dsinga compared with its peers: ``python -m tests.benchmarks [CASE ...]``, in the root of the checkout.

They run in turn, each turn in a process of its own with a thread a worker, on as many cores as there are workers.
Figures are medians of iterations, then of turns; ratios are to the fastest form of any other library, in float32 and in
any precision. A form that fails is left out, with the reason, for instance PyTorch's compiled ones without a C++
compiler; ``--python tensorflow=/path/to/python`` runs a library that lives in another environment.
"""

from __future__ import annotations

import datetime
import json
import os
import platform
import re
import statistics
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import click

from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.peers import LIBRARIES, PEERS, allocator
from tests.benchmarks.table import details, summary
from tests.benchmarks.turns import THREADS

TURN_SECONDS = 600  # at most, for a turn
MIDDLES = {"ms": statistics.median, "mb": statistics.median, "first_s": max}  # later turns compile from a cache


def take_turn(
    form: str, python: str, name: str, case: Case, steps: int, root: Path | None = None, preload: str = ""
) -> dict[str, float]:
    """Run one turn in a process of its own, of the checkout ``root`` (by default of the working directory).

    Args:
        form: the name in PEERS.
        python: the interpreter.
        name: the name of the case.
        case: the case.
        steps: the measured iterations.
        root: the checkout.
        preload: a library that the process loads first, such as a memory allocator.

    Raises RuntimeError with the message of its exception, where it fails or takes too long.
    """
    cores = ",".join(map(str, sorted(os.sched_getaffinity(0))[: case.workers]))
    module = LIBRARIES[PEERS[form].library].module
    command = ["taskset", "-c", cores, python, "-m", f"tests.benchmarks.{module}", name, str(steps)]
    env = {**os.environ, **THREADS}
    env |= PEERS[form].environment
    if preload:
        env["LD_PRELOAD"] = preload
    if root:
        env["PYTHONPATH"] = str(root)
    try:
        done = subprocess.run(
            command, capture_output=True, text=True, timeout=TURN_SECONDS, env=env, cwd=root, check=False
        )
    except subprocess.TimeoutExpired as error:
        raise RuntimeError(f"took more than {TURN_SECONDS} s") from error
    if done.returncode:
        raise RuntimeError(reason(done.stderr))
    return json.loads(done.stdout.splitlines()[-1])


def reason(stderr: str) -> str:
    """Return the last message of an exception in what a process has printed, or else its last line."""
    messages = re.findall(r"^[\w.]+: .+", stderr, re.MULTILINE) or stderr.strip().splitlines()
    return messages[-1] if messages else "ended without a message"


def compare(
    name: str, forms: Sequence[str], pythons: dict[str, str], turns: int, steps: int, preload: str = ""
) -> dict[str, Any]:
    """Return the figures of a case: medians by form of a library, and why a form is left out.

    ``pythons`` are interpreters by library; ``preload`` is loaded first by the processes of all but dsinga.
    """
    case = CASES[name]
    figures: dict[str, list[dict[str, float]]] = {}
    left_out: dict[str, str] = {}
    for _ in range(turns):
        for form in forms:
            library = PEERS[form].library
            if form in left_out or library not in ("dsinga", *case.peers):
                continue
            allocator = "" if library == "dsinga" else preload
            try:
                turn = take_turn(form, pythons[library], name, case, steps, preload=allocator)
                figures.setdefault(form, []).append(turn)
            except RuntimeError as error:
                left_out[form] = str(error)
                figures.pop(form, None)
    medians = {
        form: {key: MIDDLES[key](turn[key] for turn in done) for key in done[0]} for form, done in figures.items()
    }
    return {"case": name, "figures": medians, "left out": left_out}


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
@click.option("--turns", default=3, show_default=True)
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
    about = {"date": f"{datetime.date.today()}", "machine": processor(), "versions": versions, "preload": preload}
    click.echo(f"{', '.join(map(str, about.values()))}, load {os.getloadavg()[0]:.1f}\n")
    rows = []
    for name in names or CASES:
        rows.append(compare(name, forms or tuple(PEERS), pythons, turns, steps, preload))
        for form, message in rows[-1]["left out"].items():
            click.echo(f"{form} left out of {name}: {message}", err=True)
        if file:
            file.write_text(json.dumps({**about, "cases": rows}, indent=1), encoding="utf-8")
    cases = {row["case"]: row["figures"] for row in rows}
    click.echo("\n".join([*summary(cases), "", *details(cases)]))


if __name__ == "__main__":
    main()
