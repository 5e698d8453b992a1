"""Returns and advantages beside their definitions, computed step by step for each environment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.rl.algorithms.actor_critic import discounted_returns, gae


def episodes(steps, environments, seed):
    """Rewards, values, ends and log ratios of a random rollout; a step in five ends an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    kind = rng.integers(0, 10, shape)
    return {
        "rewards": rng.normal(size=shape), "values": rng.normal(size=shape), "terminated": kind == 0,
        "truncated": kind == 1, "bootstrap": np.where(kind == 1, rng.normal(size=shape), 0),
        "last_values": rng.normal(size=environments),
    }  # fmt: skip


def next_values(rollout, values):
    """What follows each step, by the definition of an end."""
    following = np.append(values[1:], rollout["last_values"][None], axis=0)
    return np.where(rollout["terminated"], 0, np.where(rollout["truncated"], rollout["bootstrap"], following))


def end_of_episode(rollout, t, i):
    """The last step of the rollout that belongs to the episode of step ``t``."""
    ended = rollout["terminated"] | rollout["truncated"]
    while t + 1 < len(ended) and not ended[t, i]:
        t += 1
    return t


sizes = given(st.integers(1, 12), st.integers(1, 5), st.integers(0, 1000), st.sampled_from([0.0, 0.5, 0.99, 1.0]))


@sizes
def test_gae_is_the_weighted_sum_of_errors_to_the_end_of_the_episode(steps, environments, seed, decay):
    rollout, discount = episodes(steps, environments, seed), 0.9
    delta = rollout["rewards"] + discount * next_values(rollout, rollout["values"]) - rollout["values"]
    expected = np.zeros((steps, environments))
    for i in range(environments):
        for t in range(steps):
            for k in range(t, end_of_episode(rollout, t, i) + 1):
                expected[t, i] += (discount * decay) ** (k - t) * delta[k, i]
    advantages, returns = gae(**rollout, discount=discount, decay=decay)
    np.testing.assert_allclose(advantages, expected, atol=1e-5)
    np.testing.assert_allclose(returns, expected + rollout["values"], atol=1e-5)
    assert advantages.dtype == returns.dtype == np.float32


@sizes
def test_discounted_returns_add_up_rewards_to_the_end_of_the_episode(steps, environments, seed, discount):
    rollout = episodes(steps, environments, seed)
    values = rollout.pop("values")
    returns = discounted_returns(**rollout, discount=discount)
    for i in range(environments):
        for t in range(steps):
            end = end_of_episode(rollout, t, i)
            expected = sum(discount ** (k - t) * rollout["rewards"][k, i] for k in range(t, end + 1))
            after = discount ** (end + 1 - t) * next_values(rollout, values)[end, i]
            assert returns[t, i] == pytest.approx(expected + after, abs=1e-4)


def test_the_callers_arrays_stay_as_they_are():
    rollout = episodes(6, 2, 0)
    for name in ("rewards", "values", "bootstrap", "last_values"):
        rollout[name] = rollout[name].astype(np.float32)
    copies = {name: array.copy() for name, array in rollout.items()}
    gae(**rollout, discount=0.9, decay=0.9)
    assert all(np.array_equal(rollout[name], copies[name]) for name in rollout)
