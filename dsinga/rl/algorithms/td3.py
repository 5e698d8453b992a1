"""TD3, twin delayed DDPG: two critics, noise in the targets, and an actor that learns less often."""

from __future__ import annotations

from typing import Any, ClassVar

import numpy as np

from dsinga.arguments import check_range, check_whole
from dsinga.job import UpdaterConf
from dsinga.rl.algorithms.ddpg import DDPG
from dsinga.rl.experience import Transitions
from dsinga.rl.model import Model
from dsinga.rl.spaces import Spaces
from dsinga.training.target_params import follow


class TD3(DDPG):
    """DDPG with the three changes of Fujimoto et al., Addressing function approximation error, 2018.

    The model has a third head, the value by a second critic; a target is by the smaller value of the two. The action in
    a target gets noise. The actor and the target params change in every second update of the critics.

    Args:
        model: the net; its heads are the action, its value, and its value by the second critic.
        spaces, noise, noise_correlation, random_steps, target_share, updater, critic_updater, seed: as for
            :class:`DDPG`.
        target_noise: standard deviation of the noise in targets, for actions from -1 to 1.
        target_noise_limit: the noise is at most so large.
        actor_every: updates of the critics for each of the actor.

    Raises UserError as :class:`DDPG`.
    """

    critics: ClassVar[int] = 2

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        noise: float = 0.1,
        noise_correlation: float = 0.0,
        random_steps: int = 1000,
        target_share: float = 0.005,
        target_noise: float = 0.2,
        target_noise_limit: float = 0.5,
        actor_every: int = 2,
        updater: UpdaterConf | None = None,
        critic_updater: UpdaterConf | None = None,
        seed: int = 0,
    ):
        check_range("target_noise", target_noise, 0)
        check_range("target_noise_limit", target_noise_limit, 0)
        check_whole("actor_every", actor_every, 1)
        self.target_noise, self.target_noise_limit, self.actor_every = target_noise, target_noise_limit, actor_every
        super().__init__(
            *(model, spaces),
            noise=noise,
            noise_correlation=noise_correlation,
            random_steps=random_steps,
            target_share=target_share,
            updater=updater,
            critic_updater=critic_updater,
            seed=seed,
        )

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Do one update by a batch, of the actor in every second; return "loss" and, with the actor's, "value"."""
        metrics: dict[str, Any] = {"loss": self._learn_critic(batch)["loss"]}
        if self.critic_updater.steps % self.actor_every == 0:
            metrics["value"] = self._learn_actor(batch)
            follow(self.target_params, self.params, self.target_share)
        return metrics

    def _target_actions(self, observations: np.ndarray) -> np.ndarray:
        """Return the actions of the target params with noise, which depends on the seed and the number of updates."""
        actions = super()._target_actions(observations)
        rng = np.random.default_rng([self.seed, self.critic_updater.steps])
        noise = rng.standard_normal(actions.shape, np.float32) * np.float32(self.target_noise)
        limit = self.target_noise_limit
        return np.clip(actions + np.clip(noise, -limit, limit), -1, 1)
