"""Deep Q-learning (DQN), optionally double or dueling, and expected SARSA: values of discrete actions from replay."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import LayerConf, LayerType, UpdaterConf
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Count, Natural, NonNegative, Unit
from dsinga.reading.bind_records import input_layer
from dsinga.rl.algorithm import Algorithm, adam, copy_params, follow
from dsinga.rl.environments.spaces import DiscreteSpace, Spaces
from dsinga.rl.experience import Sampled, Transitions
from dsinga.rl.model import Model

# The input and loss layers that DQN adds to the net of a model.
ACTION, TARGET, WEIGHT, LOSS = "rl_action", "rl_target", "rl_weight", "rl_loss"


@register("learning_algorithm", kDQN=5)
class DQN(Algorithm):
    """Learns the value Q of each discrete action, by temporal differences of replayed transitions.

    Mnih et al., Human-level control through deep reinforcement learning, 2015. The target of an action's value is
    reward + discount·Q'(next observation, best action), where Q' has params of an earlier time. The best action comes
    from Q', or from Q with ``double`` (van Hasselt et al. 2016). A dueling net (Wang et al. 2016) is another model,
    which ends in a layer kDueling.

    Remote actors explore differently, as in Ape-X (Horgan et al. 2018). Actor i of N, from 0, takes random actions with
    probability epsilon to the power of 1 + ``actor_spread``·i/(N - 1).

    Args:
        model: the net; its first head has a value for each action.
        spaces: the environment's spaces; actions are discrete.
        updater: defaults to Adam with a learning rate of 0.001.
    """

    class Conf(Settings):
        """Settings of kDQN."""

        double: bool = setting(False, "whether the params choose the action that the target params value (double DQN)")
        delta: NonNegative = setting(1.0, "the error beyond which the loss is linear (Huber), 0 for none")
        target_every: Count = setting(250, "after how many updates the target params follow the params")
        target_share: Unit = setting(1.0, "how far the target params then move towards the params; 1 copies them")
        first_epsilon: Unit = setting(1.0, "the share of random actions at first")
        last_epsilon: Unit = setting(0.05, "the share of random actions after epsilon_steps; it falls linearly")
        epsilon_steps: Natural = setting(10_000, "steps of environments until the share is last_epsilon")
        actor_spread: NonNegative = setting(
            7.0, "how far the exploration of remote actors differs; with 0 all explore alike"
        )

    settings: Conf

    default_updater: ClassVar = adam(1e-3)
    on_policy: ClassVar[bool] = False

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        updater: UpdaterConf | None = None,
        seed: int = 0,
        **settings: Any,  # which are self.settings already
    ):
        if not isinstance(spaces.action, DiscreteSpace):
            raise UserError(
                f"DQN takes discrete actions, but those of the environment are {spaces.action}; use DDPG or TD3"
            )
        values = model.head(0, "the values of actions")
        loss = LayerConf(
            name=LOSS,
            type=LayerType.kTDLoss,
            srclayers=[values, ACTION, TARGET, WEIGHT],
            tdloss_conf={"delta": self.settings.delta},
        )
        layers = [*map(input_layer, (ACTION, TARGET, WEIGHT)), loss]
        examples = {name: np.zeros((1, 1), np.float32) for name in (ACTION, TARGET, WEIGHT)}
        super().__init__(model, spaces, layers=layers, examples=examples, updater=updater, seed=seed)
        self.target_params = copy_params(self.params)
        self.sampled = 0
        self._exponent = 1.0  # the exponent of the share of random actions

    def check_heads(self) -> None:
        """Raise UserError unless the first head has a value for each action."""
        count = self.spaces.action.n  # type: ignore[union-attr]
        self.check_scores(self.model.heads[0])
        self.check_head(self.model.heads[0], count, f"{count} actions")

    @property
    def epsilon(self) -> float:
        """The current probability of a random action."""
        first, last = self.settings.first_epsilon, self.settings.last_epsilon
        done = min(1.0, self.sampled / max(1, self.settings.epsilon_steps))
        return (first + done * (last - first)) ** self._exponent

    def act_as(self, actor: int, actors: int, params: dict[str, np.ndarray], sampled: int) -> None:
        """Prepare this copy to act as a remote actor, with its own epsilon."""
        super().act_as(actor, actors, params, sampled)
        self.target_params, self._exponent = params, 1 + self.settings.actor_spread * actor / max(1, actors - 1)

    def predict(self, observations: np.ndarray) -> np.ndarray:
        """Return the action with the largest value for each of N observations."""
        return self.heads(observations)[0].argmax(axis=1)

    def sample(self, observations: np.ndarray, rng: np.random.Generator) -> Sampled:
        """Return each observation's best action, or, with probability epsilon, a random one."""
        count = len(observations)
        is_random = rng.random(count) < self.epsilon
        actions = rng.integers(0, self.spaces.action.n, count)  # type: ignore[union-attr]
        self.sampled += count
        if not is_random.all():
            actions = np.where(is_random, actions, self.predict(observations))
        return Sampled(actions, {})

    def targets(self, batch: Transitions) -> np.ndarray:
        """Return the values (B,) float32 that the net should give the actions of a batch."""
        values = self.heads(batch.next_observations, self.target_params)[0]
        best = self.predict(batch.next_observations) if self.settings.double else values.argmax(axis=1)
        following = self.following(values, best)
        return batch.rewards + batch.discounts * np.where(batch.terminated, np.float32(0), following)

    def following(self, values: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Return the next state's value (B,), from action values (B, K) and best actions."""
        return values[np.arange(len(values)), best]

    def errors(self, batch: Transitions) -> np.ndarray:
        """Return the temporal-difference errors (B,) of a batch, as priorities in prioritised replay."""
        values = self.heads(batch.observations)[0]
        batch.targets = self.targets(batch)
        return values[np.arange(len(values)), batch.actions] - batch.targets

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the metrics that :meth:`learn` returns."""
        return "loss", "value"

    def learn(self, batch: Transitions) -> dict[str, float]:
        """Update the params from a batch; return "loss" and "value", its mean action value."""
        metrics = self.update(
            {
                self.model.input: batch.observations,
                ACTION: batch.actions.reshape(-1, 1).astype(np.float32),
                TARGET: batch.take_targets(self.targets).reshape(-1, 1),
                WEIGHT: batch.weights.reshape(-1, 1),
            }
        )
        if self.updater.steps % self.settings.target_every == 0:
            follow(self.target_params, self.params, self.settings.target_share)
        return {"loss": metrics["loss"], "value": metrics["value"]}

    def state(self) -> dict[str, Any]:
        """Return the state of learning, with target params and sampled steps."""
        return {**super().state(), "target": self.target_params, "sampled": self.sampled}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Restore a state, as in :meth:`Algorithm.restore`."""
        super().restore(state)
        self.target_params = {name: np.array(value, np.float32) for name, value in state["target"].items()}
        self.sampled = int(state["sampled"])


@register("learning_algorithm", kExpectedSARSA=8)
class ExpectedSARSA(DQN):
    """DQN that learns the values of its exploring policy, and so avoids states where exploring is dangerous.

    van Seijen et al., A Theoretical and Empirical Analysis of Expected Sarsa, 2009. The next state has the value (1 -
    epsilon)·Q'(best action) + epsilon·mean of Q' over all actions, with the present epsilon.
    """

    class Conf(DQN.Conf):
        """Settings of kExpectedSARSA."""

    def following(self, values: np.ndarray, best: np.ndarray) -> np.ndarray:
        """Return the mean (B,) of next action values (B, K), by the exploring policy's probabilities."""
        share = np.float32(self.epsilon)
        return (1 - share) * super().following(values, best) + share * values.mean(axis=1)
