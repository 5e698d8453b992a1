"""When a run stops training to do something else (SINGA's "now" rule), and how long a round is."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.job import Job, Phase, training_phases
from dsinga.job.topology import Topology

# What a round should last, in seconds: long beside the milliseconds that a task costs, short beside what a person
# waits for a progress line. A run of many workers has longer ones, so that the scheduler, which gets four messages for
# the task of each, has a bounded number of them a second.
ROUND_SECONDS = 1.0
TASKS_PER_SECOND = 32


def due(step: int, freq: int, after: int) -> bool:
    """Whether something of this frequency is due once ``step`` steps are done."""
    return freq > 0 and step >= after and (step - after) % freq == 0


def next_due(step: int, freq: int, after: int) -> int | None:
    """Return the first step after ``step`` at which something of this frequency is due, if ever."""
    if freq <= 0:
        return None
    return after if step < after else step + freq - (step - after) % freq


def validate_due(job: Job, step: int) -> bool:
    """Whether to validate after ``step`` steps: as SINGA does, and once more at the end."""
    if Phase.kVal not in training_phases(job):
        return False
    return due(step, job.validate_freq, job.validate_after) or step == job.train_steps


def test_due(job: Job, step: int) -> bool:
    """Whether to test after ``step`` steps: as SINGA does, and once more at the end."""
    if Phase.kTest not in training_phases(job):
        return False
    return due(step, job.test_freq, job.test_after) or step == job.train_steps


def checkpoint_due(job: Job, step: int) -> bool:
    """Whether to write a checkpoint after ``step`` steps: as the job says, and always at the end."""
    return step > 0 and (due(step, job.checkpoint_freq, job.checkpoint_after) or step == job.train_steps)


def display_due(job: Job, step: int) -> bool:
    """Whether a train row is written after ``step`` steps; without ``disp_freq`` there are a hundred in the run."""
    freq = job.disp_freq or max(1, job.train_steps // 100)
    return due(step, freq, job.disp_after) or step == job.train_steps


def next_stop(job: Job, step: int) -> int:
    """Return the first step after ``step`` at which training pauses, at the latest the last."""
    phases, stops = training_phases(job), [next_due(step, job.checkpoint_freq, job.checkpoint_after)]
    if Phase.kVal in phases:
        stops.append(next_due(step, job.validate_freq, job.validate_after))
    if Phase.kTest in phases:
        stops.append(next_due(step, job.test_freq, job.test_after))
    return min(stop for stop in (*stops, job.train_steps) if stop is not None)


def all_begin(job: Job, topology: Topology, step: int) -> int:
    """Return the step at which all worker groups of a run from ``step`` are there: group 0 warms up alone."""
    return max(step, min(topology.warmup, job.train_steps)) if topology.groups > 1 else step


class RoundLength:
    """How many steps make a round of about a second, ``most`` at the most, learnt from the rounds before.

    ``workers`` are all of the run; above 32 a round lasts a second for each 32 of them.
    """

    def __init__(self, most: int | None = None, workers: int = 1) -> None:
        self.steps = 1
        self._most = most
        self._seconds = max(ROUND_SECONDS, workers / TASKS_PER_SECOND)

    def learn(self, seconds: Sequence[float]) -> None:
        """Take the seconds of each step of a round into account; growth is gradual, for first steps are slow."""
        per_step = sorted(seconds)[len(seconds) // 2]
        wanted = max(1, int(self._seconds / max(per_step, 1e-6)))
        self.steps = min(wanted, self.steps * 8, self._most or wanted)
