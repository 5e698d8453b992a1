"""The start-up time of commands: ``python -m tests.benchmarks.bench_startup``.

Seconds from starting a command to the first training step of the digits job (its first row in metrics.jsonl), and to
the end of commands that train nothing, compared with the imports that they need. The cases run in turn; figures are
medians of turns. ``--imports`` prints instead which imports take longest before the first step.
"""

from __future__ import annotations

import json
import re
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

DSINGA = [sys.executable, "-m", "dsinga"]
JOB = "datasets/digits/job.conf"
COMMAND_SECONDS = 120  # at most, for a command
POLL_SECONDS = 0.002  # between looks for the first row
LONGEST = 25  # imports that are listed


def train(folder: Path, more: Sequence[str] = ()) -> list[str]:
    """Return the command that trains the digits job with a row for every step."""
    return ["train", JOB, "--workspace", str(folder), "--set", "disp_freq=1", *more]


def first_step(folder: Path) -> float:
    """Return the seconds from starting ``dsinga train`` to the first row of training."""
    rows = folder / "metrics.jsonl"
    started = time.perf_counter()
    with subprocess.Popen([*DSINGA, *train(folder)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL) as process:
        while not (rows.exists() and '"train"' in rows.read_text(encoding="utf-8")):
            if process.poll() is not None or time.perf_counter() - started > COMMAND_SECONDS:
                raise click.ClickException("the job has not trained a step")
            time.sleep(POLL_SECONDS)
        waited = time.perf_counter() - started
        process.kill()
    return waited


def seconds_of(*command: str) -> Callable[[Path], float]:
    """Return a function that measures the seconds of a command, in a folder of its own."""

    def measure(folder: Path) -> float:
        started = time.perf_counter()
        arguments = [part.format(folder=folder) for part in command]
        subprocess.run(arguments, capture_output=True, timeout=COMMAND_SECONDS, check=True)
        return time.perf_counter() - started

    return measure


CASES = {
    "dsinga train: the first step": first_step,
    "dsinga train: 600 steps, to the end": seconds_of(*DSINGA, *train(Path("{folder}"))),
    "dsinga --help": seconds_of(*DSINGA, "--help"),
    "dsinga show": seconds_of(*DSINGA, "show", JOB, "--svg", "{folder}/net.svg"),
    "python, nothing imported": seconds_of(sys.executable, "-c", ""),
    "import numpy": seconds_of(sys.executable, "-c", "import numpy"),
    "import zarr": seconds_of(sys.executable, "-c", "import zarr"),
    "import distributed": seconds_of(sys.executable, "-c", "import distributed"),
    "import distributed and zarr": seconds_of(sys.executable, "-c", "import distributed, zarr"),
}  # fmt: skip


def longest_imports() -> list[tuple[float, float, str]]:
    """Return (milliseconds of its own, with what it imports, name) of the imports of a short run that take longest."""
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-X", "importtime", "-m", "dsinga", *train(Path(folder), ["--set", "train_steps=1"])]
        done = subprocess.run(command, capture_output=True, text=True, timeout=COMMAND_SECONDS, check=True)
    lines = re.findall(r"import time:\s*(\d+) \|\s*(\d+) \|\s*(\S+)", done.stderr)
    imports = [(int(own) / 1e3, int(total) / 1e3, name) for own, total, name in lines]
    return sorted(imports, key=lambda item: -item[1])[:LONGEST]


@click.command()
@click.option("--turns", default=7, show_default=True)
@click.option("--only", default="", help="Cases that begin so.")
@click.option("--imports", is_flag=True, help="List the longest imports instead.")
@click.option("--json", "as_json", is_flag=True, help="Print one JSON object.")
def main(turns: int, only: str, imports: bool, as_json: bool) -> None:
    """Print the medians of what commands take, in seconds."""
    if imports:
        for own, total, name in longest_imports():
            click.echo(f"{total:9.1f} ms, {own:7.1f} ms of its own  {name}")
        return
    cases = {name: measure for name, measure in CASES.items() if name.startswith(only)}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, measure in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(measure(Path(folder)))
    medians = {name: statistics.median(seconds) for name, seconds in times.items()}
    if as_json:
        click.echo(json.dumps(medians))
        return
    for name, seconds in medians.items():
        click.echo(f"{name:40} {seconds:6.2f} s  ({min(times[name]):.2f} to {max(times[name]):.2f})")


if __name__ == "__main__":
    main()
