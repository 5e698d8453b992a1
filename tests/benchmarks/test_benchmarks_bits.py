"""Two versions are told apart by the bits of one param, by one metric, and by a job that only one of them has."""

import copy
from pathlib import Path

import numpy as np

from tools.benchmarks.bits import compare, train, with_earlier
from tools.benchmarks.bits_agents import AGENTS
from tools.benchmarks.bits_jobs import JOBS
from tools.benchmarks.bits_report import digest
from tools.benchmarks.bits_stores import write_stores


def test_a_run_is_compared_by_its_params_and_metrics(tmp_path: Path) -> None:
    write_stores(tmp_path)
    before = {name: train(name, JOBS["words"], None, tmp_path) for name in ("words", "again")}
    assert before["words"] == before["again"]
    assert [row[2:] for row in compare(before, before)] == [(3, 0, 0.0)] * 2
    after = copy.deepcopy(before)
    after["words"]["params"]["ip_weight"] = digest(np.zeros(3, np.float32))
    after["again"]["metrics"][-1]["loss"] += 0.5
    after["new"] = after["again"]
    assert compare(before, after) == [
        ("words", "ip_weight", 2, 1, 0.0),
        ("again", "", 3, 0, 0.5),
        ("new", "only in the second", 0, 1, 0.0),
    ]


def test_a_digest_tells_zeros_of_both_signs_and_shapes_apart() -> None:
    arrays = [np.zeros(4), -np.zeros(4), np.zeros((2, 2)), np.zeros(4, np.float32)]
    assert len({digest(array) for array in arrays}) == 4


def test_a_run_comes_after_those_whose_checkpoints_it_starts_from() -> None:
    assert with_earlier(("autoencoder",)) == ["rbm1", "rbm2", "autoencoder"]


def test_an_agent_is_compared_without_the_time_that_it_took(tmp_path: Path) -> None:
    before, after = ({"agent": AGENTS["agent-dqn"].compute(tmp_path, None)} for _ in range(2))
    assert compare(before, after) == [("agent", "", 6, 0, 0.0)]
    assert {"predicted", "sampled", "values_weight"} < before["agent"]["params"].keys()
    assert "episode_return" in before["agent"]["metrics"][-1]
