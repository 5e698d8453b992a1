"""Rollouts and statistics of episodes, beside what the environment is known to do."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import rl
from dsinga.job import Job
from dsinga.rl.collecting import Collector
from dsinga.rl.environments.registered import make_environments
from dsinga.rl.experience import LATEST, EpisodeStatistics


class Rising:
    """The observation is the number of steps; ends by itself after 3 steps, or is cut off after 2, by turns."""

    observation_space = rl.box((1,))
    action_space = rl.DiscreteSpace(10)

    def __init__(self):
        self.episodes = 0

    def reset(self, *, seed=None):
        self.steps, self.episodes = 0, self.episodes + 1
        return np.zeros(1, np.float32), {}

    def step(self, action):
        self.steps += 1
        terminated, truncated = self.steps == 3, self.steps == 2 and self.episodes % 2 == 0
        return np.full(1, self.steps, np.float32), float(action), terminated, truncated, {}


def sample(observations):
    """The action is one more than the observation."""
    actions = observations[:, 0].astype(np.int64) + 1
    return rl.Sampled(actions, {"value": observations[:, 0] * 2, "scores": np.tile(observations, 4)})


def test_a_rollout_by_hand():
    collector = Collector(make_environments(Rising, 2))
    rollout = collector.rollout(sample, 7, values=lambda observations: observations[:, 0] + 100)
    column = [0, 1, 2, 0, 1, 0, 1]
    np.testing.assert_array_equal(rollout.observations, np.stack([column, column], 1)[..., None])
    np.testing.assert_array_equal(rollout.actions[:, 0], np.add(column, 1))
    np.testing.assert_array_equal(rollout.rewards[:, 1], np.add(column, 1))
    np.testing.assert_array_equal(rollout.terminated[:, 0], [0, 0, 1, 0, 0, 0, 0])
    np.testing.assert_array_equal(rollout.truncated[:, 0], [0, 0, 0, 0, 1, 0, 0])
    np.testing.assert_array_equal(rollout.bootstrap[:, 1], [0, 0, 0, 0, 102, 0, 0])
    np.testing.assert_array_equal(rollout.last_observations, [[2], [2]])
    np.testing.assert_array_equal(rollout.extras["value"][:, 0], np.multiply(column, 2))
    assert rollout.extras["scores"].shape == (7, 2, 4)
    assert rollout.steps == 14
    assert rollout.actions.dtype == np.int64
    assert rollout.rewards.dtype == rollout.bootstrap.dtype == rollout.extras["value"].dtype == np.float32
    assert [(episode.total_reward, episode.length, episode.environment) for episode in collector.ended] == [
        (6, 3, 0),
        (6, 3, 1),
        (3, 2, 0),
        (3, 2, 1),
    ]


def test_the_next_rollout_goes_on_where_the_last_one_ended():
    together = Collector(make_environments(Rising, 1)).rollout(sample, 8)
    collector = Collector(make_environments(Rising, 1))
    apart = [collector.rollout(sample, steps) for steps in (3, 5)]
    for name in ("observations", "actions", "rewards", "terminated", "truncated", "bootstrap"):
        parts = np.concatenate([getattr(rollout, name) for rollout in apart])
        np.testing.assert_array_equal(parts, getattr(together, name))
    np.testing.assert_array_equal(apart[0].last_observations, apart[1].observations[0])
    assert not together.bootstrap.any()


def test_a_memory_is_given_each_step():
    class Kept(list):
        def add(self, observations, actions, step):
            self.append((observations[0, 0], actions[0], step.next_observations()[0, 0]))

    memory = Kept()
    collector = Collector(make_environments(Rising, 1))
    collector.fill(memory, sample, 5)
    assert memory == [(0, 1, 1), (1, 2, 2), (2, 3, 3), (0, 1, 1), (1, 2, 2)]
    assert len(collector.ended) == 2


def test_statistics_are_means_over_the_latest_episodes():
    collector = Collector(make_environments(Rising, 1))
    statistics = collector.statistics
    assert statistics.summary() == {}
    collector.rollout(sample, 3)
    assert statistics.summary() == {"episode_return": 6, "episode_length": 3}
    collector.rollout(sample, 2)
    assert statistics.summary() == {"episode_return": 4.5, "episode_length": 2.5}
    collector.rollout(sample, 5 * LATEST)
    assert statistics.episodes == 2 * LATEST + 2
    assert len(statistics.latest) == LATEST
    assert statistics.summary() == {"episode_return": 4.5, "episode_length": 2.5}
    again = EpisodeStatistics(1)
    again.restore(statistics.state())
    assert again.state().keys() == statistics.state().keys()
    assert again.latest == statistics.latest


# Whether the jobs of datasets/ learn what they are for, with several seeds: slow.
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
