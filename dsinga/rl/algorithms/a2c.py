"""A2C, advantage actor-critic: one update by each short rollout."""

from __future__ import annotations

from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dsinga.job import LayerConf, LayerType, UpdaterConf
from dsinga.rl.algorithms.actor_critic import (
    ACTION,
    ADVANTAGE,
    POLICY_LOSS,
    ActorCritic,
    actor_critic_losses,
    distribution_of,
    normalized,
)
from dsinga.rl.experience import Rollout
from dsinga.rl.model import Model
from dsinga.rl.spaces import Space, Spaces
from dsinga.rl.updaters import rmsprop


class A2C(ActorCritic):
    """Advantage actor-critic (Mnih et al. 2016, synchronous), for discrete actions and for boxes of numbers.

    Args:
        model: the net; its heads are the policy and the value.
        spaces: the spaces of the environment.
        discount: factor of the next step's reward, gamma.
        decay: weight of later errors in an advantage, lambda; 1 for the returns of the rollout, as in the paper.
        value_scale: factor of the squared error of the value.
        entropy_scale: factor of the entropy of the policy.
        normalize_advantages: whether those of a rollout get mean 0 and standard deviation 1.
        max_gradient_norm: the gradient is scaled down to this Euclidean norm; 0 for no limit.
        updater: the updater; by default RMSProp at a rate of 0.0007.
        seed: determines the initial params.
    """

    learns_sequences: ClassVar[bool] = True

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        discount: float = 0.99,
        decay: float = 1.0,
        value_scale: float = 0.5,
        entropy_scale: float = 0.0,
        normalize_advantages: bool = False,
        max_gradient_norm: float = 0.5,
        updater: UpdaterConf | None = None,
        seed: int = 0,
    ):
        self.normalize_advantages = normalize_advantages
        loss = policy_gradient_loss(model.head(0, "the policy"), spaces.action)
        super().__init__(
            *(model, spaces, actor_critic_losses(model, spaces, loss, value_scale, entropy_scale)),
            discount=discount,
            decay=decay,
            max_gradient_norm=max_gradient_norm,
            updater=updater or rmsprop(7e-4, rho=0.99, epsilon=1e-5),
            seed=seed,
        )

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Yield all steps of a rollout as the batch of one update."""
        advantages, returns = self.estimate(rollout)
        if self.normalize_advantages:
            advantages = normalized(advantages, self.mean)
        yield self.rows(rollout, advantages, returns)


def policy_gradient_loss(policy: str, space: Space) -> LayerConf:
    """Return the loss layer of the policy gradient."""
    return LayerConf(
        name=POLICY_LOSS,
        type=LayerType.kPolicyGradientLoss,
        srclayers=[policy, ACTION, ADVANTAGE],
        policygradientloss_conf={"distribution": distribution_of(space)},
    )
