"""Returns, advantages and V-trace beside their definitions, computed step by step for each environment."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.rl.algorithms.actor_critic import discounted_returns, gae
from tests.support.v_trace import v_trace


def episodes(steps, environments, seed):
    """Rewards, values, ends and log ratios of a random rollout; a step in five ends an episode."""
    rng = np.random.default_rng(seed)
    shape = (steps, environments)
    kind = rng.integers(0, 10, shape)
    return {
        "rewards": rng.normal(size=shape),
        "values": rng.normal(size=shape),
        "terminated": kind == 0,
        "truncated": kind == 1,
        "bootstrap": np.where(kind == 1, rng.normal(size=shape), 0),
        "last_values": rng.normal(size=environments),
    }


def next_value(rollout, t, i, values):
    """What follows step ``t`` of environment ``i``, by the definition of an end."""
    if rollout["terminated"][t, i]:
        return 0.0
    if rollout["truncated"][t, i]:
        return rollout["bootstrap"][t, i]
    return values[t + 1, i] if t + 1 < len(values) else rollout["last_values"][i]


def errors(rollout, discount):
    values = rollout["values"]
    steps, environments = values.shape
    return np.array(
        [
            [
                rollout["rewards"][t, i] + discount * next_value(rollout, t, i, values) - values[t, i]
                for i in range(environments)
            ]
            for t in range(steps)
        ]
    )


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
    delta = errors(rollout, discount)
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
            ended = rollout["terminated"][end, i] or rollout["truncated"][end, i]
            after = next_value(rollout, end, i, values) if ended else rollout["last_values"][i]
            assert returns[t, i] == pytest.approx(expected + discount ** (end + 1 - t) * after, abs=1e-4)


@sizes
def test_v_trace_by_its_definition(steps, environments, seed, c_clip):
    rollout, discount, rho_clip = episodes(steps, environments, seed), 0.9, 1.2
    log_ratios = np.random.default_rng(seed + 1).normal(size=(steps, environments))
    delta = errors(rollout, discount)
    rho, c = np.minimum(rho_clip, np.exp(log_ratios)), np.minimum(c_clip, np.exp(log_ratios))
    targets = np.array(rollout["values"])
    for i in range(environments):
        for t in range(steps):
            for k in range(t, end_of_episode(rollout, t, i) + 1):
                targets[t, i] += discount ** (k - t) * np.prod(c[t:k, i]) * rho[k, i] * delta[k, i]
    advantages = np.array(
        [
            [
                rho[t, i]
                * (rollout["rewards"][t, i] + discount * next_value(rollout, t, i, targets) - rollout["values"][t, i])
                for i in range(environments)
            ]
            for t in range(steps)
        ]
    )
    traced = v_trace(log_ratios, **rollout, discount=discount, rho_clip=rho_clip, c_clip=c_clip)
    np.testing.assert_allclose(traced.targets, targets, atol=1e-4)
    np.testing.assert_allclose(traced.advantages, advantages, atol=1e-4)


def test_the_callers_arrays_stay_as_they_are():
    rollout = {
        name: array.astype(np.float32) if array.dtype == float else array for name, array in episodes(6, 2, 0).items()
    }
    copies = {name: array.copy() for name, array in rollout.items()}
    gae(**rollout, discount=0.9, decay=0.9)
    v_trace(np.zeros((6, 2), np.float32), **rollout, discount=0.9)
    assert all(np.array_equal(rollout[name], copies[name]) for name in rollout)
