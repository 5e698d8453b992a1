"""Rollouts and statistics of episodes, beside what the environment is known to do."""

import numpy as np
import pytest

from dsinga import rl
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


@pytest.mark.parametrize("count", [2, 8])
def test_a_restored_collector_goes_on_with_the_same_bits(count):
    rngs = [np.random.default_rng(0), np.random.default_rng(0)]

    def policy(rng):
        return lambda observations: rl.Sampled(rng.integers(0, 2, count), {})

    unbroken = Collector(make_environments("CartPole-v1", count, seed=1))
    unbroken.rollout(policy(rngs[0]), 50)
    rngs[1].bit_generator.state = rngs[0].bit_generator.state
    resumed = Collector(make_environments("CartPole-v1", count, seed=1))
    resumed.restore(unbroken.state())
    rollout, again = unbroken.rollout(policy(rngs[0]), 50), resumed.rollout(policy(rngs[1]), 50)
    for name in ("observations", "rewards", "terminated", "last_observations"):
        np.testing.assert_array_equal(getattr(rollout, name), getattr(again, name))
    assert unbroken.ended == resumed.ended
    assert len(unbroken.ended) > count
    assert unbroken.statistics.summary() == resumed.statistics.summary()
    assert unbroken.statistics.steps == resumed.statistics.steps == 100 * count


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
