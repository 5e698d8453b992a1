"""Whether two versions of the package compute the same bits, over a list of jobs, agents, estimators and models.

    python -m tools.benchmarks.bits --out FILE [--only NAME ...]
    python -m tools.benchmarks.bits --compare BEFORE AFTER

The first command trains the jobs of ``bits_jobs``, makes the calls of ``bits_agents``, ``bits_estimators``,
``bits_models`` and ``bits_results``, and writes digests of params and results, and metrics, to a JSON file; it exits
with 1 where a run fails. The second one prints a table of two such files and exits with 1 where they differ. To run an
older version that lacks this file, start in its root with both roots on the path, its own first:

    cd OLD && PYTHONPATH=OLD:NEW OLD/.venv/bin/python -m tools.benchmarks.bits --out before.json
"""

from __future__ import annotations

import contextlib
import json
import os
import sys
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

# Sums over several threads depend on how many there are; read when numpy is imported.
for variable in ("OMP_NUM_THREADS", "OPENBLAS_NUM_THREADS", "MKL_NUM_THREADS"):
    os.environ[variable] = "1"

import click  # noqa: E402
import dask.config  # noqa: E402
from distributed import Client, LocalCluster  # noqa: E402

import dsinga  # noqa: E402
from tools.benchmarks.bits_agents import AGENTS  # noqa: E402
from tools.benchmarks.bits_estimators import ESTIMATORS  # noqa: E402
from tools.benchmarks.bits_jobs import JOBS, Run  # noqa: E402
from tools.benchmarks.bits_models import MODELS  # noqa: E402
from tools.benchmarks.bits_report import Call, Report, report  # noqa: E402
from tools.benchmarks.bits_results import RESULTS  # noqa: E402
from tools.benchmarks.bits_stores import write_stores  # noqa: E402

RUNS: dict[str, Run | Call] = {**JOBS, **RESULTS, **AGENTS, **ESTIMATORS, **MODELS}
QUIET = {
    "distributed.worker.profile.enabled": False,
    "distributed.admin.tick.interval": "1s",
    "distributed.worker.multiprocessing-method": "forkserver",
}


@contextlib.contextmanager
def worker_processes() -> Iterator[Client]:
    """Yield a client of a cluster of four worker processes."""
    with (
        dask.config.set(QUIET),
        LocalCluster(
            n_workers=4, threads_per_worker=1, processes=True, dashboard_address=":0", memory_limit=0
        ) as cluster,
        Client(cluster, set_as_default=False) as client,
    ):
        yield client


def train(name: str, run: Run, client: Client | None, folder: Path) -> Report:
    """Return the digests of the params of a run, and its metrics; without a client it makes a cluster of threads."""
    job = run.job(folder)
    options: dict[str, Any] = {"workspace": folder / f"{name}-workspace", "progress": False, "grain": run.grain}
    with mock.patch.dict(os.environ, run.environment), dask.config.set(run.config):
        if run.resume_at:
            dsinga.train(job.replace(train_steps=run.resume_at), client, **options)
        result = dsinga.train(job, client, resume=bool(run.resume_at), **options)
    return report(result.params, result.history)


def compute(name: str, run: Run | Call, client: Client, folder: Path) -> Report:
    """Return the report of a run, which gets the client of processes where it asks for it."""
    asked = client if run.processes else None
    return run.compute(folder, asked) if isinstance(run, Call) else train(name, run, asked, folder)


def with_earlier(names: tuple[str, ...]) -> list[str]:
    """Return the runs of these names and those whose checkpoints they start from, in the order of the list."""
    wanted = set(names or RUNS)
    wanted |= {earlier for name in wanted for earlier in RUNS[name].after}
    return [name for name in RUNS if name in wanted]


def compare(before: Report, after: Report) -> list[tuple[str, str, int, int, float]]:
    """Return run, array, how many arrays are the same and differ, and the largest difference of a metric."""
    rows = []
    for name in [*before, *(name for name in after if name not in before)]:
        if name not in before or name not in after:
            rows.append((name, "only in " + ("the first" if name in before else "the second"), 0, 1, 0.0))
            continue
        params = [report[name]["params"] for report in (before, after)]
        names = params[0].keys() | params[1].keys()
        different = sorted(param for param in names if params[0].get(param) != params[1].get(param))
        error = metric_difference(before[name]["metrics"], after[name]["metrics"])
        rows.append((name, " ".join(different), len(names) - len(different), len(different), error))
    return rows


def metric_difference(before: list[Report], after: list[Report]) -> float:
    """Return the largest difference of a metric; infinity where rows or columns are not the same."""
    if [sorted(row) for row in before] != [sorted(row) for row in after]:
        return float("inf")
    pairs = [(row[key], other[key]) for row, other in zip(before, after, strict=True) for key in row]
    if any(one != two for one, two in pairs if isinstance(one, str) or isinstance(two, str)):
        return float("inf")
    numbers = [(one, two) for one, two in pairs if not isinstance(one, str)]
    return max((abs(one - two) for one, two in numbers if json.dumps(one) != json.dumps(two)), default=0.0)


@click.command()
@click.option("--out", type=click.Path(path_type=Path), help="Make the runs, and write their digests there.")
@click.option("--only", multiple=True, type=click.Choice(list(RUNS)), help="Make this run alone; may be repeated.")
@click.option("--compare", "files", nargs=2, type=click.Path(exists=True, path_type=Path), help="Compare two files.")
def main(out: Path | None, only: tuple[str, ...], files: tuple[Path, Path] | None) -> None:
    """Make the runs and write the digests of what they compute, or compare what two versions have written."""
    if files:
        rows = compare(*(json.loads(file.read_text(encoding="utf-8")) for file in files))
        click.echo("| run | same arrays | different | largest difference of metrics | which |\n| " + "--- | " * 5)
        for name, which, same, different, error in rows:
            click.echo(f"| {name} | {same} | {different} | {error:.3g} | {which} |")
        broken = [name for name, _, _, different, error in rows if different or error]
        click.echo(f"{len(rows) - len(broken)} of {len(rows)} runs are the same")
        sys.exit(bool(broken))
    if not out:
        raise click.UsageError("give --out FILE or --compare BEFORE AFTER")
    reports: Report = {}
    failed = False
    with tempfile.TemporaryDirectory() as root, worker_processes() as client:
        write_stores(Path(root))
        for name in with_earlier(only):
            start = time.perf_counter()
            try:
                reports[name] = compute(name, RUNS[name], client, Path(root))
            except Exception as error:
                click.echo(f"{name} failed: {error!r}", err=True)
                failed = True
                continue
            click.echo(f"{name}: {len(reports[name]['params'])} params, {time.perf_counter() - start:.1f} s")
            out.write_text(json.dumps(reports, indent=1), encoding="utf-8")
    sys.exit(failed)


if __name__ == "__main__":
    main()
