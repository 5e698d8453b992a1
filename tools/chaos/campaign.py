"""Runs the cases of the campaign on a cluster of processes, and judges how each run ended."""

from __future__ import annotations

import contextlib
import os
import signal
import tempfile
import threading
import time
import traceback
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np
import psutil
from distributed import Client

from dsinga.api import Result, train
from dsinga.base.errors import RunError
from dsinga.cluster import available_workers
from dsinga.extensions import AtEnd, EverySteps, Extension
from dsinga.job import Job
from dsinga.monitor import RECOVERY
from tools.chaos.cases import MOMENTS, PASSES, STEPS, Case
from tools.chaos.faults import CausedFault, wait_for_return
from tools.chaos.report import seconds_to_next_step
from tools.chaos.topologies import PLAN, TOPOLOGIES, job_of
from tools.chaos.trials import RecoveryWatch, read_recoveries
from tools.faults.moments import KillAt, Killer, KillSoon
from tools.faults.passes import Plan, moment_of

HANG_SECONDS = 60
# How a process is lost. A stopped one is killed when its run has ended.
SIGNALS = {"kill": signal.SIGKILL, "segfault": signal.SIGSEGV, "terminate": signal.SIGTERM, "stop": signal.SIGSTOP}


class Hang(BaseException):
    """A run takes longer than HANG_SECONDS; no ``except Exception`` on its way stops it."""


class Ending(NamedTuple):
    """How a run of a case ended: "right", or what is wrong; seconds from each kill to the next new step."""

    verdict: str
    seconds: Sequence[float] = ()
    steps_again: int = 0
    kills: int = 0
    took: float = 0.0
    detail: str = ""


def prepare_kill(case: Case, how: str, killer: Killer, pids: Sequence[int], job: Job, plan: Path) -> list[Extension]:
    """Prepare what kills the process of a case; return extensions that take part in it."""
    if case.place in PASSES:
        place = PASSES[case.place][0]
        step = case.step if place != "evaluation" else 0
        Plan(pids[case.victim], place, step, case.delay, SIGNALS[how]).write(plan)
    elif case.place == "start":
        killer.kill_later(case.victim, case.delay)
    elif case.place == "checkpoint":
        return [KillAt(EverySteps(job.checkpoint_freq), killer, case.victim, case.delay)]
    elif case.place == "end":
        return [KillAt(AtEnd(), killer, case.victim, case.delay)]
    elif case.place == "recovery":
        Plan(pids[case.victim], "backward", case.step // 2, 0.0, SIGNALS[how]).write(plan)
        killer.kill_after(lambda: moment_of(plan), case.second, case.delay)
    else:
        assert case.place in MOMENTS
        return [KillSoon(killer, case.victim, case.delay)]
    return []


def processes_of(client: Client, count: int) -> tuple[list[Any], list[int]]:
    """Return the names and the process ids of the first ``count`` Dask workers of a cluster, by name."""
    names = {address: info["name"] for address, info in available_workers(client).items()}
    addresses = sorted(names, key=lambda address: str(names[address]))[:count]
    pids = client.run(os.getpid, workers=addresses)
    return [names[address] for address in addresses], [pids[address] for address in addresses]


def run_case(
    case: Case, how: str, client: Client, stores: Path, expected: Mapping[str, Result], spares: bool
) -> Ending:
    """Run a case and judge it. Without ``spares`` it may use no Dask workers but those that it needs.

    ``how`` is a name of SIGNALS.
    """
    topology = TOPOLOGIES[case.topology]
    names, pids = processes_of(client, topology.processes)
    began = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="dsinga-chaos-") as folder, time_limit():
        plan = Path(folder) / PLAN
        job = job_of(topology, stores, plan, STEPS[case.topology])
        killer, watch = Killer(pids, SIGNALS[how]), RecoveryWatch()
        extensions = [watch, *prepare_kill(case, how, killer, pids, job, plan)]
        hosts = () if spares else names
        try:
            result = train(
                job, client, workspace=Path(folder) / "run", extensions=extensions, hosts=hosts, progress=False
            )
            verdict, detail = judge(result, expected.get(case.topology)), ""
        except RunError as error:
            verdict, detail = "error", f"{type(error).__name__}: {error}"
            traceback.print_exc()
        except Hang:
            verdict, detail = "hang", ""
        except Exception as error:
            verdict, detail = "traceback", repr(error)
            traceback.print_exc()
        finally:
            killer.end()
            if how == "stop":
                end_stopped(pids)
        at, recoveries = moment_of(plan), read_recoveries(Path(folder) / "run", watch.zero)
        kills = sorted([*killer.faults, *([CausedFault("kill", "", at)] if at else [])], key=lambda fault: fault.at)
    seconds = [*seconds_to_next_step(kills, recoveries).values()]
    again = sum(int(recovery.row.get("steps_again", 0)) for recovery in recoveries)
    return Ending(verdict, seconds, again, len(kills), time.monotonic() - began, detail)


def end_stopped(pids: Sequence[int]) -> None:
    """Kill those of these processes that are stopped."""
    for pid in pids:
        with contextlib.suppress(psutil.NoSuchProcess):
            process = psutil.Process(pid)
            if process.status() == psutil.STATUS_STOPPED:
                process.kill()


def judge(result: Result, expected: Result | None) -> str:
    """Return "right", or what is wrong with a result: its bits, or the rows of its history."""
    if any(not np.isfinite(value).all() for value in result.params.values()):
        return "not finite"
    if result.step != result.job.train_steps:
        return "steps are missing"
    if expected is None:
        return "right"
    if any(not np.array_equal(value, expected.params[name]) for name, value in result.params.items()):
        return "wrong bits"
    return "right" if rows_of(result) == rows_of(expected) else "wrong rows"


def rows_of(result: Result) -> list[dict[str, Any]]:
    """Return the rows of a history that must be the same in each run: without times and recoveries."""
    return [{**row, "time": 0.0} for row in result.history if row["phase"] != RECOVERY]


@contextlib.contextmanager
def time_limit() -> Iterator[None]:
    """Raise Hang in this thread, the main one, where the block takes longer than HANG_SECONDS."""

    def give_up(*_: Any) -> None:
        raise Hang

    signal.signal(signal.SIGALRM, give_up)
    signal.alarm(HANG_SECONDS)
    try:
        yield
    finally:
        signal.alarm(0)


def bring_back(client: Client, workers: int) -> None:
    """Wait until the cluster is whole, and no process of it is one that the scheduler has not noticed to be lost."""
    wait_for_return(client, workers)
    deadline = time.monotonic() + HANG_SECONDS
    while time.monotonic() < deadline:
        answers = client.run(os.getpid, on_error="ignore")
        if len(answers) == workers:
            return
        threading.Event().wait(0.1)
    raise RunError("the cluster is not whole after a case")
