"""Whether the jobs of datasets/ learn what they are for, with several seeds: slow, but for one second of PPO."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import rl
from dsinga.job import Job

DATASETS = Path(__file__).parents[2] / "datasets"


def load(path: str, *changes: str) -> Job:
    return dsinga.load(DATASETS / f"{path}.conf", changes)


def returns(job: Job) -> Any:
    """Train a job and return the mean returns of its evaluations by the best actions."""
    return rl.train(job, progress=False).history.phase("test")[:, "episode_return"]


@pytest.mark.slow
@pytest.mark.parametrize("seed", range(1, 6))
@pytest.mark.parametrize("path", ["cartpole/ppo", "cartpole/a2c", "cartpole/dqn", "cartpole/dqn double"])
def test_a_job_reaches_the_return_that_counts_as_solved(path: str, seed: int) -> None:
    path, _, double = path.partition(" ")
    changes = [f"reinforcement.dqn_conf.double={str(bool(double)).lower()}"] if path.endswith("dqn") else []
    assert returns(load(path, f"seed={seed}", *changes))[-1] >= 475


@pytest.mark.slow
@pytest.mark.process
@pytest.mark.timeout(900)
@pytest.mark.parametrize("seed", range(1, 6))
def test_dqn_balances_the_pole_with_four_actors(seed: int) -> None:
    changes = "num_actors=4", "num_environments=1", "rollout_steps=32", "max_staleness=3", "dqn_conf.last_epsilon=0.2"
    job = load("cartpole/dqn", f"seed={seed}", *(f"reinforcement.{change}" for change in changes))
    agent = rl.train(job, progress=False).agent
    assert rl.evaluate(agent, "CartPole-v1", 100, seed=seed + 1000).mean_return >= 475


@pytest.mark.slow
@pytest.mark.parametrize(
    ("path", "seeds", "least"),
    [
        ("acrobot/ppo", [None], -90),
        ("pendulum/ddpg", [1, 2, 3], -200),
        ("pendulum/td3", [1, 2, 3], -200),
        ("mountaincar/ddpg", [1], 90),  # by correlated noise
        ("mountaincar/ddpg", [2], 90),
        ("mountaincar/ddpg", [3], 90),
    ],
)
def test_other_tasks_are_solved_in_the_median_of_seeds(path: str, seeds: list[Any], least: float) -> None:
    ends = [returns(load(path, *([] if seed is None else [f"seed={seed}"])))[-1] for seed in seeds]
    assert np.median(ends) >= least


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
    job = load("cartpole/ppo", *changes, "train_steps=200000", "test_freq=25000")
    assert job.reinforcement is not None
    job.reinforcement.ppo_conf = None
    assert max(returns(job)) >= least


@pytest.mark.slow
def test_expected_sarsa_learns_to_balance() -> None:
    settings = "algorithm=kExpectedSARSA", "expectedsarsa_conf.target_every=1", "expectedsarsa_conf.target_share=0.01"
    job = load("cartpole/dqn", *(f"reinforcement.{setting}" for setting in settings), "train_steps=100000")
    assert job.reinforcement is not None
    job.reinforcement.dqn_conf = None
    assert max(returns(job)) >= 300


def test_ppo_learns_something_in_a_second() -> None:
    job = load("cartpole/ppo", "train_steps=8192", "reinforcement.evaluation_episodes=16")
    assert returns(job)[-1] > 60  # a random policy reaches some 20
