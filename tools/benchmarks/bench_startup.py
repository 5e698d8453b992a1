"""First seconds, of a checkout and of one before: ``python -m tools.benchmarks.bench_startup [--before CHECKOUT]``.

Seconds of commands, imports and first fits in a fresh process each, compared with the imports that they need; and of a
``fit`` of 100 records, from call to return. Processor seconds are the figures to trust on a busy machine. The cases run
in turn, the checkouts alternate, and figures are medians; a first turn, which writes the byte code of all modules into
a folder of its own, is not counted. ``python -X importtime -m dsinga`` says which imports take longest.
"""

from __future__ import annotations

import os
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import NamedTuple

import click

from tools.benchmarks.__main__ import processor

ROOT = Path(__file__).parents[2]
JOB = "datasets/digits/job.conf"
TRAIN = ("-m", "dsinga", "train", JOB, "--workspace", "{folder}/run")
MODEL = """
import time
import numpy as np
from dsinga import nn
random = np.random.default_rng(0)
x, y = random.random((100, 64), np.float32), random.integers(0, 10, 100)
model = nn.Sequential([nn.Dense(64, activation="relu"), nn.Dense(64, activation="relu"), nn.Dense(10)])
model.compile(nn.Adam(1e-3), loss=nn.SoftmaxLoss(), metrics=["accuracy"])
"""
FIT = "model.fit(x, y, epochs=1, batch_size=32, verbose=0)\n"
# These print the seconds of one fit by the clock, and by the processor.
TIMED = f"started = time.perf_counter(), time.process_time()\n{FIT}ended = time.perf_counter(), time.process_time()\n"
PRINTED = "print(*(end - start for start, end in zip(started, ended)))\n"
CASES = {
    "import dsinga": ("-c", "import dsinga"),
    "import dsinga.nn": ("-c", "import dsinga.nn"),
    "a compiled model": ("-c", MODEL),
    "a compiled model and a fit of 100 records": ("-c", MODEL + FIT),
    "the first fit of 100 records": ("-c", MODEL + TIMED + PRINTED),
    "a further fit of 100 records": ("-c", MODEL + 10 * FIT + TIMED + PRINTED),
    "dsinga --help": ("-m", "dsinga", "--help"),
    "dsinga show": ("-m", "dsinga", "show", JOB, "--svg", "{folder}/net.svg"),
    "dsinga train, one step": (*TRAIN, "--set", "train_steps=1", "--set", "test_freq=0"),
    "dsinga train, 600 steps": TRAIN,
    "python, nothing imported": ("-c", ""),
    "import numpy": ("-c", "import numpy"),
    "import zarr": ("-c", "import zarr"),
    "import distributed": ("-c", "import distributed"),
}


class Seconds(NamedTuple):
    """The seconds of a case by the clock, and by the processor."""

    clock: float
    processor: float


def measure(checkout: Path, arguments: tuple[str, ...], byte_code: str) -> Seconds:
    """Run Python with a checkout; return the seconds that it prints, if any, or else those of the process."""
    environment = {**os.environ, "PYTHONPATH": str(checkout), "PYTHONPYCACHEPREFIX": byte_code}
    environment.pop("PYTHONDONTWRITEBYTECODE", None)
    with tempfile.TemporaryDirectory() as folder, tempfile.TemporaryFile("w+") as output:
        command = [sys.executable, *(part.replace("{folder}", folder) for part in arguments)]
        started = time.perf_counter()
        process = subprocess.Popen(command, stdout=output, stderr=subprocess.DEVNULL, cwd=checkout, env=environment)
        _, status, usage = os.wait4(process.pid, 0)
        clock = time.perf_counter() - started
        process.returncode = os.waitstatus_to_exitcode(status)
        if process.returncode:
            raise click.ClickException(f"{' '.join(command)} has failed in {checkout}")
        output.seek(0)
        printed = output.read() if arguments[-1].endswith(PRINTED) else ""
    return Seconds(*map(float, printed.split())) if printed else Seconds(clock, usage.ru_utime + usage.ru_stime)


@click.command()
@click.option("--before", type=click.Path(exists=True, file_okay=False, resolve_path=True, path_type=Path))
@click.option("--turns", default=7, show_default=True)
@click.option("--only", default="", help="Cases that begin so.")
def main(before: Path | None, turns: int, only: str) -> None:
    """Print a table of first seconds, of this checkout and of one before."""
    checkouts = {"before": before, "after": ROOT} if before else {"now": ROOT}
    cases = {name: arguments for name, arguments in CASES.items() if name.startswith(only)}
    measured: dict[tuple[str, str], list[Seconds]] = {(name, side): [] for name in cases for side in checkouts}
    with tempfile.TemporaryDirectory() as byte_code:
        for turn in range(turns + 1):
            for name, arguments in cases.items():
                for side in sorted(checkouts, reverse=turn % 2 == 0):
                    seconds = measure(checkouts[side], arguments, byte_code)
                    measured[name, side] += [seconds] if turn else []
    click.echo(f"{processor()}, load {os.getloadavg()[0]:.1f}, {turns} turns\n")
    columns = [(side, kind) for kind in Seconds._fields for side in checkouts]
    click.echo(f"| seconds of | {' | '.join(map(', '.join, columns))} |\n| --- |{' --- |' * len(columns)}")
    for name in cases:
        medians = (statistics.median(getattr(each, kind) for each in measured[name, side]) for side, kind in columns)
        click.echo(f"| {name} | {' | '.join(f'{median:.3f}' for median in medians)} |")


if __name__ == "__main__":
    main()
