"""The start-up time of commands: ``python -m tools.benchmarks.bench_startup``.

Seconds from starting a command to the first training step of the digits job (its first row in metrics.jsonl), and to
the end of commands that train nothing, compared with the imports that they need. The cases run in turn; figures are
medians of turns. Which imports take longest says ``python -X importtime -m dsinga``.
"""

from __future__ import annotations

import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable
from pathlib import Path

import click

DSINGA = [sys.executable, "-m", "dsinga"]
JOB = "datasets/digits/job.conf"
COMMAND_SECONDS = 120  # at most, for a command
POLL_SECONDS = 0.002  # between looks for the first row


def train(folder: Path) -> list[str]:
    """Return the command that trains the digits job with a row for every step."""
    return ["train", JOB, "--workspace", str(folder), "--set", "disp_freq=1"]


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


@click.command()
@click.option("--turns", default=7, show_default=True)
@click.option("--only", default="", help="Cases that begin so.")
def main(turns: int, only: str) -> None:
    """Print the medians of what commands take, in seconds."""
    cases = {name: measure for name, measure in CASES.items() if name.startswith(only)}
    times: dict[str, list[float]] = {name: [] for name in cases}
    for _ in range(turns):
        for name, measure in cases.items():
            with tempfile.TemporaryDirectory() as folder:
                times[name].append(measure(Path(folder)))
    for name, seconds in times.items():
        click.echo(f"{name:40} {statistics.median(seconds):6.2f} s  ({min(seconds):.2f} to {max(seconds):.2f})")


if __name__ == "__main__":
    main()
