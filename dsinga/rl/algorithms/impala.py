"""IMPALA: learns from rollouts of older policies, corrected by V-trace."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import ClassVar

import numpy as np

from dsinga.base.registry import register
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, LayerConf, LayerType, NetConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Limit, NonNegative, Positive
from dsinga.reading.bind_records import input_layer
from dsinga.rl.algorithm import rmsprop
from dsinga.rl.algorithms.actor_critic import (
    ACTION,
    LOG_PROBABILITY,
    POLICY_LOSS,
    ActorCritic,
    distribution_of,
    entropy_loss,
)
from dsinga.rl.environments.spaces import DiscreteSpace, Spaces
from dsinga.rl.experience import Rollout
from dsinga.rl.model import Model

# The input layers of the learner besides those of other algorithms.
REWARD, DISCOUNT = "rl_reward", "rl_discount"
INPUTS = ACTION, LOG_PROBABILITY, REWARD, DISCOUNT


@register("learning_algorithm", kIMPALA=3)
class IMPALA(ActorCritic):
    """The learner of IMPALA (Espeholt et al. 2018): one update by each rollout, by the loss kVTraceLoss.

    The rollout's actions may be those of older params: "log_probability" is that of the policy that has acted. All
    layers of the model compute the steps of a rollout together (``per_step``).

    Args:
        model: the net; its heads are the policy and the value.
        spaces: the spaces of the environment.
        discount: factor of the next step's reward, gamma.
        updater: the updater; by default RMSProp at a rate of 0.0006, as in the paper.
        seed: determines the initial params.
    """

    class Conf(Settings):
        """Settings of kIMPALA."""

        rho_clip: Positive = setting(1.0, "largest ratio of probabilities in the errors of values")
        c_clip: Positive = setting(1.0, "largest ratio in the factors that carry later errors back")
        value_scale: NonNegative = setting(0.5, "factor of half of the squared error of the value")
        entropy_scale: NonNegative = setting(0.01, "factor of the entropy of the policy")
        max_gradient_norm: Limit = setting(
            40.0,
            "the gradient of the mean over environments of the sum over steps is scaled down to this Euclidean norm; "
            "0 for no limit",
        )

    settings: Conf

    default_updater: ClassVar = rmsprop(6e-4, rho=0.99, epsilon=0.01)
    corrects_older_actions: ClassVar[bool] = True

    def losses(self, model: Model, spaces: Spaces) -> list[LayerConf]:
        """Return none for the net of single steps; keep those of the nets that learn from rollouts."""
        policy, value, chosen = model.head(0, "the policy"), model.head(1, "the value of a state"), self.settings
        clips = {"rho_clip": chosen.rho_clip, "c_clip": chosen.c_clip}
        conf = {"distribution": distribution_of(spaces.action), **clips, "value_scale": chosen.value_scale}
        sources = [policy, value, *INPUTS]
        loss = LayerConf(name=POLICY_LOSS, type=LayerType.kVTraceLoss, srclayers=sources, vtraceloss_conf=conf)
        self._losses = [loss]
        if chosen.entropy_scale:
            self._losses.append(entropy_loss(policy, chosen.entropy_scale, spaces.action, per_step=True))
        self._learners: dict[int, LocalNet] = {}  # by the steps of a rollout
        return []

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Do one update by a rollout of actions by these or older params; return its metrics."""
        steps = len(batch.rewards)
        if steps not in self._learners:
            job, example = self.learning_net(steps)
            self._learners[steps] = LocalNet(job, example, threads=1, is_small=True)
        self.learner = self._learners[steps]
        return super().learn(batch)

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Yield a rollout as the batch of one update."""
        yield self._sequences(rollout)

    def learning_net(self, steps: int) -> tuple[Job, dict[str, np.ndarray]]:
        """Return the job of the net that computes ``steps`` steps of each environment, and one more, together."""
        net = NetConf(layer=[*self.model.layers_over(steps + 1), *map(input_layer, INPUTS), *self._losses])
        observation, action = self.spaces.observation, self.spaces.action
        example = {name: np.zeros((1, steps), np.float32) for name in INPUTS}
        example[self.model.input] = np.zeros((1, steps + 1, *observation.shape), observation.dtype)
        if action.shape:
            example[ACTION] = np.zeros((1, steps, math.prod(action.shape)), np.float32)
        return self.net.job.replace(neuralnet=net), example

    def _sequences(self, rollout: Rollout) -> dict[str, np.ndarray]:
        """Return a rollout as records of the learner's input layers, a row for each environment."""
        ended = rollout.terminated | rollout.truncated
        rewards = rollout.rewards + np.float32(self.discount) * rollout.bootstrap
        actions = rollout.actions.reshape(*rollout.rewards.shape, -1)
        by_layer = {
            self.model.input: np.concatenate([rollout.observations, rollout.last_observations[np.newaxis]]),
            ACTION: actions[..., 0] if isinstance(self.spaces.action, DiscreteSpace) else actions,
            LOG_PROBABILITY: rollout.extras["log_probability"],
            REWARD: rewards,
            DISCOUNT: np.where(ended, 0, self.discount),
        }
        for name, array in by_layer.items():
            dtype = array.dtype if name == self.model.input else np.float32
            by_layer[name] = np.ascontiguousarray(array.swapaxes(0, 1), dtype)
        return by_layer
