"""Kills searches with halving, and resumes them: ``python -m tools.faults.searches --count 40``.

A process gets SIGKILL before one of its operations on files of the workspace, at random, as between the parts of a
checkpoint, or between a checkpoint and the row of its rung; the next one resumes, and may be killed, too. One of the
settings diverges.

Every second search is asynchronous. In the end of the others the rows, the metrics of all runs and the params of the
best one must be those of a search that nothing has disturbed, bit for bit. Which settings go on in an asynchronous
search depends on which ends first, so there the metrics of each run must be, bit for bit, the beginning of those of
the whole run, as far as its row says; each run ends a rung once; and of each rung the best third must have gone on.

``--pairs 40`` starts two programs on one folder: two whole searches, or one or both with ``--only``. Each ends well, or
with one sentence that another run is writing; a third program resumes. ``--early 40`` kills a process within the first
two seconds: the driver of a search, which is then resumed, or a Dask worker. In the end no setting may be lost: the
rows, metrics and params are those of a search that nothing has disturbed.
"""

from __future__ import annotations

import argparse
import collections
import csv
import functools
import importlib
import json
import os
import random
import re
import signal
import sys
import tempfile
import threading
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

from dsinga.monitor.run_monitor import read_metrics
from tools.faults.checkpoints import create, read_params
from tools.faults.cuts import MODULES, MODULES_OF_DASK
from tools.faults.forked import run_forked
from tools.faults.moments import FILE_EVENTS, before_file_operation
from tools.faults.verdicts import run_dsinga

COMMAND = ["search", "job.conf", "--set", "train_steps=27", "--set", "checkpoint_freq=4", "--set", "disp_freq=1"]
RATES = "updater.learning_rate.base_lr=0.1,0.5,1e30,0.02,0.001,1e-5"
SYNCHRONOUS = ["--set", RATES, "--halving", "3"]
# The best come last, so that settings go on which are not among the best third in the end.
WHOLE_RUNS = ["--set", "updater.learning_rate.base_lr=1e-5,0.001,0.005,1e30,0.02,0.05,0.1,0.2,0.5"]
ASYNCHRONOUS = [*WHOLE_RUNS, "--halving", "3", "--asynchronous"]
ENDED = re.compile(r"^setting (\d+) \(.*?\): (rung \d|finished|failed)", re.MULTILINE)  # a rung, as the log says
SECONDS = 240.0  # after which a process hangs
MOST_KILLS = 3  # of one search
PLAIN = ["--set", "updater.learning_rate.base_lr=0.1,0.5,1e30,0.02"]
EARLY_SECONDS = 2.0
# The arguments of two programs that share a folder.
PAIRS = (
    ([], []),
    ([], ["--only", "3"]),
    (["--only", "0", "--only", "1"], ["--only", "1", "--only", "3"]),
    (["--only", "3"], []),
    (["--only", "2"], ["--only", "2"]),
)
HELD = "another run is writing"
# What two programs may have to say about one setting, which diverges.
ALL_FAILED = "the only setting failed"


def search(options: list[str], folder: Path, workspace: Path, resume: bool) -> int:
    """Search, or go on; return the status."""
    os.chdir(folder)
    return run_dsinga([*COMMAND, *options, "--workspace", str(workspace), *(["--resume"] if resume else [])])


def search_until_killed(options: list[str], folder: Path, workspace: Path, resume: bool, count: int) -> int:
    """Search, and end this process by SIGKILL before its operation number ``count`` on files of the workspace."""
    before_file_operation(workspace, count)
    return search(options, folder, workspace, resume)


def search_counted(options: list[str], folder: Path, workspace: Path) -> int:
    """Search undisturbed, and print the number of operations on files."""
    count = 0

    def hook(event: str, arguments: tuple[Any, ...]) -> None:
        nonlocal count
        count += event in FILE_EVENTS and str(arguments[0]).startswith(str(workspace))

    sys.addaudithook(hook)
    status = search(options, folder, workspace, resume=False)
    print(f"operations: {count}")
    return status


def rows_of(workspace: Path) -> list[dict[str, str]]:
    """Return the rows of a search but for their times."""
    with open(workspace / "search.csv", newline="") as file:
        return [{**row, "seconds": ""} for row in csv.DictReader(file)]


def losses_of(folder: Path) -> list[Any]:
    """Return the losses of a run, with their steps."""
    return [(row["step"], row["phase"], row["loss"]) for row in read_metrics(folder / "metrics.jsonl")]


def params_of(folder: Path) -> Any:
    """Return the last params of a whole run, and its best ones."""
    return read_params(folder / "checkpoint" / "step27"), (folder / "best.safetensors").read_bytes()


def check_synchronous(workspace: Path, undisturbed: Path) -> None:
    """Raise AssertionError where a search has found something else than another one."""
    rows = rows_of(workspace)
    assert rows == rows_of(undisturbed), rows
    for path in undisturbed.glob("setting-*/metrics.jsonl"):
        assert losses_of(workspace / path.parent.name) == losses_of(path.parent), path
    [best] = [f"setting-{row['number']}" for row in rows if row["state"] == "finished"]
    assert params_of(workspace / best) == params_of(undisturbed / best)


def check_asynchronous(workspace: Path, whole_runs: Path) -> None:
    """Raise AssertionError where runs are no beginnings of whole runs, or the best of a rung have not gone on."""
    rungs: list[list[tuple[float, int]]] = [[], [], []]
    for row, whole_row in zip(rows_of(workspace), rows_of(whole_runs), strict=True):
        number, state = int(row["number"]), row["state"]
        ours, whole = workspace / f"setting-{number}", whole_runs / f"setting-{number}"
        assert (state == "failed") == (whole_row["state"] == "failed"), row
        if state == "failed":
            continue
        losses = losses_of(ours)
        assert losses == losses_of(whole)[: len(losses)], row
        assert losses[-1][0] == int(row["steps"]), (row, losses[-1])
        if state == "finished":
            assert row["score"] == whole_row["score"]
            assert params_of(ours) == params_of(whole), row
        content = json.loads((ours / "setting.json").read_text())
        for rung, ended in enumerate([*content["earlier"], content["row"]]):
            rungs[rung].append((ended["score"], number))
    assert rungs[2], "no setting has ended the last rung"
    for rung in (0, 1):
        best = {number for _, number in sorted(rungs[rung])[: len(rungs[rung]) // 3]}
        assert best <= {number for _, number in rungs[rung + 1]}, rungs


def run(task: Callable[[], int], folder: Path) -> tuple[int | None, str]:
    """Run a function in a process of its own; return its status and output."""
    [ended] = run_forked([(0, task)], folder, SECONDS, 1)
    return ended.status, ended.output


def kill_and_resume(
    chosen: random.Random, options: list[str], folder: Path, workspace: Path, operations: int
) -> list[int]:
    """Search with some kills and to the end; return before which operations it was killed. Raises AssertionError."""
    kills: list[int] = []
    log = ""
    for number in range(chosen.randint(1, MOST_KILLS)):
        kills.append(chosen.randrange(operations))
        task = functools.partial(search_until_killed, options, folder, workspace, number > 0, kills[-1])
        status, output = run(task, folder)
        log += output
        if status == 0:
            kills.pop()
            break
        assert status == -signal.SIGKILL, (kills, output)
    status, output = run(functools.partial(search, options, folder, workspace, bool(kills)), folder)
    assert status == 0, (kills, output)
    [(ended, count)] = collections.Counter(ENDED.findall(log + output)).most_common(1)
    assert count == 1, (kills, ended, "twice")
    assert not [*workspace.rglob("running.json")], "a workspace says that it is in use"
    return kills


def search_later(options: list[str], folder: Path, workspace: Path, seconds: float) -> int:
    """Search after so many seconds; return the status."""
    time.sleep(seconds)
    return search(options, folder, workspace, resume=False)


def search_killed_by_clock(folder: Path, workspace: Path, seconds: float) -> int:
    """Search, and end this process by SIGKILL after so many seconds."""
    threading.Thread(target=lambda: (time.sleep(seconds), os.kill(os.getpid(), signal.SIGKILL)), daemon=True).start()
    return search(PLAIN, folder, workspace, resume=False)


def resume_and_check(folder: Path, workspace: Path) -> None:
    """Resume a search, and raise AssertionError where it has lost something."""
    for number in glob_numbers(workspace):
        assert number < 4, number
    resume = workspace.exists()
    status, output = run(functools.partial(search, PLAIN, folder, workspace, resume), folder)
    assert status == 0, output
    check_plain(workspace, folder / "plain")


def glob_numbers(workspace: Path) -> list[int]:
    """Return the numbers of the settings that have a folder."""
    return [int(path.name.removeprefix("setting-")) for path in workspace.glob("setting-*")]


def check_plain(workspace: Path, undisturbed: Path) -> None:
    """Raise AssertionError where a search without halving has found something else than another one."""
    rows = rows_of(workspace)
    assert rows == rows_of(undisturbed), rows
    for row in rows:
        ours, theirs = (each / f"setting-{row['number']}" for each in (workspace, undisturbed))
        assert losses_of(ours) == losses_of(theirs), row
        if row["state"] == "finished":
            assert params_of(ours) == params_of(theirs), row
    assert not [*workspace.rglob("running.json")], "a workspace says that it is in use"


def run_pair(chosen: random.Random, number: int, folder: Path, workspace: Path) -> str:
    """Run two programs on one folder, then resume; return what was done. Raises AssertionError."""
    seconds = [0.0, chosen.uniform(0, EARLY_SECONDS)]
    arguments = PAIRS[number % len(PAIRS)]
    tasks = [
        (place, functools.partial(search_later, [*PLAIN, *arguments[place]], folder, workspace, seconds[place]))
        for place in (0, 1)
    ]
    ends = {ended.number: ended for ended in run_forked(tasks, folder, SECONDS, 2)}
    refused = [place for place, ended in ends.items() if ended.status != 0]
    for place in refused:
        output = ends[place].output
        assert ends[place].status in (1, 2), output
        assert "Traceback" not in output, output
        assert HELD in output or ALL_FAILED in output, output
    assert len(refused) < 2 or arguments[0] == ["--only", "2"], [ended.output for ended in ends.values()]
    resume_and_check(folder, workspace)
    return f"{' '.join(arguments[0]) or 'all'} and, {seconds[1]:.2f} s later, {' '.join(arguments[1]) or 'all'}"


def run_killed_driver(chosen: random.Random, folder: Path, workspace: Path) -> str:
    """Kill a search within its first seconds, and resume it; return what was done. Raises AssertionError."""
    seconds = chosen.uniform(0, EARLY_SECONDS)
    status, output = run(functools.partial(search_killed_by_clock, folder, workspace, seconds), folder)
    assert status in (0, -signal.SIGKILL), output
    resume_and_check(folder, workspace)
    return f"driver killed after {seconds:.2f} s"


def search_with_killed_workers(seed: int, count: int, folder: Path) -> int:
    """Search so many times, each time on a cluster of processes, one of which is killed early and started again."""
    from distributed import Client, LocalCluster

    import dsinga

    os.chdir(folder)
    chosen = random.Random(seed)
    job = dsinga.load("job.conf", ["train_steps=27", "checkpoint_freq=4", "disp_freq=1"])
    space = {"updater.learning_rate.base_lr": [0.1, 0.5, 1e30, 0.02]}
    scores = [(row["state"], row["score"] and f"{row['score']:.6g}") for row in dsinga.search(job, space)]
    for number in range(count):
        # A cluster each: a nanny does not replace a worker that is killed while it starts.
        cluster = LocalCluster(n_workers=2, threads_per_worker=1, dashboard_address=None)
        with cluster, Client(cluster) as client:
            victim, seconds = chosen.choice(sorted(client.run(os.getpid).values())), chosen.uniform(0, EARLY_SECONDS)
            timer = threading.Timer(seconds, os.kill, (victim, signal.SIGKILL))
            timer.start()
            workspace = folder / f"killed{number}" if number % 2 else None
            result = dsinga.search(job, space, client, workspace=workspace, progress=False)
            timer.cancel()
            timer.join()
            found = [(row["state"], row["score"] and f"{row['score']:.6g}") for row in result]
            assert found == scores, (seconds, list(result))
            print(f"Dask worker killed after {seconds:.2f} s: nothing lost", flush=True)
    return 0


def create_undisturbed(folder: Path, has_halving: bool, is_plain: bool) -> int:
    """Write the job and its records, and search undisturbed: with halving, without it."""
    os.chdir(folder)
    create(folder)
    if is_plain:
        search(PLAIN, folder, folder / "plain", resume=False)
    if not has_halving:
        return 0
    search(WHOLE_RUNS, folder, folder / "whole runs", resume=False)
    for options, name in ((SYNCHRONOUS, "synchronous"), (ASYNCHRONOUS, "asynchronous")):
        search_counted(options, folder, folder / name)
    return 0


def main() -> None:
    """Kill as many searches as the arguments ask for; raises AssertionError where one ends otherwise."""
    parser = argparse.ArgumentParser(prog="python -m tools.faults.searches")
    parser.add_argument("--count", type=int, default=20, help="searches that are killed [20]")
    parser.add_argument("--pairs", type=int, default=0, help="pairs of programs on one folder [0]")
    parser.add_argument("--early", type=int, default=0, help="kills within the first two seconds [0]")
    parser.add_argument("--seed", type=int, default=0)
    arguments = parser.parse_args()
    for name in (*MODULES, *MODULES_OF_DASK):
        importlib.import_module(name)
    chosen = random.Random(arguments.seed)
    with tempfile.TemporaryDirectory(prefix="dsinga-searches-") as name:
        folder = Path(name)
        has_halving, is_plain = arguments.count > 0, arguments.pairs + arguments.early > 0
        status, output = run(functools.partial(create_undisturbed, folder, has_halving, is_plain), folder)
        assert status == 0, output
        operations = list(map(int, re.findall(r"operations: (\d+)", output)))
        for number in range(arguments.count):
            workspace, is_asynchronous = folder / f"search{number}", number % 2
            options = ASYNCHRONOUS if is_asynchronous else SYNCHRONOUS
            kills = kill_and_resume(chosen, options, folder, workspace, operations[is_asynchronous])
            kind = "asynchronous search" if is_asynchronous else "search"
            places = ", ".join(map(str, kills)) or "none"
            print(f"{kind} killed before operation {places} of {operations[is_asynchronous]}: ", end="", flush=True)
            if is_asynchronous:
                check_asynchronous(workspace, folder / "whole runs")
            else:
                check_synchronous(workspace, folder / "synchronous")
            print("right bits", flush=True)
        for number in range(arguments.pairs):
            print(f"{run_pair(chosen, number, folder, folder / f'pair{number}')}: nothing lost", flush=True)
        for number in range(arguments.early // 2):
            print(f"{run_killed_driver(chosen, folder, folder / f'early{number}')}: nothing lost", flush=True)
        if left := arguments.early - arguments.early // 2:
            task = functools.partial(search_with_killed_workers, arguments.seed, left, folder)
            [ended] = run_forked([(0, task)], folder, SECONDS * (1 + left), 1)
            print(*re.findall("^Dask worker killed.*", ended.output, re.MULTILINE), sep="\n")
            assert ended.status == 0, ended.output


if __name__ == "__main__":
    main()
