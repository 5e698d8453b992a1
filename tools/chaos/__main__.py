"""Kills processes at random moments of many runs, and judges each: ``python -m tools.chaos --count 100 --seed 1``.

Small jobs, data-parallel, hybrid, asynchronous, run on one cluster of worker processes with nannies; cases.py has the
places where processes are killed. With one worker group, params and rows of the history must have the bits of an
undisturbed run; with several, the run must end with finite params. The exit status is 1 where one case is not right.
"""

from __future__ import annotations

import argparse
import contextlib
import faulthandler
import statistics
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
from distributed import Client

from dsinga.api import Result, train
from dsinga.data import write_store
from tools.chaos.campaign import SIGNALS, Ending, bring_back, run_case
from tools.chaos.cases import PLACES, STEPS, Case, draw
from tools.chaos.faults import process_cluster
from tools.chaos.topologies import PLAN, TOPOLOGIES, job_of

WORKERS = 4


@contextlib.contextmanager
def stores() -> Iterator[Path]:
    """Give a folder with the stores of the small job."""
    with tempfile.TemporaryDirectory(prefix="dsinga-chaos-") as name:
        random = np.random.default_rng(7)
        for store, records in (("train", 1000), ("test", 150)):
            images = random.integers(0, 16, (records, 1, 8, 8)).astype(np.uint8)
            write_store(Path(name) / f"{store}.zarr", [(images, random.integers(0, 10, records))])
        yield Path(name)


class Campaign:
    """Runs cases on a cluster, which is replaced where a case has left it in disorder."""

    def __init__(self, stores: Path):
        self._stores = stores
        self._stack = contextlib.ExitStack()
        self._client: Client | None = None
        self._expected: dict[str, Result] = {}

    def run(self, case: Case, how: str) -> Ending:
        """Run a case."""
        if self._client is None:
            self._client = self._stack.enter_context(process_cluster(WORKERS))
        if case.topology not in self._expected and TOPOLOGIES[case.topology].is_synchronous:
            self._expected[case.topology] = self._train(self._client, case.topology)
        ending = run_case(case, how, self._client, self._stores, self._expected, spares=case.number % 3 == 0)
        try:
            if ending.verdict == "hang":
                faulthandler.dump_traceback()
                self.close()
            else:
                bring_back(self._client, WORKERS)
        except Exception as error:
            self.close()
            return ending._replace(verdict=f"{ending.verdict}, then a cluster in disorder", detail=f"{error!r}")
        return ending

    def _train(self, client: Client, name: str) -> Result:
        with tempfile.TemporaryDirectory(prefix="dsinga-chaos-") as folder:
            job = job_of(TOPOLOGIES[name], self._stores, Path(folder) / PLAN, STEPS[name])
            return train(job, client, workspace=Path(folder) / "run", progress=False)

    def close(self) -> None:
        """End the cluster."""
        self._client = None
        self._stack.close()


def run_all(cases: Sequence[Case], how: str) -> Iterator[tuple[Case, Ending]]:
    """Yield how each case ended, and print it."""
    with stores() as folder, contextlib.closing(Campaign(folder)) as campaign:
        for case in cases:
            ending = campaign.run(case, how)
            waits = ", ".join(f"{seconds:.2f}" for seconds in ending.seconds)
            parts = [f"{ending.took:5.1f} s", f"next step after {waits or '-'} s", f"{ending.steps_again} steps again"]
            print(f"{case}: {ending.verdict}; {'; '.join(parts)} {ending.detail[:300]}", flush=True)
            yield case, ending


def report(endings: Sequence[tuple[Case, Ending]], seconds: float) -> int:
    """Print what has happened, all in all; return 1 if a case was not right."""
    verdicts = Counter(ending.verdict for _, ending in endings)
    waits = [wait for _, ending in endings for wait in ending.seconds]
    again = [ending.steps_again for _, ending in endings]
    print(
        f"{len(endings)} runs in {seconds:.0f} s, {sum(ending.kills for _, ending in endings)} kills: {dict(verdicts)}"
    )
    if waits:
        print(
            f"seconds from a kill to the next new step: median {statistics.median(waits):.2f}, worst {max(waits):.2f} "
            f"({len(waits)}); steps computed again: {sum(again)}, at most {max(again)} in a run"
        )
    for place in PLACES:
        waits = [wait for case, ending in endings if case.place == place for wait in ending.seconds]
        count = sum(case.place == place for case, _ in endings)
        if waits:
            print(f"  {place:12s} {count:3d} runs, median {statistics.median(waits):.2f}, worst {max(waits):.2f}")
    wrong = [case.number for case, ending in endings if ending.verdict != "right"]
    if wrong:
        print(f"not right: --only {' '.join(map(str, wrong))}")
    return int(bool(wrong))


def main() -> int:
    """Run the cases that the arguments ask for."""
    parser = argparse.ArgumentParser(prog="python -m tools.chaos", description=(__doc__ or "").partition("\n")[0])
    parser.add_argument("--count", type=int, default=100)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--only", type=int, nargs="+", metavar="NUMBER", help="these cases alone")
    parser.add_argument("--place", choices=PLACES, help="the cases alone that kill a process there")
    parser.add_argument("--topology", choices=TOPOLOGIES, help="the cases of this topology alone")
    parser.add_argument("--how", choices=SIGNALS, default="kill", help="how a process is lost [kill]")
    options = parser.parse_args()
    cases = [draw(number, options.seed) for number in options.only or range(options.count)]
    cases = [case for case in cases if options.place in (None, case.place)]
    cases = [case for case in cases if options.topology in (None, case.topology)]
    began = time.monotonic()
    return report([*run_all(cases, options.how)], time.monotonic() - began)


if __name__ == "__main__":
    sys.exit(main())
