"""REINFORCE: the policy gradient from returns of whole episodes."""

from __future__ import annotations

import warnings
from typing import ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Limit, NonNegative
from dsinga.rl.algorithm import adam
from dsinga.rl.algorithms.actor_critic import (
    ADVANTAGE,
    ActorCritic,
    discounted_returns,
    entropy_loss,
    mean_metrics,
    normalized,
)
from dsinga.rl.environments.spaces import Spaces
from dsinga.rl.experience import Rollout
from dsinga.rl.model import Model


@register("learning_algorithm", kREINFORCE=2)
class REINFORCE(ActorCritic):
    """Learns a policy from the returns of whole episodes (Williams 1992).

    The advantage of a step is the discounted return up to the end of its episode. If the model has a second head, its
    value is subtracted as a baseline. Episodes that do not end in the rollout are ignored, so use long rollouts.

    Args:
        model: the net; its heads are the policy and, optionally, the value.
        updater: defaults to Adam at a rate of 0.01.
    """

    class Conf(Settings):
        """Settings of kREINFORCE."""

        value_scale: NonNegative = setting(0.5, "factor of the squared error of the value")
        entropy_scale: NonNegative = setting(0.0, "factor of the entropy of the policy")
        normalize_advantages: bool = setting(
            True, "whether the advantages of an update get mean 0 and standard deviation 1"
        )
        max_gradient_norm: Limit = setting(0.5, "the gradient is scaled down to this Euclidean norm; 0 for no limit")

    settings: Conf
    default_updater: ClassVar = adam(0.01)

    def losses(self, model: Model, spaces: Spaces) -> list[LayerConf]:
        """Return the losses of policy and entropy, and of the value if there is a second head."""
        if len(model.heads) > 1:
            return super().losses(model, spaces)
        policy = model.head(0, "the policy")
        entropy = entropy_loss(policy, self.settings.entropy_scale, spaces.action)
        return [self.policy_loss(policy, spaces.action), entropy]

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Update the params from a rollout's ended episodes; return the metrics, {} if none ended."""
        ends = batch.terminated, batch.truncated, batch.bootstrap
        last = np.zeros(batch.rewards.shape[1], np.float32)
        returns = discounted_returns(batch.rewards, *ends, last, discount=self.discount)
        ended = batch.terminated | batch.truncated
        is_complete = np.logical_or.accumulate(ended[::-1])[::-1].reshape(-1)
        if not is_complete.any():
            warnings.warn(
                f"no episode ended in a rollout of {len(batch.rewards)} steps, so REINFORCE learnt nothing from it; "
                "raise rollout_steps above the length of episodes",
                stacklevel=2,
            )
            return {}
        advantages = returns - self.values_of(batch)[:-1] if len(self.model.heads) > 1 else returns
        rows = self.rows(batch, advantages, returns)
        rows = {name: rows[name][is_complete] for name in self.net.net.inputs}
        if self.settings.normalize_advantages:
            rows[ADVANTAGE] = normalized(rows[ADVANTAGE])
        return mean_metrics([self.update(rows)])
