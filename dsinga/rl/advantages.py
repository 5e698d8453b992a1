"""Targets of learning from rollouts: returns, generalised advantage estimates and V-trace, as plain numpy functions.

All arrays are float32 or float64, (T, N): T successive steps of N environments. Where an episode ended in a step, no
reward of the next episode counts: after ``terminated`` nothing follows; after ``truncated`` the value of the final
observation, ``bootstrap``, stands for what would have followed. After the last step, ``last_values`` (N,) does.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np


class Advantages(NamedTuple):
    """Advantages (T, N) of the actions taken, and returns (T, N), the targets of the values: float32."""

    advantages: np.ndarray
    returns: np.ndarray


class VTrace(NamedTuple):
    """V-trace targets of the values (T, N), and advantages (T, N) for the policy gradient: float32."""

    targets: np.ndarray
    advantages: np.ndarray


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
    decay: float,
) -> Advantages:
    """Return generalised advantage estimates (Schulman et al. 2016, "High-dimensional continuous control").

    The advantage of a step is the sum of the temporal-difference errors from there to the end of the episode, each
    weighted by (discount x decay) to the power of its distance. ``values`` (T, N) are those of the observations before
    each step. ``decay``, the paper's lambda, is 0 for the error of one step and 1 for the whole return. Returns are
    advantages plus values.
    """
    ended = terminated | truncated
    following = _following_values(values, terminated, truncated, bootstrap, last_values)
    advantages = rewards + discount * following - values
    factors = (discount * decay * ~ended).astype(advantages.dtype)
    for step in range(len(rewards) - 2, -1, -1):
        advantages[step] += factors[step] * advantages[step + 1]
    return Advantages(_single(advantages), _single(advantages + values))


def discounted_returns(
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
) -> np.ndarray:
    """Return the discounted sum (T, N) float32 of the rewards from each step to the end of its episode."""
    returns = np.array(rewards, np.float64)
    following = np.asarray(last_values, np.float64)
    for step in range(len(rewards) - 1, -1, -1):
        following = np.where(truncated[step], bootstrap[step], following)
        following = returns[step] = returns[step] + discount * np.where(terminated[step], 0, following)
    return _single(returns)


def n_step_returns(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
    n: int,
) -> np.ndarray:
    """Return the discounted rewards of ``n`` steps plus the discounted value after them, (T, N) float32.

    Fewer steps count before the end of an episode or of the rollout.
    """
    ended = terminated | truncated
    following = _following_values(values, terminated, truncated, bootstrap, last_values)
    returns = one_step = rewards + discount * following
    for _ in range(min(n, len(rewards)) - 1):
        longer = rewards[:-1] + discount * returns[1:]
        returns = np.concatenate([np.where(ended[:-1], one_step[:-1], longer), one_step[-1:]])
    return _single(returns)


def v_trace(
    log_ratios: np.ndarray,
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
    rho_clip: float = 1.0,
    c_clip: float = 1.0,
) -> VTrace:
    """Return the V-trace targets of Espeholt et al. 2018, "IMPALA".

    ``log_ratios`` (T, N) are the logs of the probabilities of the actions by the policy that learns, less those by the
    policy that acted. The ratios are clipped at ``rho_clip`` in the temporal-difference errors and at ``c_clip`` in the
    factors that carry later errors back. With equal policies the targets are the n-step returns.
    """
    ended = terminated | truncated
    ratios = np.exp(log_ratios)
    rhos, factors = np.minimum(ratios, rho_clip), discount * np.minimum(ratios, c_clip) * ~ended
    following = _following_values(values, terminated, truncated, bootstrap, last_values)
    corrections = rhos * (rewards + discount * following - values)
    for step in range(len(rewards) - 2, -1, -1):
        corrections[step] += factors[step] * corrections[step + 1]
    targets = values + corrections
    following_targets = _following_values(targets, terminated, truncated, bootstrap, last_values)
    return VTrace(_single(targets), _single(rhos * (rewards + discount * following_targets - values)))


def _following_values(
    values: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, bootstrap: np.ndarray, last_values: np.ndarray
) -> np.ndarray:
    """Return what follows each step (T, N): the value of the next observation, or the one in its place at an end."""
    following = np.concatenate([values[1:], np.asarray(last_values)[np.newaxis]])
    return np.where(terminated, 0, np.where(truncated, bootstrap, following))


def _single(array: np.ndarray) -> np.ndarray:
    return array.astype(np.float32, copy=False)
