"""DDPG and TD3: learn deterministic policies of continuous actions from a replay memory."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.engine.local_net import LocalNet, Means
from dsinga.job import LayerConf, LayerType, UpdaterConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Natural, NonNegative, Unit
from dsinga.reading.bind_records import input_layer
from dsinga.rl.algorithm import Algorithm, adam, copy_params, follow
from dsinga.rl.environments.spaces import BoxSpace, Spaces
from dsinga.rl.experience import Sampled, Transitions
from dsinga.rl.model import Model, critic_layers, critic_of, with_static_params
from dsinga.training.local_updater import LocalUpdater

# The input and loss layers that DDPG and TD3 add to a model; a critic's loss also has its value's name.
TARGET, WEIGHT, ACTOR_LOSS, CRITIC_LOSS = "rl_target", "rl_weight", "rl_actor_loss", "rl_critic_loss_"


@register("learning_algorithm", kDDPG=6)
class DDPG(Algorithm):
    """Learns continuous actions: a deterministic actor, trained by the values that a critic gives its actions.

    Lillicrap et al., Continuous control with deep reinforcement learning, 2016. The model is one net. Its first head is
    the action: numbers from -1 to 1, as from kTanh, scaled to the action space's bounds. Its second head is the value
    of observation and action, with the first head as a source. Other layers that the value needs belong to the critic,
    even if the actor uses them too.

    An update lowers the critic's squared error for the target reward + discount·Q'(next observation, its action by the
    target params). Then it raises the mean value of the actor's actions, with a fixed critic.

    Args:
        spaces: the environment's spaces; actions are a box with bounds.
        updater: the actor's updater; defaults to Adam with a learning rate of 0.001.
    """

    class Conf(Settings):
        """Settings of kDDPG."""

        noise: NonNegative = setting(
            0.1, "standard deviation of the noise that is added to actions from -1 to 1, to explore"
        )
        noise_correlation: Unit = setting(
            0.0,
            "correlation of the noise of two steps. Above 0 it is an Ornstein-Uhlenbeck process, exp(-theta·dt), and "
            "pushes one way for about 1/(1 - correlation) steps, also across episodes",
        )
        random_steps: Natural = setting(1000, "the number of first steps of environments with random actions")
        target_share: Unit = setting(
            0.005, "how far the target params move towards the params in an update, from 0 to 1"
        )
        critic_updater: UpdaterConf | None = setting(
            None, "the critic's updater, by default Adam with a learning rate of 0.001"
        )

    settings: Conf

    default_updater: ClassVar = adam(1e-3)
    on_policy: ClassVar[bool] = False
    critics: ClassVar[int] = 1

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        updater: UpdaterConf | None = None,
        seed: int = 0,
        **settings: Any,  # which are self.settings already
    ):
        self.low, self.high = self._bounds(spaces)
        action = model.head(0, "actions")
        self._values = [model.head(1 + k, "the value of an action") for k in range(self.critics)]
        critic = critic_of(model, action, self._values)
        self.critic_net = LocalNet(
            critic.job(self._critic_losses(), self.settings.critic_updater or adam(1e-3), seed),
            self._critic_examples(model, spaces),
            threads=1,
            is_small=True,
        )
        super().__init__(
            with_static_params(model, critic_layers(model, action, self._values), self.critic_net.net),
            spaces,
            layers=[_actor_loss(self._values[0])],
            updater=updater,
            seed=seed,
        )
        self.critic_updater = self.critic_net.updater()
        self.target_params = copy_params(self.params)
        self.sampled = 0
        self.latest_noise = np.zeros((0, *spaces.action.shape), np.float32)

    def check_heads(self) -> None:
        """Raise UserError unless the model's heads are an action and its value."""
        actions = self.spaces.action
        self.check_head(self.model.heads[0], math.prod(actions.shape), f"actions that are {actions}")
        for value in self._values:
            self.check_head(value, 1, "the value of an action")

    def _bounds(self, spaces: Spaces) -> tuple[np.ndarray, np.ndarray]:
        space, name = spaces.action, type(self).__name__
        if not isinstance(space, BoxSpace):
            raise UserError(f"{name} takes actions that are numbers, but those of the environment are {space}; use DQN")
        if not (np.isfinite(space.low).all() and np.isfinite(space.high).all()):
            raise UserError(
                f"{name} takes actions with bounds, but those of the environment, {space}, have none; give its "
                "action_space bounds (gymnasium.wrappers has RescaleAction), or use PPO"
            )
        return space.low.astype(np.float32), space.high.astype(np.float32)

    def _critic_losses(self) -> list[LayerConf]:
        losses = [
            LayerConf(name=f"{CRITIC_LOSS}{value}", type=LayerType.kEuclideanLoss, srclayers=[value, TARGET, WEIGHT])
            for value in self._values
        ]
        return [input_layer(TARGET), input_layer(WEIGHT), *losses]

    def _critic_examples(self, model: Model, spaces: Spaces) -> dict[str, np.ndarray]:
        number = np.zeros((1, 1), np.float32)
        observation = np.zeros((1, *spaces.observation.shape), spaces.observation.dtype)
        action = np.zeros((1, math.prod(spaces.action.shape)), np.float32)
        return {model.input: observation, model.heads[0]: action, TARGET: number, WEIGHT: number}

    def predict(self, observations: np.ndarray) -> np.ndarray:
        """Return the actor's action for each observation, (N, n) float32, within the bounds."""
        return self._from_unit(self._actions(self.params, observations))

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> Sampled:
        """Return the actor's actions with noise, to explore; in the first steps, uniformly random actions."""
        shape = (len(observations), *self.spaces.action.shape)
        if self.sampled < self.settings.random_steps:
            actions = rng.random(shape, np.float32) * 2 - 1
        else:
            actions = self._actions(self.params, observations).reshape(shape) + self._draw_noise(shape, rng)
        self.sampled += len(observations)
        return Sampled(self._from_unit(actions), {})

    def act_as(self, actor: int, actors: int, params: dict[str, np.ndarray], sampled: int) -> None:
        """Prepare this copy to act as a remote actor: restart its noise; ``params`` are also the target params."""
        super().act_as(actor, actors, params, sampled)
        self.target_params, self.latest_noise = params, self.latest_noise[:0]

    def _draw_noise(self, shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
        """Draw the exploration noise of the next actions, (N, ...); another N restarts correlated noise."""
        noise = rng.standard_normal(shape, np.float32) * np.float32(self.settings.noise)
        if self.settings.noise_correlation:
            if self.latest_noise.shape == shape:
                correlation = np.float32(self.settings.noise_correlation)
                noise = correlation * self.latest_noise + np.sqrt(1 - correlation**2) * noise
            self.latest_noise = noise
        return noise

    def targets(self, batch: Transitions) -> np.ndarray:
        """Return the values (B,) float32 that the critic should give the actions of a batch."""
        return self._targets(batch, self._target_actions(batch.next_observations))

    def errors(self, batch: Transitions) -> np.ndarray:
        """Return the first critic's temporal-difference errors (B,), as priorities in prioritised replay."""
        batch.targets = self.targets(batch)
        values = self._critic_values(self.params, batch.observations, self._to_unit(batch.actions))
        return values[0] - batch.targets

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the metrics that :meth:`learn` returns."""
        return "loss", "value"

    @property
    def updaters(self) -> Sequence[LocalUpdater]:
        """The updaters of actor and critic."""
        return self.updater, self.critic_updater

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Update critic, actor and target params; return the critic's "loss" and the actor's mean "value"."""
        metrics = self._learn_critic(batch)
        value = self._learn_actor(batch)
        follow(self.target_params, self.params, self.settings.target_share)
        return {"loss": metrics["loss"], "value": value}

    def _learn_critic(self, batch: Transitions) -> Means:
        rows = {
            self.model.input: batch.observations,
            self.model.heads[0]: self._to_unit(batch.actions),
            TARGET: batch.take_targets(self.targets).reshape(-1, 1),
            WEIGHT: batch.weights.reshape(-1, 1),
        }
        gradients, metrics = self.critic_net.backward(self.params, rows, step=self.critic_updater.steps)
        self.critic_updater.step(self.params, gradients)
        return metrics

    def _learn_actor(self, batch: Transitions) -> float:
        """Update the actor; return the mean value that the critic gives its actions."""
        return -self.update({self.model.input: batch.observations})["loss"]

    def _target_actions(self, observations: np.ndarray) -> np.ndarray:
        """Return the target actor's actions for observations, (B, n) from -1 to 1."""
        return self._actions(self.target_params, observations)

    def _targets(self, batch: Transitions, actions: np.ndarray) -> np.ndarray:
        values = np.minimum.reduce(self._critic_values(self.target_params, batch.next_observations, actions))
        return batch.rewards + batch.discounts * np.where(batch.terminated, np.float32(0), values)

    def _actions(self, params: Mapping[str, np.ndarray], observations: np.ndarray) -> np.ndarray:
        action = self.model.heads[0]
        actions = self.net.forward(params, observations, layers=(action,)).outputs[action]
        return actions.reshape(len(actions), -1)

    def _critic_values(
        self, params: Mapping[str, np.ndarray], observations: np.ndarray, actions: np.ndarray
    ) -> Sequence[np.ndarray]:
        rows = {self.model.input: observations, self.model.heads[0]: actions}
        outputs = self.critic_net.forward(params, rows, layers=tuple(self._values)).outputs
        return [outputs[value].reshape(-1) for value in self._values]

    def _to_unit(self, actions: np.ndarray) -> np.ndarray:
        return ((actions - self.low) / (self.high - self.low) * 2 - 1).reshape(len(actions), -1)

    def _from_unit(self, actions: np.ndarray) -> np.ndarray:
        """Scale numbers from -1 to 1 to the bounds of actions, (N, ...)."""
        shares = (np.clip(actions, -1, 1).reshape(len(actions), *self.low.shape) + 1) / 2
        return self.low + shares * (self.high - self.low)

    def state(self) -> dict[str, Any]:
        """Return the state of learning, with target params, sampled steps and latest noise."""
        return {
            **super().state(),
            "target": self.target_params,
            "critic_updater": self.critic_updater.state,
            "critic_steps": self.critic_updater.steps,
            "sampled": self.sampled,
            "noise": self.latest_noise,
        }

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`Algorithm.restore`."""
        critic_updater = self.critic_updater.copy()
        critic_updater.resume_learnt(state["critic_updater"], int(state["critic_steps"]))
        super().restore(state)
        self.critic_updater = critic_updater
        self.target_params = {name: np.array(value, np.float32) for name, value in state["target"].items()}
        self.sampled = int(state["sampled"])
        self.latest_noise = np.array(state["noise"], np.float32)


def _actor_loss(value: str) -> LayerConf:
    return LayerConf(name=ACTOR_LOSS, type=LayerType.kMeanLoss, srclayers=[value], meanloss_conf={"scale": -1.0})


@register("learning_algorithm", kTD3=7)
class TD3(DDPG):
    """DDPG with fewer overestimated values, by the three changes of Fujimoto et al. 2018.

    The paper is "Addressing function approximation error". Targets use the smaller of two critics' values, and noisy
    actions. The actor and the target params change in every ``actor_every``-th update of the critics, by default every
    second. The model's heads are the action, its value, and its value by the second critic.
    """

    class Conf(DDPG.Conf):
        """Settings of kTD3."""

        target_noise: NonNegative = setting(0.2, "standard deviation of the noise in targets, for actions from -1 to 1")
        target_noise_limit: NonNegative = setting(0.5, "the largest noise in targets, for actions from -1 to 1")
        actor_every: Count = setting(2, "how many updates of the critics come before each of the actor")

    settings: Conf
    critics: ClassVar[int] = 2

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Update the critics, and in every ``actor_every``-th call the actor; return "loss" and any "value"."""
        metrics: dict[str, Any] = {"loss": self._learn_critic(batch)["loss"]}
        if self.critic_updater.steps % self.settings.actor_every == 0:
            metrics["value"] = self._learn_actor(batch)
            follow(self.target_params, self.params, self.settings.target_share)
        return metrics

    def _target_actions(self, observations: np.ndarray) -> np.ndarray:
        """Return the target actor's actions plus clipped noise, determined by the seed and the updates so far."""
        actions = super()._target_actions(observations)
        rng = np.random.default_rng([self.seed, self.critic_updater.steps])
        noise = rng.standard_normal(actions.shape, np.float32) * np.float32(self.settings.target_noise)
        limit = self.settings.target_noise_limit
        return np.clip(actions + np.clip(noise, -limit, limit), -1, 1)
