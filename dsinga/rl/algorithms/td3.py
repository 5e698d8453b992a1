"""TD3, twin delayed DDPG: two critics, noise in the targets, and an actor that learns less often."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.job.component import setting
from dsinga.job.limits import Count, NonNegative
from dsinga.rl.algorithms.ddpg import DDPG
from dsinga.rl.experience import Transitions
from dsinga.training.target_params import follow


@register("learning_algorithm", kTD3=7)
class TD3(DDPG):
    """DDPG with the three changes of Fujimoto et al., Addressing function approximation error, 2018.

    The model has a third head, the value by a second critic; a target is by the smaller value of the two. The action in
    a target gets noise. The actor and the target params change in every second update of the critics.

    The heads of the model are the action, its value, and its value by the second critic.

    Raises UserError as :class:`DDPG`.
    """

    class Conf(DDPG.Conf):
        """Settings of kTD3."""

        target_noise: NonNegative = setting(0.2, "standard deviation of the noise in targets, for actions from -1 to 1")
        target_noise_limit: NonNegative = setting(0.5, "the largest noise in targets, for actions from -1 to 1")
        actor_every: Count = setting(2, "how many updates of the critics come before each of the actor")

    settings: Conf
    critics: ClassVar[int] = 2

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Do one update by a batch, of the actor in every second; return "loss" and, with the actor's, "value"."""
        metrics: dict[str, Any] = {"loss": self._learn_critic(batch)["loss"]}
        if self.critic_updater.steps % self.settings.actor_every == 0:
            metrics["value"] = self._learn_actor(batch)
            follow(self.target_params, self.params, self.settings.target_share)
        return metrics

    def _target_actions(self, observations: np.ndarray) -> np.ndarray:
        """Return the actions of the target params with noise, which depends on the seed and the number of updates."""
        actions = super()._target_actions(observations)
        rng = np.random.default_rng([self.seed, self.critic_updater.steps])
        noise = rng.standard_normal(actions.shape, np.float32) * np.float32(self.settings.target_noise)
        limit = self.settings.target_noise_limit
        return np.clip(actions + np.clip(noise, -limit, limit), -1, 1)
