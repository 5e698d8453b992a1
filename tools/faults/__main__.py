"""Gives dsinga thousands of damaged inputs, and counts how it took them: ``python -m tools.faults KIND --count N``.

KIND is a module of this folder with two functions: ``create(folder)`` writes an undamaged input and what it trains to;
``run(random, original, folder)`` damages a copy of ``original`` in ``folder``, runs dsinga on it, and returns its
status, or :data:`tools.faults.verdicts.WRONG`. Where it has the numbers ``MOST_BYTES`` and ``MOST_SECONDS``, a case
that takes more memory or processor time is a fault. The exit status is 1 where dsinga has failed a case.
"""

from __future__ import annotations

import argparse
import collections
import functools
import importlib
import math
import os
import random
import shutil
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path

from tools.faults.forked import Ended, run_forked
from tools.faults.verdicts import FAULTS, damage_of, verdict

SHOWN_FAILED = 40  # cases
# What all cases import, or those of a kind: imported once for all.
MODULES = ["dsinga.commands.cli", "dsinga.api.execution", "dsinga.ops.onednn", "dask.tokenize"]
MODULES_OF_KINDS = {
    "fields": ["dsinga.nn.model", "xarray", "h5py", "cftime"],
    **dict.fromkeys(("onnx", "bombs"), ["dsinga.addons.onnx.load", "onnx.checker", "onnx.inliner", "onnx.reference"]),
}


def run_case(run: Callable[..., int], seed: int, number: int, original: Path, work: Path) -> int:
    """Run the case ``number`` in a folder of its own."""
    folder = work / f"case{number}"
    folder.mkdir()
    os.chdir(folder)
    return run(random.Random(f"{seed}/{number}"), original, folder)


def main() -> int:
    """Run the cases that the arguments ask for; return 1 if dsinga has failed one."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("kind", choices=("jobs", "stores", "checkpoints", "imports", "fields", "onnx", "bombs"))
    parser.add_argument("--count", type=int, help="cases [100, or all bombs]")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--only", type=int, metavar="NUMBER", help="run this case only and print its output")
    parser.add_argument("--seconds", type=float, default=20.0, help="a case that takes longer hangs [20]")
    parser.add_argument("--processes", type=int, default=os.cpu_count() or 1)
    options = parser.parse_args()
    kind = importlib.import_module(f"tools.faults.{options.kind}")
    for name in (*MODULES, *MODULES_OF_KINDS.get(options.kind, [])):
        importlib.import_module(name)
    with tempfile.TemporaryDirectory(prefix="dsinga-faults-") as name:
        work = Path(name)
        original = work / "original"
        original.mkdir()
        count = options.count or len(getattr(kind, "BOMBS", range(100)))
        numbers = range(count) if options.only is None else [options.only]
        [created] = run_forked([(-1, functools.partial(_created, kind.create, original))], work, 300.0, 1)
        if created.status:
            sys.exit(f"the undamaged input cannot be made: {created.output}")
        tasks = ((n, functools.partial(run_case, kind.run, options.seed, n, original, work)) for n in numbers)
        began = time.monotonic()
        ends = run_forked(tasks, work, options.seconds, options.processes)
        bounds = getattr(kind, "MOST_BYTES", sys.maxsize), getattr(kind, "MOST_SECONDS", math.inf)
        return report(_cleaned(ends, work, options.only), began, bounds)


def _created(create: Callable[[Path], None], original: Path) -> int:
    os.chdir(original)
    create(original)
    return 0


def _cleaned(ends: Iterator[Ended], work: Path, only: int | None) -> Iterator[Ended]:
    """Remove the folder of each case that has ended, and show its whole output if it is the only one."""
    for count, ended in enumerate(ends, start=1):
        shutil.rmtree(work / f"case{ended.number}", ignore_errors=True)
        if only is not None:
            print(ended.output)
        if count % 500 == 0:
            print(f"... {count} cases", file=sys.stderr, flush=True)
        yield ended


def report(ends: Iterator[Ended], began: float, bounds: tuple[int, float]) -> int:
    """Print counts, the slowest case and the failed cases; return 1 if there are any of those."""
    counts: collections.Counter[str] = collections.Counter()
    failed: list[str] = []
    slowest, largest = (0.0, -1), (0, -1)
    for ended in ends:
        outcome = verdict(ended)
        if outcome not in FAULTS and (ended.peak_bytes > bounds[0] or ended.processor_seconds > bounds[1]):
            outcome = "beyond the bounds"
        counts[outcome] += 1
        slowest = max(slowest, (ended.processor_seconds, ended.number))
        largest = max(largest, (ended.peak_bytes, ended.number))
        if outcome in (*FAULTS, "beyond the bounds"):
            last = ended.output.strip().rpartition("\n")[2]
            took = f"{ended.processor_seconds:.1f} s, {ended.peak_bytes >> 20} MiB"
            failed.append(f"{outcome}: case {ended.number}: {damage_of(ended)}: {took}: {last[:300]}")
    total = counts.total()
    print(f"{total} cases in {time.monotonic() - began:.0f} s: " + ", ".join(f"{n} {v}" for v, n in counts.items()))
    memory = f"most memory: {largest[0] >> 20} MiB (case {largest[1]})"
    print(f"slowest: {slowest[0]:.1f} s of a processor (case {slowest[1]}); {memory}")
    for line in failed[:SHOWN_FAILED]:
        print(line)
    if len(failed) > SHOWN_FAILED:
        print(f"... and {len(failed) - SHOWN_FAILED} more")
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
