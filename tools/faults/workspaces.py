"""Trains, kills, damages, deletes and resumes in one workspace, in any order: ``python -m tools.faults.workspaces``.

Whatever has happened to the workspace before, a training that ends well has the bits and the rows of metrics of a run
that nothing has disturbed, and one that does not ends with one message.
"""

from __future__ import annotations

import argparse
import collections
import os
import random
import shutil
import signal
import tempfile
from collections.abc import Callable
from pathlib import Path

from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, invariant, precondition, rule, run_state_machine_as_test

from dsinga.base.errors import UserError
from dsinga.checkpoint import read_checkpoint
from dsinga.monitor.run_monitor import read_metrics
from tools.faults.checkpoints import create, read_params
from tools.faults.damage import damage_bytes, damage_entry, files_of
from tools.faults.forked import Ended, run_forked
from tools.faults.moments import before_file_operation
from tools.faults.verdicts import MESSAGE, RIGHT, run_dsinga, verdict

LAST = 100  # the most steps of a workspace
FREQUENCY = 10  # steps between two checkpoints

counts: collections.Counter[str] = collections.Counter()  # of what has happened

original = Path()  # the folder with the job, its records, and the run "whole" that nothing disturbs


def train(workspace: Path, steps: int) -> int:
    """Resume, or begin where there is no checkpoint."""
    os.chdir(original)
    command = ["train", "job.conf", "--workspace", str(workspace), "--resume", "auto", "--set", f"train_steps={steps}"]
    return run_dsinga(command)


def train_until_killed(workspace: Path, steps: int, count: int) -> int:
    """Train, and end this process by SIGKILL before its operation number ``count`` on files of the workspace."""
    before_file_operation(workspace, count)
    return train(workspace, steps)


class Workspace(RuleBasedStateMachine):
    """The workspace, and what may happen to it."""

    def __init__(self) -> None:
        super().__init__()
        self.folder = Path(tempfile.mkdtemp(prefix="dsinga-workspace-"))
        self.workspace = self.folder / "run"

    def teardown(self) -> None:
        """Remove the workspace."""
        shutil.rmtree(self.folder, ignore_errors=True)

    def steps(self) -> list[int]:
        """Return the steps after which there are checkpoints, damaged ones included."""
        return sorted(int(path.name[4:]) for path in (self.workspace / "checkpoint").glob("step*"))

    def checkpoint(self, index: int) -> Path:
        """Return the folder of one of the checkpoints."""
        steps = self.steps()
        return self.workspace / "checkpoint" / f"step{steps[index % len(steps)]}"

    def next_step(self) -> int:
        """Return a step behind all checkpoints."""
        return max(self.steps(), default=0) + FREQUENCY

    def can_begin(self) -> bool:
        """Return whether there is an undamaged checkpoint, or none at all."""
        return not self.steps() or any(map(self.is_intact, self.steps()))

    def is_intact(self, step: int) -> bool:
        """Return whether a checkpoint can be read."""
        try:
            read_checkpoint(self.workspace / "checkpoint" / f"step{step}")
        except UserError:
            return False
        return True

    def run(self, *functions: Callable[[], int]) -> list[Ended]:
        """Run functions at once, each in a process of its own, and return how they ended."""
        ends = list(run_forked(enumerate(functions), self.folder, 60.0, len(functions)))
        counts.update("killed" if ended.status == -signal.SIGKILL else verdict(ended) for ended in ends)
        return ends

    def check(self, steps: int) -> None:
        """Compare params and metrics with those of the undisturbed run."""
        path = f"checkpoint/step{steps}"
        assert read_params(self.workspace / path) == read_params(original / "whole" / path)
        whole = read_metrics(original / "whole" / "metrics.jsonl")
        rows = read_metrics(self.workspace / "metrics.jsonl")
        assert list(rows[:, "step"]) == [step for step in whole[:, "step"] if step <= steps]
        assert list(rows[:, "loss"]) == list(whole[:, "loss"])[: len(rows)]

    @precondition(lambda self: self.next_step() <= LAST)
    @rule()
    def train_on(self) -> None:
        """Train to the next checkpoint; only where all checkpoints are damaged may that be refused."""
        steps, can_begin = self.next_step(), self.can_begin()
        [ended] = self.run(lambda: train(self.workspace, steps))
        assert verdict(ended) == (RIGHT if can_begin else MESSAGE), ended.output
        if can_begin:
            self.check(steps)

    @precondition(lambda self: self.next_step() <= LAST and self.can_begin())
    @rule(count=st.integers(0, 60))
    def train_and_be_killed(self, count: int) -> None:
        """Kill a training before one of its operations on files."""
        steps = self.next_step()
        [ended] = self.run(lambda: train_until_killed(self.workspace, steps, count))
        assert ended.status == -signal.SIGKILL or verdict(ended) == RIGHT, ended.output

    @precondition(lambda self: self.next_step() <= LAST and self.can_begin())
    @rule()
    def train_twice_at_once(self) -> None:
        """Start two trainings: one writes, the other one is refused, or comes later and finds the work done."""
        steps = self.next_step()
        ends = self.run(*[lambda: train(self.workspace, steps)] * 2)
        verdicts = {verdict(ended): ended.output for ended in ends}
        assert RIGHT in verdicts, verdicts
        assert verdicts.keys() <= {RIGHT, MESSAGE}, verdicts
        assert "another run is writing" in verdicts.get(MESSAGE, "another run is writing")
        self.check(steps)

    @precondition(lambda self: self.steps())
    @rule(index=st.integers(0, 9), seed=st.integers(0, 10**6), damage=st.sampled_from(("bytes", "entry")))
    def damage_checkpoint(self, index: int, seed: int, damage: str) -> None:
        """Damage a file of a checkpoint."""
        folder = self.checkpoint(index)
        chosen = random.Random(seed)
        counts["damaged"] += 1
        if files := files_of(folder):
            damage_bytes(chosen, chosen.choice(files)) if damage == "bytes" else damage_entry(chosen, folder)

    @precondition(lambda self: self.steps())
    @rule(index=st.integers(0, 9))
    def delete_checkpoint(self, index: int) -> None:
        """Delete a checkpoint."""
        counts["deleted"] += 1
        shutil.rmtree(self.checkpoint(index))

    @rule(text=st.sampled_from((b"", b"{}", b'{"pid": 1}', b"\0" * 9, b'{"host": "far", "pid": 7, "since": 0}')))
    def leave_lock(self, text: bytes) -> None:
        """Write nonsense, or what a process of another host has left, into the file of the lock."""
        self.workspace.mkdir(exist_ok=True)
        (self.workspace / "running.json").write_bytes(text)

    @invariant()
    def rows_grow(self) -> None:
        """Check that each row of metrics is of a later step than the one before it."""
        path = self.workspace / "metrics.jsonl"
        steps = list(read_metrics(path)[:, "step"]) if path.exists() else []
        assert steps == sorted(set(steps))


def main() -> None:
    """Run as many examples as the arguments ask for; raises AssertionError where one fails."""
    global original
    parser = argparse.ArgumentParser(prog="python -m tools.faults.workspaces")
    parser.add_argument("--examples", type=int, default=50, help="runs of random rules [50]")
    parser.add_argument("--steps", type=int, default=15, help="the most that happens in an example [15]")
    options = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="dsinga-faults-") as name:
        original = Path(name) / "original"
        original.mkdir()
        [created] = run_forked([(0, lambda: _create(original))], Path(name), 300.0, 1)
        assert created.status == 0, created.output
        chosen = settings(
            max_examples=options.examples, stateful_step_count=options.steps, deadline=None, database=None,
            suppress_health_check=list(HealthCheck), derandomize=True,
        )  # fmt: skip
        run_state_machine_as_test(Workspace, settings=chosen)
    print(", ".join(f"{count} {what}" for what, count in counts.items()))


def _create(folder: Path) -> int:
    os.chdir(folder)
    create(folder)
    return run_dsinga(["train", "job.conf", "--workspace", "whole", "--resume", "--set", f"train_steps={LAST}"])


if __name__ == "__main__":
    main()
