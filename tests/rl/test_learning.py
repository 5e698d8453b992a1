"""Whether the jobs of datasets/ learn what they are for: slow, a minute in all."""

from __future__ import annotations

from pathlib import Path

import pytest

import dsinga
from dsinga import rl

DATASETS = Path(__file__).parents[2] / "datasets"


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize(
    ("job", "least"), [("cartpole/ppo", 475), ("cartpole/a2c", 475)], ids=["cartpole-ppo", "cartpole-a2c"]
)
def test_a_job_reaches_the_return_that_counts_as_solved(job: str, least: float, seed: int) -> None:
    result = rl.train(dsinga.load(DATASETS / f"{job}.conf", [f"seed={seed}"]), progress=False)
    assert result.history[-1, "episode_return"] >= least


@pytest.mark.slow
def test_ppo_swings_the_double_pendulum_up() -> None:
    result = rl.train(dsinga.load(DATASETS / "acrobot" / "ppo.conf"), progress=False)
    assert result.history[-1, "episode_return"] >= -90


@pytest.mark.slow
@pytest.mark.parametrize(
    ("algorithm", "settings", "least"),
    [
        ("kREINFORCE", ["rollout_steps=500", "num_environments=8"], 300),
        ("kIMPALA", ["rollout_steps=20", "num_environments=16"], 300),
        ("kES", ["num_environments=4"], 200),
    ],
)
def test_other_algorithms_learn_to_balance(algorithm: str, settings: list[str], least: float) -> None:
    changes = [f"reinforcement.{setting}" for setting in (f"algorithm={algorithm}", *settings)]
    job = dsinga.load(DATASETS / "cartpole" / "ppo.conf", [*changes, "train_steps=200000", "test_freq=25000"])
    assert job.reinforcement is not None
    job.reinforcement.ppo_conf = None
    result = rl.train(job, progress=False)
    assert max(result.history.phase("test")[:, "episode_return"]) >= least


def test_ppo_learns_something_in_a_second() -> None:
    changes = ["train_steps=8192", "reinforcement.evaluation_episodes=16"]
    result = rl.train(dsinga.load(DATASETS / "cartpole" / "ppo.conf", changes), progress=False)
    assert result.history[-1, "episode_return"] > 60  # a random policy reaches some 20
