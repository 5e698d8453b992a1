"""Kills searches with halving, and resumes them: ``python -m tools.faults.searches --count 40``.

A process gets SIGKILL before one of its operations on files of the workspace, at random, as between the parts of a
checkpoint, or between a checkpoint and the row of its rung; the next one resumes, and may be killed, too. In the end
the rows, the metrics of all runs and the params of the best one must be those of a search that nothing has disturbed,
bit for bit. One of the settings diverges.
"""

from __future__ import annotations

import argparse
import csv
import functools
import importlib
import os
import random
import signal
import sys
import tempfile
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsinga.monitor.run_monitor import read_metrics
from tools.faults.checkpoints import create, read_params
from tools.faults.cuts import MODULES, MODULES_OF_DASK
from tools.faults.forked import run_forked
from tools.faults.moments import FILE_EVENTS, before_file_operation
from tools.faults.verdicts import run_dsinga

RATES = "0.1,0.5,1e30,0.02,0.001,1e-5"
COMMAND = ["search", "job.conf", "--set", f"updater.learning_rate.base_lr={RATES}", "--set", "train_steps=27"]
COMMAND += ["--set", "checkpoint_freq=4", "--set", "disp_freq=1", "--halving", "3", "--workspace"]
SECONDS = 120.0  # after which a process hangs
MOST_KILLS = 3  # of one search


def search(folder: Path, workspace: Path, resume: bool) -> int:
    """Search, or go on; return the status."""
    os.chdir(folder)
    return run_dsinga([*COMMAND, str(workspace), *(["--resume"] if resume else [])])


def search_until_killed(folder: Path, workspace: Path, resume: bool, count: int) -> int:
    """Search, and end this process by SIGKILL before its operation number ``count`` on files of the workspace."""
    before_file_operation(workspace, count)
    return search(folder, workspace, resume)


def search_counted(folder: Path, workspace: Path) -> int:
    """Search undisturbed, and print the number of operations on files."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += event in FILE_EVENTS and str(arguments[0]).startswith(str(workspace))

    sys.addaudithook(hook)
    status = search(folder, workspace, resume=False)
    print(f"operations: {count}")
    return status


def contents(workspace: Path) -> Any:
    """Return what a search has found: rows, metrics by run, and the params of the best run."""
    with open(workspace / "search.csv", newline="") as file:
        rows = [{**row, "seconds": ""} for row in csv.DictReader(file)]
    runs = {path.parent.name: read_metrics(path) for path in sorted(workspace.glob("setting-*/metrics.jsonl"))}
    metrics = {name: [(row["step"], row["phase"], row["loss"]) for row in history] for name, history in runs.items()}
    [best] = [row["number"] for row in rows if row["state"] == "finished"]
    folder = workspace / f"setting-{best}"
    return rows, metrics, read_params(folder / "checkpoint" / "step27"), (folder / "best.safetensors").read_bytes()


def run(task: Callable[[], int], folder: Path) -> tuple[int | None, str]:
    """Run a function in a process of its own; return its status and output."""
    [ended] = run_forked([(0, task)], folder, SECONDS, 1)
    return ended.status, ended.output


def kill_and_resume(chosen: random.Random, folder: Path, workspace: Path, operations: int) -> str:
    """Search with some kills and to the end; return before which operations it was killed. Raises AssertionError."""
    kills: list[int] = []
    for number in range(chosen.randint(1, MOST_KILLS)):
        kills.append(chosen.randrange(operations))
        task = functools.partial(search_until_killed, folder, workspace, number > 0, kills[-1])
        status, output = run(task, folder)
        if status == 0:
            kills.pop()
            break
        assert status == -signal.SIGKILL, (kills, output)
    status, output = run(functools.partial(search, folder, workspace, bool(kills)), folder)
    assert status == 0, (kills, output)
    for ours, whole in zip(contents(workspace), contents(folder / "whole"), strict=True):
        assert ours == whole, (kills, ours, whole)
    assert not [*workspace.rglob("running.json")], "a workspace says that it is in use"
    return ", ".join(map(str, kills))


def create_whole(folder: Path) -> int:
    """Write the job and its records, and search undisturbed."""
    os.chdir(folder)
    create(folder)
    return search_counted(folder, folder / "whole-search") or 0


def main() -> None:
    """Kill as many searches as the arguments ask for; raises AssertionError where one ends otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.searches")
    parser.add_argument("--count", type=int, default=20, help="searches that are killed [20]")
    parser.add_argument("--seed", type=int, default=0)
    options = parser.parse_args()
    for name in (*MODULES, *MODULES_OF_DASK):
        importlib.import_module(name)
    chosen = random.Random(options.seed)
    with tempfile.TemporaryDirectory(prefix="dsinga-searches-") as name:
        folder = Path(name)
        status, output = run(functools.partial(create_whole, folder), folder)
        assert status == 0, output
        (folder / "whole").rename(folder / "trained")  # of ``create``
        (folder / "whole-search").rename(folder / "whole")
        operations = int(output.rpartition("operations: ")[2])
        for number in range(options.count):
            kills = kill_and_resume(chosen, folder, folder / f"search{number}", operations)
            print(f"killed before operation {kills or 'none'} of {operations}: right bits", flush=True)


if __name__ == "__main__":
    main()
