"""The cases of the campaign, and the layer by which processes end in a pass of a step."""

from pathlib import Path

import pytest

from tools.chaos.cases import PASSES, PLACES, STEPS, draw
from tools.chaos.topologies import PLAN, TOPOLOGIES, job_of


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


@pytest.mark.parametrize("name", TOPOLOGIES)
def test_jobs_have_a_door_on_each_worker(name: str, stores: Path) -> None:
    job = job_of(TOPOLOGIES[name], stores, stores / PLAN, 20)
    doors = [layer for layer in job.neuralnet.layer if layer.user_type == "ChaosDoor"]
    assert [layer.location for layer in doors] == ([0, 1] if name == "layers-2" else [None, None])
