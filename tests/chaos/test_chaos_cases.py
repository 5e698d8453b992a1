"""The cases of the campaign, and the layer by which processes end in a pass of a step."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.chaos.cases import PASSES, PLACES, STEPS, draw
from tests.chaos.doors import Plan, moment_of, plan_at
from tests.chaos.topologies import PLAN, TOPOLOGIES, job_of

STRIKE = """
import os, sys
from types import SimpleNamespace
from dsinga.job import Phase
from tests.chaos.doors import ChaosDoor, Plan
from pathlib import Path

path = Path(sys.argv[1])
Plan(os.getpid(), "backward", 3, 0.0).write(path)
conf = SimpleNamespace(extensions={"door": {"plan": str(path)}}, name="door", srclayers=[])
door = ChaosDoor.__new__(ChaosDoor)
door._path = str(path)
for step in range(5):
    context = SimpleNamespace(phase=Phase.kTrain, step=step)
    door.compute_feature((), [1.0], context)
    print(step, flush=True)
    door.compute_gradient((), [1.0], None, 1.0, [True], context)
"""


def test_a_hundred_cases_have_all_places_and_topologies():
    cases = [draw(number, 1) for number in range(100)]
    assert {case.place for case in cases} == set(PLACES)
    assert {case.topology for case in cases} == set(TOPOLOGIES)
    assert all(case.step < STEPS[case.topology] and case.victim != case.second for case in cases)
    assert cases == [draw(number, 1) for number in range(100)]
    assert cases != [draw(number, 2) for number in range(100)]


def test_a_bridge_is_cut_only_where_there_is_one():
    cases = [draw(number, 1) for number in range(300)]
    assert all(TOPOLOGIES[case.topology].cuts for case in cases if case.place == "bridge")
    assert "bridge" in PASSES


def test_a_door_ends_its_process_in_its_pass_of_its_step(tmp_path: Path) -> None:
    done = subprocess.run(
        [sys.executable, "-c", STRIKE, str(tmp_path / PLAN)], capture_output=True, text=True, timeout=60, check=False
    )
    assert done.returncode == -signal.SIGKILL
    assert done.stdout.split() == ["0", "1", "2", "3"]
    assert moment_of(tmp_path / PLAN) is not None


def test_a_plan_for_another_process_does_nothing(tmp_path: Path) -> None:
    ours, others = Plan(os.getpid(), "forward", 0, 0.0), Plan(os.getpid() + 1, "forward", 0, 0.0)
    ours.write(tmp_path / "ours")
    others.write(tmp_path / "others")
    assert [plan_at(str(tmp_path / name)) for name in ("ours", "others", "none")] == [ours, None, None]


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_jobs_have_a_door_on_each_worker(name: str, stores: Path) -> None:
    job = job_of(TOPOLOGIES[name], stores, stores / PLAN, 20)
    doors = [layer for layer in job.neuralnet.layer if layer.user_type == "ChaosDoor"]
    assert [layer.location for layer in doors] == ([0, 1] if name == "layers-2" else [None, None])
