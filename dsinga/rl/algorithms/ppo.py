"""A2C and PPO: actor-critics that update once (A2C), or several times with a clipped loss (PPO), on each rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf, LayerType
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Limit, NonNegative, Positive, Unit
from dsinga.rl.algorithm import adam, rmsprop
from dsinga.rl.algorithms.actor_critic import (
    ACTION,
    ADVANTAGE,
    LOG_PROBABILITY,
    POLICY_LOSS,
    ActorCritic,
    distribution_of,
    normalized,
)
from dsinga.rl.environments.spaces import Space
from dsinga.rl.experience import Rollout


@register("learning_algorithm", kA2C=1)
class A2C(ActorCritic):
    """Advantage actor-critic, with one update on each rollout (Mnih et al. 2016, synchronous).

    Args:
        model: the net; its heads are the policy and the value.
        updater: defaults to RMSProp at a rate of 0.0007.
    """

    class Conf(Settings):
        """Settings of kA2C."""

        decay: Unit = setting(
            1.0, "weight of later errors in an advantage, lambda; 1 for the returns of the rollout, as in the paper"
        )
        value_scale: NonNegative = setting(0.5, "factor of the squared error of the value")
        entropy_scale: NonNegative = setting(0.0, "factor of the entropy of the policy")
        normalize_advantages: bool = setting(
            False, "whether the advantages of a rollout get mean 0 and standard deviation 1"
        )
        max_gradient_norm: Limit = setting(0.5, "the gradient is scaled down to this Euclidean norm; 0 for no limit")

    settings: Conf

    default_updater: ClassVar = rmsprop(7e-4, rho=0.99, epsilon=1e-5)
    learns_sequences: ClassVar[bool] = True

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Yield all steps of a rollout as the batch of one update."""
        advantages, returns = self.estimate(rollout)
        if self.settings.normalize_advantages:
            advantages = normalized(advantages, self.mean)
        yield self.rows(rollout, advantages, returns)


@register("learning_algorithm", kPPO=0)
class PPO(ActorCritic):
    """Proximal policy optimisation (Schulman et al. 2017), for discrete actions and boxes of numbers.

    Each rollout is learnt in ``epochs`` passes, in ``minibatches`` parts of random steps each; of a model with hidden
    states, of all steps of random environments.

    Args:
        model: the net; its heads are the policy and the value.
        updater: defaults to Adam at a rate of 0.0003.
    """

    class Conf(Settings):
        """Settings of kPPO."""

        clip: Positive = setting(0.2, "by how much the probability of an action may change before its gradient ends")
        epochs: Count = setting(4, "the number of passes over a rollout")
        minibatches: Count = setting(4, "into how many minibatches a pass is divided, each for an update")
        decay: Unit = setting(0.95, "weight of later errors in an advantage, lambda")
        value_scale: NonNegative = setting(0.5, "factor of the squared error of the value")
        entropy_scale: NonNegative = setting(0.0, "factor of the entropy of the policy")
        normalize_advantages: bool = setting(
            True, "whether the advantages of a minibatch get mean 0 and standard deviation 1"
        )
        max_gradient_norm: Limit = setting(0.5, "the gradient is scaled down to this Euclidean norm; 0 for no limit")

    settings: Conf

    default_updater: ClassVar = adam(3e-4, epsilon=1e-5)
    learns_sequences: ClassVar[bool] = True

    def policy_loss(self, policy: str, actions: Space) -> LayerConf:
        """Return the policy's loss layer, which clips ratios of new to old probabilities."""
        return LayerConf(
            name=POLICY_LOSS,
            type=LayerType.kPPOLoss,
            srclayers=[policy, ACTION, ADVANTAGE, LOG_PROBABILITY],
            ppoloss_conf={"distribution": distribution_of(actions), "clip": self.settings.clip},
        )

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Yield a rollout's minibatches, shuffled in each epoch."""
        advantages, returns = self.estimate(rollout)
        rows = self.rows(rollout, advantages, returns)
        rows[LOG_PROBABILITY] = self.as_rows(rollout.extras["log_probability"])[:, np.newaxis]
        rng = np.random.default_rng((self.seed, self.updater.steps))
        length = 1 if self.recurrence is None else len(rollout.rewards)  # steps that a minibatch keeps together
        size = -(-rollout.steps // length // self.settings.minibatches) * length
        for _ in range(self.settings.epochs):
            order = rng.permutation(rollout.steps // length)
            if length > 1:
                order = (order[:, np.newaxis] * length + np.arange(length)).reshape(-1)
            shuffled = {name: array[order] for name, array in rows.items()}
            for start in range(0, rollout.steps, size):
                part = {name: array[start : start + size] for name, array in shuffled.items()}
                if self.settings.normalize_advantages:
                    part[ADVANTAGE] = normalized(part[ADVANTAGE], self.mean)
                yield part
