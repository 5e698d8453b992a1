"""Adds up what faults did to the runs of a job."""

from __future__ import annotations

import statistics
from collections import Counter
from collections.abc import Sequence

from dsinga.job import Job
from tools.chaos.faults import CausedFault
from tools.chaos.trials import Pair, Recovery


def report(job: Job, pairs: Sequence[Pair]) -> list[str]:
    """Return lines that say what happened."""
    trials = [pair.disturbed for pair in pairs]
    faults = [fault for trial in trials for fault in trial.faults]
    kinds = Counter(fault.kind for fault in faults if not fault.failed)
    failed = sum(bool(fault.failed) for fault in faults)
    lines = [
        f"runs with faults: {len(trials)}, {sum(trial.steps for trial in trials):,} steps, "
        f"{sum(trial.seconds for trial in trials):.1f} s",
        f"faults: {sum(kinds.values())}" + "".join(f", {count} {kind}" for kind, count in kinds.items()),
        f"recoveries: {sum(len(trial.recoveries) for trial in trials)}, steps computed again: {_steps_again(pairs):,}",
    ]
    if failed:
        lines.append(f"faults that could not be caused: {failed}; the first: {_first_failure(pairs)}")
    seconds = [wait for trial in trials for wait in seconds_to_next_step(trial.faults, trial.recoveries).values()]
    if seconds:
        lines.append(
            f"seconds from a fault to the next new step: median {statistics.median(seconds):.2f}, worst "
            f"{max(seconds):.2f}; {sum(kinds.values()) - len(seconds)} faults needed no recovery"
        )
    if all(pair.undisturbed for pair in pairs):
        lines.append(f"goodput: {goodput(pairs):.3f} of the steps that runs without faults do in the same time")
        lines.append(_equality(job, pairs))
    return [*lines, *(f"a run ended by an error: {trial.error}" for trial in trials if trial.error)]


def seconds_to_next_step(faults: Sequence[CausedFault], recoveries: Sequence[Recovery]) -> dict[int, float]:
    """Return the seconds from each fault to the next new step, by the fault's number.

    Faults that no recovery followed are absent: they hit a Dask worker without a part of the run, or paused one for a
    time only. Two faults before one recovery both count up to that.
    """
    seconds = {}
    begin = 0.0
    for recovery in recoveries:
        for number, fault in enumerate(faults):
            if begin <= fault.at < recovery.at and not fault.failed:
                seconds[number] = recovery.at - fault.at
        begin = recovery.at
    return seconds


def goodput(pairs: Sequence[Pair]) -> float:
    """Return the steps a second of the runs with faults, as a share of those of the runs without."""
    without = [pair.undisturbed for pair in pairs if pair.undisturbed]
    speed = sum(trial.steps for trial in without) / sum(trial.seconds for trial in without)
    trials = [pair.disturbed for pair in pairs]
    return sum(trial.steps for trial in trials) / sum(trial.seconds for trial in trials) / speed


def is_good(job: Job, pairs: Sequence[Pair]) -> bool:
    """Whether no run with faults has failed and, of one worker group, each has the bits of its run without faults."""
    ended = not any(pair.disturbed.error for pair in pairs)
    compared = _is_synchronous(job) and all(pair.undisturbed for pair in pairs)
    return ended and (not compared or all(pair.is_equal for pair in pairs))


def _is_synchronous(job: Job) -> bool:
    return job.cluster is None or job.cluster.nworker_groups == 1


def _equality(job: Job, pairs: Sequence[Pair]) -> str:
    if not _is_synchronous(job):
        return "params: not compared, because several worker groups give other bits in each run"
    equal = sum(pair.is_equal for pair in pairs)
    return f"params: equal to those of the run without faults, bit by bit, in {equal} of {len(pairs)} runs"


def _steps_again(pairs: Sequence[Pair]) -> int:
    recoveries = (recovery for pair in pairs for recovery in pair.disturbed.recoveries)
    return sum(int(recovery.row.get("steps_again", 0)) for recovery in recoveries)


def _first_failure(pairs: Sequence[Pair]) -> str:
    return next(fault.failed for pair in pairs for fault in pair.disturbed.faults if fault.failed)
