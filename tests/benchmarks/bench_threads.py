"""What kernel threads and their way of waiting are worth: ``python -m tests.benchmarks.bench_threads [NET ...]``.

Trains a net on random records with one worker, once for each number of kernel threads and each setting of OpenMP, in a
process each. The processes take short turns, in an order that changes, while ``--busy`` others use the cores; so a
machine that grows slower during the run favours none of them. An idle machine is judged by the tenth percentile of an
iteration, which other work disturbs least, a busy one by the mean. Results belong in docs/dev/measurements.md.
"""

from __future__ import annotations

import datetime
import json
import os
import random
import statistics
import subprocess
import sys
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager
from typing import NamedTuple

import click

from tests.benchmarks.__main__ import processor
from tests.benchmarks.cases import CASES

NETS = ("digits", *(name for name, case in CASES.items() if case.workers == 1))
DEFAULT = ("digits", "mnist-mlp", "mnist-convnet", "cifar10-64", "char-rnn")
WAITING = ("OMP_WAIT_POLICY", "GOMP_SPINCOUNT")
# GNU OpenMP's own count is 300,000 turns of a loop, some 20 ms.
SETTINGS = {"dsinga": {}, "libgomp": {"GOMP_SPINCOUNT": "300000"}, "passive": {"OMP_WAIT_POLICY": "passive"}}
WARM_UP = 5  # iterations in which kernels are made
PAUSE_SECONDS = 0.03  # after a turn, until its threads have stopped spinning


class Variant(NamedTuple):
    """A number of kernel threads and the environment of OpenMP."""

    threads: int
    setting: str
    environment: dict[str, str]


class Racer:
    """A process that trains a net, some iterations at a time."""

    def __init__(self, net: str, variant: Variant):
        environment = {name: value for name, value in os.environ.items() if name not in WAITING}
        self.variant, self.seconds = variant, list[float]()
        self._process = subprocess.Popen(
            [sys.executable, "-m", "tests.benchmarks.bench_threads", "--run", net, str(variant.threads)],
            env={**environment, **variant.environment},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        self.take(0.3)
        self.seconds.clear()

    def take(self, seconds: float) -> None:
        """Train for so many seconds, and record the seconds of each iteration."""
        assert self._process.stdin
        assert self._process.stdout
        print(seconds, file=self._process.stdin, flush=True)
        self.seconds += json.loads(self._process.stdout.readline())
        time.sleep(PAUSE_SECONDS)

    def close(self) -> None:
        """End the process."""
        self._process.kill()
        self._process.communicate()


def run(net: str, threads: int) -> None:
    """Train in this process: read seconds from standard input, and write the seconds of each iteration that fits."""
    from dsinga.job import load
    from dsinga.ops import get_ops
    from tests.benchmarks.gpu_loop import Loop
    from tests.benchmarks.ours import batch_is, job

    name, _, batch = net.partition("@")
    if name == "digits":
        conf = load("datasets/digits/job.conf", batch_is(int(batch or 64)))
    else:
        conf = job(CASES[name].net, int(batch or CASES[name].batch))
    ops = get_ops("onednn")
    ops.set_threads(threads)
    loop = Loop(conf, ops)
    for _ in range(WARM_UP):
        loop.iterate()
    for line in sys.stdin:
        taken, end = [], time.perf_counter() + float(line)
        while not taken or time.perf_counter() < end:
            started = time.perf_counter()
            ops.set_threads(threads)
            loop.iterate()
            taken.append(time.perf_counter() - started)
        print(json.dumps(taken), flush=True)


@contextmanager
def busy_processes(count: int) -> Iterator[None]:
    """Keep ``count`` processes busy."""
    others = [subprocess.Popen([sys.executable, "-c", "while True: pass"]) for _ in range(count)]
    try:
        yield
    finally:
        for other in others:
            other.kill()
            other.wait()


def race(net: str, variants: Sequence[Variant], turns: int, seconds: float, busy: int) -> list[Racer]:
    """Return a process for each variant, after ``turns`` turns of so many seconds beside ``busy`` processes."""
    with ExitStack() as stack:
        racers = [Racer(net, variant) for variant in variants]
        for racer in racers:
            stack.callback(racer.close)
        stack.enter_context(busy_processes(busy))
        for _ in range(turns):
            for racer in random.sample(racers, len(racers)):
                racer.take(seconds)
        return racers


@click.command()
@click.argument("nets", nargs=-1)
@click.option("--threads", default="1,2", show_default=True, help="Numbers of kernel threads.")
@click.option("--spins", default="", help="More settings: counts of GOMP_SPINCOUNT, with commas between them.")
@click.option("--busy", default=0, show_default=True, help="Processes that use the cores meanwhile.")
@click.option("--turns", default=20, show_default=True, help="Turns of each variant.")
@click.option("--seconds", default=0.3, show_default=True, help="Length of a turn.")
def main(nets: Sequence[str], threads: str, spins: str, busy: int, turns: int, seconds: float) -> None:
    """Print milliseconds of an iteration of each net with each number of threads and each way of waiting."""
    settings = SETTINGS | {f"spins {count}": {"GOMP_SPINCOUNT": count} for count in spins.split(",") if count}
    variants = [
        Variant(count, name, environment)
        for count in map(int, threads.split(","))
        for name, environment in settings.items()
        if count != 1 or name == "dsinga"
    ]
    click.echo(f"{datetime.date.today()}, {processor()}, load {os.getloadavg()[0]:.1f}, {busy} busy processes\n")
    click.echo("| net | threads | waiting | tenth percentile | median | mean | iterations |\n| " + "--- | " * 7)
    for net in nets or DEFAULT:
        for racer in race(net, variants, turns, seconds, busy):
            ordered = sorted(racer.seconds)
            figures = ordered[len(ordered) // 10], statistics.median(ordered), statistics.mean(ordered)
            cells = [f"{1e3 * figure:.2f}" for figure in figures]
            name = racer.variant.threads, racer.variant.setting
            click.echo(f"| {net} | {name[0]} | {name[1]} | {' | '.join(cells)} | {len(ordered)} |")


if __name__ == "__main__":
    if sys.argv[1:2] == ["--run"]:
        run(sys.argv[2], int(sys.argv[3]))
    else:
        main()
