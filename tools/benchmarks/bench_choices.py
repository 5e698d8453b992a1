"""What a row of oneDNN's table of choices is worth: ``python -m tools.benchmarks.bench_choices [ROW ...] [--net NET]``.

Trains a benchmark net with the row and without it, iteration by iteration in turn, in one process with one kernel
thread, and prints the median of the paired ratios of CPU time (with / without) and its 95% confidence interval. Pin it
to a core (``taskset -c 1``). ``ONEDNN_MAX_CPU_ISA=AVX2`` in the environment shows what a machine without AVX-512 would
compute, at this machine's speed.
"""

from __future__ import annotations

import datetime
import os
import statistics
import time
from collections.abc import Mapping, Sequence
from unittest.mock import patch

for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"  # read when the libraries are loaded

import click  # noqa: E402

from dsinga.job import ChangeMethod, LRGenConf  # noqa: E402
from dsinga.ops import get_ops  # noqa: E402
from dsinga.ops.onednn import choices  # noqa: E402
from dsinga.ops.onednn.thread import thread_state  # noqa: E402
from tools.benchmarks.__main__ import processor  # noqa: E402
from tools.benchmarks.cases import CASES, ON_SENTENCES  # noqa: E402
from tools.benchmarks.gpu_loop import Loop  # noqa: E402
from tools.benchmarks.ours import job  # noqa: E402

ROWS = tuple(choice.name for choice in choices.TABLE)
NETS = tuple(name for name, case in CASES.items() if case.workers == 1 and case.net not in ON_SENTENCES)
LINE = "| {row} | {net} | {with_row:.2f} | {without:.2f} | {ratio:.3f} ({low:.3f} to {high:.3f}) | {pairs} |"
WARM_UP = 2  # iterations with and without the row that are not counted: kernels are made


class Variant:
    """A net's iterations with some rows of the table switched off, and the kernels that were made for them."""

    def __init__(self, loop: Loop, switched_off: frozenset[str]):
        self.loop, self.switched_off = loop, switched_off
        self.kernels: dict = {}
        self.used: set[str] = set()

    def iterate(self) -> float:
        """Run an iteration; return the seconds of CPU time that it took this thread."""
        thread_state.kernels = self.kernels
        with (
            patch.object(choices, "switched_off", lambda: self.switched_off),
            patch.object(choices, "choose", self._choose),
        ):
            started = time.thread_time()
            self.loop.iterate()
            return time.thread_time() - started

    def _choose(self, kernel: str, implementation: str, *arguments: object) -> choices.Choice | None:
        choice = CHOOSE(kernel, implementation, *arguments)
        self.used.update([choice.name] if choice else [])
        return choice


CHOOSE = choices.choose


def loop_of(net: str) -> Loop:
    """Return the training loop of a benchmark net, which learns too slowly to diverge on random records."""
    conf = job(CASES[net].net, CASES[net].batch)
    rate = LRGenConf(type=ChangeMethod.kFixed, base_lr=1e-6)
    ops = get_ops("onednn")
    ops.set_threads(1)
    return Loop(conf.replace(updater=conf.updater.replace(learning_rate=rate)), ops)


def compare(loop: Loop, row: str, pairs: int, seconds: float) -> Mapping[str, float] | None:
    """Return medians in milliseconds with and without a row, the ratio and its interval; None if the net has no use."""
    variants = Variant(loop, frozenset()), Variant(loop, frozenset({row}))
    for _ in range(WARM_UP):
        for variant in variants:
            variant.iterate()
    if row not in variants[0].used:
        return None
    taken: list[tuple[float, float]] = []
    started = time.monotonic()
    while len(taken) < pairs and (time.monotonic() - started < seconds or len(taken) < 10):
        if len(taken) % 2:
            without, with_row = variants[1].iterate(), variants[0].iterate()
        else:
            with_row, without = variants[0].iterate(), variants[1].iterate()
        taken.append((with_row, without))
    ratios = sorted(with_row / without for with_row, without in taken)
    low, high = interval(ratios)
    with_ms, without_ms = (1e3 * statistics.median(column) for column in zip(*taken, strict=True))
    ratio = statistics.median(ratios)
    return {"with_row": with_ms, "without": without_ms, "ratio": ratio, "low": low, "high": high, "pairs": len(taken)}


def interval(ordered: Sequence[float]) -> tuple[float, float]:
    """Return the 95% confidence interval of a median: order statistics by the normal approximation of signs."""
    middle, half = len(ordered) / 2, 0.98 * len(ordered) ** 0.5
    return ordered[max(0, int(middle - half))], ordered[min(len(ordered) - 1, int(middle + half))]


@click.command()
@click.argument("rows", nargs=-1, type=click.Choice(ROWS))
@click.option("--net", "nets", multiple=True, type=click.Choice(NETS), help="May be repeated; all nets if left out.")
@click.option("--pairs", default=200, show_default=True, help="Iterations with and without a row.")
@click.option("--seconds", default=150.0, show_default=True, help="Limit of time for a row and a net.")
def main(rows: Sequence[str], nets: Sequence[str], pairs: int, seconds: float) -> None:
    """Print what rows of the table (all, if none is named) are worth in each net that has a use for them."""
    limit = os.environ.get("ONEDNN_MAX_CPU_ISA", "")
    about = f"{datetime.date.today()}, {processor()}{f', oneDNN limited to {limit}' if limit else ''}"
    click.echo(f"{about}, load {os.getloadavg()[0]:.1f}\n")
    click.echo("| row | net | with, ms | without, ms | with / without | pairs |\n| " + "--- | " * 6)
    for net in nets or NETS:
        loop = loop_of(net)
        for row in rows or ROWS:
            figures = compare(loop, row, pairs, seconds)
            if figures:
                click.echo(LINE.format(row=row, net=net, **figures))


if __name__ == "__main__":
    main()
