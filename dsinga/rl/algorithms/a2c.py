"""A2C, advantage actor-critic: one update by each short rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Limit, NonNegative, Unit
from dsinga.rl.algorithms.actor_critic import ActorCritic, normalized
from dsinga.rl.experience import Rollout
from dsinga.rl.updaters import rmsprop


@register("learning_algorithm", kA2C=1)
class A2C(ActorCritic):
    """Advantage actor-critic (Mnih et al. 2016, synchronous), for discrete actions and for boxes of numbers.

    Args:
        model: the net; its heads are the policy and the value.
        spaces: the spaces of the environment.
        discount: factor of the next step's reward, gamma.
        updater: the updater; by default RMSProp at a rate of 0.0007.
        seed: determines the initial params.
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
