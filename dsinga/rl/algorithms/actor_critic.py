"""The base of algorithms that learn a policy and state values from rollouts, and their advantage estimates."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arguments import check_range
from dsinga.engine.local_net import Means
from dsinga.job import Job, LayerConf, LayerType, UpdaterConf
from dsinga.job.enums import PolicyDistribution
from dsinga.reading.bind_records import input_layer
from dsinga.rl.algorithm import Algorithm
from dsinga.rl.environments.spaces import DiscreteSpace, Space, Spaces, best_actions, policy_size, sample_actions
from dsinga.rl.experience import Rollout, Sampled
from dsinga.rl.model import Model
from dsinga.rl.recurrence import BEGINS, HiddenStates, state_input
from dsinga.training import declared_metrics


class Advantages(NamedTuple):
    """Advantages of actions, (T, N), and returns, (T, N), that values should predict: float32."""

    advantages: np.ndarray
    returns: np.ndarray


def gae(
    rewards: np.ndarray,
    values: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
    decay: float,
) -> Advantages:
    """Estimate how much better each action was than expected (Schulman et al. 2016, "generalized advantages").

    A step's advantage is the sum of temporal-difference errors up to the episode's end. Each is weighted by
    (discount x decay) to the power of its distance. ``decay``, the paper's lambda, is 0 for the error of one step and 1
    for the whole return. Returns are advantages plus values.

    All arrays are float32 or float64, (T, N): T successive steps of N environments. ``values`` are the values of the
    observations before each step. The value after a ``terminated`` step is 0, after a ``truncated`` step the final
    observation's value, ``bootstrap``, and after the last step ``last_values`` (N,).
    """
    ended = terminated | truncated
    following = following_values(values, terminated, truncated, bootstrap, last_values)
    advantages = rewards + discount * following - values
    factors = (discount * decay * ~ended).astype(advantages.dtype)
    for step in range(len(rewards) - 2, -1, -1):
        advantages[step] += factors[step] * advantages[step + 1]
    return Advantages(single(advantages), single(advantages + values))


def discounted_returns(
    rewards: np.ndarray,
    terminated: np.ndarray,
    truncated: np.ndarray,
    bootstrap: np.ndarray,
    last_values: np.ndarray,
    *,
    discount: float,
) -> np.ndarray:
    """Return the discounted sum of rewards to the episode's end, (T, N); arguments are as for :func:`gae`."""
    returns = np.array(rewards, np.float64)
    following = np.asarray(last_values, np.float64)
    for step in range(len(rewards) - 1, -1, -1):
        following = np.where(truncated[step], bootstrap[step], following)
        following = returns[step] = returns[step] + discount * np.where(terminated[step], 0, following)
    return single(returns)


def following_values(
    values: np.ndarray, terminated: np.ndarray, truncated: np.ndarray, bootstrap: np.ndarray, last_values: np.ndarray
) -> np.ndarray:
    """Return the value of the state that follows each step, (T, N)."""
    following = np.concatenate([values[1:], np.asarray(last_values)[np.newaxis]])
    return np.where(terminated, 0, np.where(truncated, bootstrap, following))


def single(array: np.ndarray) -> np.ndarray:
    """Convert an array to float32, without a copy if it has this dtype."""
    return array.astype(np.float32, copy=False)


# The input layers that actor-critics add to a model.
ACTION, ADVANTAGE, RETURN, LOG_PROBABILITY = "rl_action", "rl_advantage", "rl_return", "rl_log_probability"

# The loss layers that actor-critics add to a model.
POLICY_LOSS, VALUE_LOSS, ENTROPY_LOSS = "rl_policy_loss", "rl_value_loss", "rl_entropy_loss"


class ActorCritic(Algorithm):
    """Base of algorithms that learn a policy (first head) and optionally state values (second head).

    For discrete actions the policy has a score for each action; for n numbers, n means, then n logs of standard
    deviations.

    Subclasses have the settings ``value_scale``, ``entropy_scale``, ``max_gradient_norm`` and ``decay``.

    Args:
        discount: factor of the next step's reward, gamma.

    Attributes:
        learner: the net that learns, with the algorithm's layers.
        mean: returns an array's mean over the rows of all workers that learn together.
    """

    def __init__(
        self,
        model: Model,
        spaces: Spaces,
        *,
        discount: float = 0.99,
        updater: UpdaterConf | None = None,
        seed: int = 0,
        **settings: Any,  # which are self.settings already
    ):
        check_range("discount", discount, 0, 1)
        self.discount = discount
        losses = self.losses(model, spaces)
        sources = {name for loss in losses for name in loss.srclayers}
        inputs = [name for name in (ADVANTAGE, RETURN, LOG_PROBABILITY) if name in sources]
        examples = {name: np.zeros((1, 1), np.float32) for name in inputs}
        if inputs:
            examples[ACTION] = as_action_records(np.zeros((1, *spaces.action.shape), np.float32))
        layers = [*map(input_layer, examples), *losses]
        super().__init__(model, spaces, layers=layers, examples=examples, updater=updater, seed=seed)
        self.learner = self.net
        self.mean: Callable[[np.ndarray], Any] = np.mean

    def losses(self, model: Model, spaces: Spaces) -> list[LayerConf]:
        """Return the loss layers of policy, value and, unless its factor is 0, entropy."""
        scale = self.settings.entropy_scale
        losses = [self.policy_loss(model.head(0, "the policy"), spaces.action)]
        losses.append(value_loss(model.head(1, "the value of a state"), self.settings.value_scale))
        return [*losses, entropy_loss(model.heads[0], scale, spaces.action)] if scale else losses

    def policy_loss(self, policy: str, actions: Space) -> LayerConf:
        """Return the loss layer that trains the head ``policy``; PPO overrides it."""
        return LayerConf(
            name=POLICY_LOSS,
            type=LayerType.kPolicyGradientLoss,
            srclayers=[policy, ACTION, ADVANTAGE],
            policygradientloss_conf={"distribution": distribution_of(actions)},
        )

    def check_heads(self) -> None:
        """Raise UserError unless the model's heads are a policy and, optionally, a state value."""
        actions, model = self.spaces.action, self.model
        self.check_scores(model.head(0, "the policy"))
        self.check_head(model.heads[0], policy_size(actions), f"actions that are {actions}")
        if len(model.heads) > 1:
            self.check_head(model.heads[1], 1, "the value of a state")

    def predict(self, observations: np.ndarray, hidden: HiddenStates | None = None) -> np.ndarray:
        """Return each observation's most probable action."""
        return best_actions(self._head(0, observations, hidden), self.spaces.action)

    def sample(self, observations: np.ndarray, rng: np.random.Generator, hidden: HiddenStates | None = None) -> Sampled:
        """Draw an action for each observation, with its "log_probability"; update hidden states in place."""
        actions, logs = sample_actions(self._head(0, observations, hidden), self.spaces.action, rng)
        return Sampled(actions, {"log_probability": logs})

    def values(self, observations: np.ndarray, hidden: HiddenStates | None = None) -> np.ndarray:
        """Estimate the value (N,) of each observation's state: 0 without a value head. Hidden states do not change."""
        if len(self.model.heads) < 2:
            return np.zeros(len(observations), np.float32)
        return self._head(1, observations, hidden, moves=False).reshape(-1)

    def _head(
        self, number: int, observations: np.ndarray, hidden: HiddenStates | None = None, moves: bool = True
    ) -> np.ndarray:
        head = self.model.heads[number]
        if self.recurrence is not None:
            return self.recurrence.step(self.params, observations, hidden, head, moves=moves)
        return self.net.forward(self.params, observations, layers=(head,)).outputs[head]

    @property
    def metric_names(self) -> Sequence[str]:
        """The names of the metrics that :meth:`learn` returns."""
        return tuple(mean_metrics([dict.fromkeys(declared_metrics(self.learner.net), 0.0)]))

    def update(self, batch: Mapping[str, np.ndarray], labels: np.ndarray | None = None) -> Means:
        """Do an updater step on a batch, with the gradient limited to ``max_gradient_norm``."""
        if self.recurrence is None:
            gradients, metrics = self.learner.backward(
                self.params, batch, self.labels_by_layer(labels), step=self.updater.steps
            )
        else:
            gradients, metrics = self.recurrence.backward(self.params, batch, step=self.updater.steps)
        self.updater.step(self.params, gradients, self.settings.max_gradient_norm)
        return metrics

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Update the params from a rollout that they produced; return the updates' mean metrics."""
        return mean_metrics([self.update(part) for part in self.batches(batch)])

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Split a rollout into batches of equal length, one for each update: arrays by input layer."""
        raise NotImplementedError

    def learning_net(self, steps: int) -> tuple[Job, dict[str, np.ndarray]]:
        """Return the job of the net that learns rollouts of ``steps`` steps, and an example batch."""
        return self.net.job, self.examples

    def estimate(self, rollout: Rollout) -> Advantages:
        """Estimate the advantage of each action and the return after each step of a rollout."""
        ends = rollout.terminated, rollout.truncated, rollout.bootstrap
        values = self.values_of(rollout)
        return gae(rollout.rewards, values[:-1], *ends, values[-1], discount=self.discount, decay=self.settings.decay)

    def values_of(self, rollout: Rollout) -> np.ndarray:
        """Estimate the values (T + 1, N) of all observations of a rollout, including the last."""
        observations = np.concatenate([rollout.observations, rollout.last_observations[np.newaxis]])
        if self.recurrence is not None:
            rows = {self.model.input: self.as_rows(observations), **self.sequences(rollout, len(observations))}
            values = self.recurrence.head(self.params, rows, self.model.heads[1])
            return values.reshape(observations.shape[1::-1]).T
        return self.values(observations.reshape(-1, *observations.shape[2:])).reshape(observations.shape[:2])

    def rows(self, rollout: Rollout, advantages: np.ndarray, returns: np.ndarray) -> dict[str, np.ndarray]:
        """Return a rollout as rows for the net's input layers, a row for each step."""
        rows = {
            self.model.input: self.as_rows(rollout.observations),
            ACTION: as_action_records(self.as_rows(rollout.actions)),
            ADVANTAGE: self.as_rows(advantages)[:, np.newaxis],
            RETURN: self.as_rows(returns)[:, np.newaxis],
        }
        return rows if self.recurrence is None else {**rows, **self.sequences(rollout, len(rollout.rewards))}

    def as_rows(self, array: np.ndarray) -> np.ndarray:
        """Reshape (T, N, ...) to a row for each step; recurrent nets get each environment's steps together."""
        array = array if self.recurrence is None else array.swapaxes(0, 1)
        return array.reshape(-1, *array.shape[2:])

    def sequences(self, rollout: Rollout, steps: int) -> dict[str, np.ndarray]:
        """Return inputs that tell a recurrent net where episodes begin and with which hidden states."""
        ended = rollout.terminated | rollout.truncated
        begins = np.concatenate([np.ones_like(ended[:1]), ended])[:steps]
        rows = {BEGINS: self.as_rows(begins)}
        for name, states in rollout.hidden.items():
            rows[state_input(name)] = np.zeros((begins.shape[1], steps, states.shape[1]), np.float32)
            rows[state_input(name)][:, 0] = states
            rows[state_input(name)] = rows[state_input(name)].reshape(-1, states.shape[1])
        return rows


def distribution_of(space: Space) -> PolicyDistribution:
    """Return the kind of policy for a space's actions, categorical or Gaussian."""
    return PolicyDistribution.kCategorical if isinstance(space, DiscreteSpace) else PolicyDistribution.kGaussian


def value_loss(value: str, scale: float) -> LayerConf:
    """Return a loss layer that trains a value head to predict returns, by squared errors."""
    conf = {"scale": scale}
    return LayerConf(name=VALUE_LOSS, type=LayerType.kEuclideanLoss, srclayers=[value, RETURN], euclideanloss_conf=conf)


def entropy_loss(policy: str, scale: float, space: Space, per_step: bool = False) -> LayerConf:
    """Return a loss layer that keeps a policy exploring, by its entropy."""
    return LayerConf(
        name=ENTROPY_LOSS,
        type=LayerType.kEntropyLoss,
        srclayers=[policy],
        entropyloss_conf={"distribution": distribution_of(space), "scale": scale},
        per_step=per_step,
    )


def as_action_records(actions: np.ndarray) -> np.ndarray:
    """Convert actions (B,) or (B, ...) to records (B, n) float32 for loss layers."""
    return actions.reshape(len(actions), -1).astype(np.float32)


def normalized(advantages: np.ndarray, mean: Callable[[np.ndarray], Any] = np.mean) -> np.ndarray:
    """Scale advantages to mean 0 and standard deviation 1."""
    centred = advantages - mean(advantages)
    return centred / (np.sqrt(mean(np.square(centred))) + np.float32(1e-8))


def mean_metrics(updates: Sequence[Mapping[str, Any]]) -> dict[str, float]:
    """Average the metrics of several updates, and shorten their names to "policy_loss" and "value_loss"."""
    names = {f"{POLICY_LOSS}/loss": "policy_loss", f"{VALUE_LOSS}/loss": "value_loss"}
    means = {name: sum(metrics[name] for metrics in updates) / len(updates) for name in updates[0]}
    return {names.get(name, name): value for name, value in means.items() if name != f"{ENTROPY_LOSS}/loss"}
