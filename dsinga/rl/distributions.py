"""Distributions of actions by the numbers that a net gives: categorical for discrete actions, Gaussian for others."""

from __future__ import annotations

import math

import numpy as np

from dsinga.rl.environments.spaces import DiscreteSpace, Space

LOG_TWO_PI = math.log(2 * math.pi)


def sample_actions(policy: np.ndarray, space: Space, rng: np.random.Generator) -> tuple[np.ndarray, np.ndarray]:
    """Draw an action for each row of ``policy``; return the actions and the logs of their probabilities (N,) float32.

    ``policy`` (N, K) has scores of K discrete actions, whose softmax is their probabilities; or, for a box of n
    numbers, (N, 2n): means, and logs of standard deviations.
    """
    if isinstance(space, DiscreteSpace):  # the largest of scores with Gumbel noise is distributed as their softmax
        noise = rng.random(policy.shape, np.float32)
        actions = np.argmax(policy - np.log(-np.log(noise + np.float32(1e-20)) + np.float32(1e-20)), axis=1)
        return actions, log_probabilities(policy, actions, space)
    means, logs = np.split(policy, 2, axis=1)
    actions = means + np.exp(logs) * rng.standard_normal(means.shape, np.float32)
    return actions.reshape(-1, *space.shape), log_probabilities(policy, actions, space)


def best_actions(policy: np.ndarray, space: Space) -> np.ndarray:
    """Return the most probable action for each row of ``policy``."""
    if isinstance(space, DiscreteSpace):
        return np.argmax(policy, axis=1)
    return policy[:, : policy.shape[1] // 2].reshape(-1, *space.shape)


def log_probabilities(policy: np.ndarray, actions: np.ndarray, space: Space) -> np.ndarray:
    """Return the logs of the probabilities, or of the densities, of actions, (N,) float32."""
    if isinstance(space, DiscreteSpace):
        shifted = policy - policy.max(axis=1, keepdims=True)
        chosen = shifted[np.arange(len(actions)), actions]
        return chosen - np.log(np.exp(shifted).sum(axis=1))
    means, logs = np.split(policy, 2, axis=1)
    return -(0.5 * ((actions.reshape(means.shape) - means) / np.exp(logs)) ** 2 + logs + 0.5 * LOG_TWO_PI).sum(axis=1)


def policy_size(space: Space) -> int:
    """Return how many numbers a net gives for the distribution of actions of a space."""
    return space.n if isinstance(space, DiscreteSpace) else 2 * math.prod(space.shape)
