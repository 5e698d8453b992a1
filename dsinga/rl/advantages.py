"""Targets of learning from rollouts: returns and generalised advantage estimates, as plain numpy functions.

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
    following = following_values(values, terminated, truncated, bootstrap, last_values)
    advantages = rewards + discount * following - values
    factors = (discount * decay * ~ended).astype(advantages.dtype)
    for step in range(len(rewards) - 2, -1, -1):
        advantages[step] += factors[step] * advantages[step + 1]
    return Advantages(single(advantages), single(advantages + values))


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
    return single(returns)


def following_values(
    values: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, bootstrap: np.ndarray, last_values: np.ndarray
) -> np.ndarray:
    """Return what follows each step (T, N): the value of the next observation, or the one in its place at an end."""
    following = np.concatenate([values[1:], np.asarray(last_values)[np.newaxis]])
    return np.where(terminated, 0, np.where(truncated, bootstrap, following))


def single(array: np.ndarray) -> np.ndarray:
    """Return an array as float32."""
    return array.astype(np.float32, copy=False)
