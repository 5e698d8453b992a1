"""IMPALA: learns from rollouts that older params produced, with a loss corrected by V-trace."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.engine.local_net import LocalNet
from dsinga.job import Job, LayerConf, LayerType, NetConf
from dsinga.job.component import Settings, setting
from dsinga.job.enums import PolicyDistribution
from dsinga.job.limits import Limit, NonNegative, Positive
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape
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
from dsinga.rl.policy_loss import PolicyConf, check_actions, chosen_actions


class VTraceTargets(NamedTuple):
    """Targets (B, T) for values, and advantages (B, T) for the policy gradient; both are constants."""

    targets: Array
    advantages: Array


@register("layer", kVTraceLoss=745)
class VTraceLoss(Layer):
    """Loss of a policy and values on steps of an older policy: V-trace (Espeholt et al. 2018, section 4).

    It is Σ over T steps of -A·log π(action) + ``value_scale``/2·(v - V)², the mean over B sequences. The ratio r =
    π(action) / μ(action) compares the policy with the policy that acted. With ρ = min(r, ``rho_clip``) and c = min(r,
    ``c_clip``):

        δ_t = ρ_t·(reward_t + discount_t·V_{t+1} - V_t)
        v_t = V_t + δ_t + discount_t·c_t·(v_{t+1} - V_{t+1})
        A_t = ρ_t·(reward_t + discount_t·v_{t+1} - V_t)

    v and A count as constants.

    Sources: policy (B, T + 1, K) and values V (B, T + 1, 1), both also for the observation after the last step. Then
    action (B, T), or (B, T, n) for a Gaussian policy. Then log μ(action), reward, and discount (B, T), which is 0 where
    an episode has ended. The feature is v, (B, T). Metrics: "loss"; "policy_loss" and "value_loss", its two parts
    before ``value_scale``, as means over steps; "ratio", the mean of r.
    """

    class Conf(PolicyConf):
        """Settings of kVTraceLoss."""

        rho_clip: Positive = setting(
            1.0,
            "the largest ratio of an action's probabilities, now and when it was chosen, in the error of a value",
        )
        c_clip: Positive = setting(1.0, "the largest such ratio in the factors that carry later errors back")
        value_scale: NonNegative = setting(0.5, "the factor of the loss of the values")

    settings: Conf
    source_count = 6
    is_loss = True
    metric_names = ("loss", "policy_loss", "value_loss", "ratio")
    cut = Cut(gathered_because="follows whole sequences")
    source_kind = SourceKind.kSequences

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings = self.settings
        self.distribution, self.value_scale = settings.distribution, settings.value_scale
        self.rho_clip, self.c_clip = settings.rho_clip, settings.c_clip
        policy, value, action, *others = self.source_shapes
        if len(policy) != 3 or policy[1] < 2 or value != (*policy[:2], 1):
            raise self.fail(
                f"takes a policy (batch, T + 1, K) and values (batch, T + 1, 1), but {self.source_name(0)} gives "
                f"{shape_text(policy)}, {self.source_name(1)} {shape_text(value)}; give the layers per_step: true",
                field="srclayers",
            )
        steps = (policy[0], policy[1] - 1)
        numbers = policy[2] / 2 if self.distribution is PolicyDistribution.kGaussian else 1
        if math.prod(action[2:]) != numbers:
            raise self.fail(
                f"a policy of {policy[2]} numbers ({self.distribution.name}) has actions of {numbers:g}, but "
                f"{self.source_name(2)} gives {shape_text(action)}; a Gaussian policy has means and as many logs of "
                "standard deviations",
                field="srclayers",
            )
        for index, shape in enumerate((action, *others), start=2):
            if shape[:2] != steps or (index > 2 and len(shape) > 2):
                raise self.fail(
                    f"takes {shape_text(steps)} numbers from {self.source_name(index)}, a step less than the policy, "
                    f"but gets {shape_text(shape)}",
                    field="srclayers",
                )
        self.steps = steps[1]
        self.shape = steps

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        policy, value, action, old, reward, discount = sources
        rows = len(policy)
        flat = policy[:, :-1].reshape(rows * self.steps, policy.shape[2])
        actions = action.reshape(rows * self.steps, action.shape[2] if action.ndim > 2 else 1)
        if self.distribution is PolicyDistribution.kCategorical:
            check_actions(self, actions, policy.shape[2], ctx.ops, index=2)
        logs, derivative = chosen_actions(self.distribution, flat, actions, ctx.ops)
        logs = logs.reshape(rows, self.steps)
        values = value.reshape(rows, self.steps + 1)
        ratio = ctx.ops.xp.exp(logs - old)
        vtrace = self.targets(ratio, values, reward, discount, ctx)
        misses = values[:, :-1] - vtrace.targets
        policy_loss = -(vtrace.advantages * logs).sum(dtype=np.float64)
        value_loss = 0.5 * (misses * misses).sum(dtype=np.float64)
        count = rows * self.steps
        metrics = {
            "loss": (policy_loss + self.value_scale * value_loss, rows),
            "policy_loss": (policy_loss, count),
            "value_loss": (value_loss, count),
            "ratio": (ratio.sum(dtype=np.float64), count),
        }
        saved = (derivative, vtrace.advantages, misses) if ctx.training else None
        return Output(vtrace.targets, saved=saved, metrics=metrics)

    def targets(self, ratio: Array, values: Array, reward: Array, discount: Array, ctx: Context) -> VTraceTargets:
        """Return V-trace targets and advantages, from ratios (B, T) and values (B, T + 1)."""
        xp, as_dtype = ctx.ops.xp, values.dtype.type
        rho = xp.minimum(ratio, as_dtype(self.rho_clip))
        carried = discount * xp.minimum(ratio, as_dtype(self.c_clip))
        errors = rho * (reward + discount * values[:, 1:] - values[:, :-1])
        corrections = [xp.zeros_like(errors[:, 0])]  # v - V, from the last step to the first
        for step in range(self.steps - 1, -1, -1):
            corrections.append(errors[:, step] + carried[:, step] * corrections[-1])
        targets = values + xp.stack(corrections[::-1], axis=1)
        return VTraceTargets(targets[:, :-1], rho * (reward + discount * targets[:, 1:] - values[:, :-1]))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        derivative, advantages, misses = output.saved
        rows, share = len(sources[0]), derivative.dtype.type(1 / ctx.rows.total)
        gradients: list[Any] = [None] * len(needs)
        if needs[0]:
            gradients[0] = ctx.ops.xp.zeros_like(sources[0])
            slopes = derivative * (advantages * -share).reshape(len(derivative), 1)
            gradients[0][:, :-1] = slopes.reshape(rows, self.steps, derivative.shape[1])
        if needs[1]:
            gradients[1] = ctx.ops.xp.zeros_like(sources[1])
            gradients[1][:, :-1, 0] = misses * (share * derivative.dtype.type(self.value_scale))
        return gradients, ()


# The learner's further input layers.
REWARD, DISCOUNT = "rl_reward", "rl_discount"
INPUTS = ACTION, LOG_PROBABILITY, REWARD, DISCOUNT


@register("learning_algorithm", kIMPALA=3)
class IMPALA(ActorCritic):
    """Learns from rollouts even if actors made them with older params (Espeholt et al. 2018).

    Each rollout gives one update with the loss kVTraceLoss; its "log_probability" belongs to the policy that acted. All
    layers of the model compute the steps of a rollout together (``per_step``).

    Args:
        model: the net; its heads are the policy and the value.
        updater: defaults to RMSProp at a rate of 0.0006, as in the paper.
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
        """Keep the losses for the nets that learn; the net that chooses actions gets none."""
        policy, value, chosen = model.head(0, "the policy"), model.head(1, "the value of a state"), self.settings
        clips = {"rho_clip": chosen.rho_clip, "c_clip": chosen.c_clip}
        conf = {"distribution": distribution_of(spaces.action), **clips, "value_scale": chosen.value_scale}
        sources = [policy, value, *INPUTS]
        loss = LayerConf(name=POLICY_LOSS, type=LayerType.kVTraceLoss, srclayers=sources, vtraceloss_conf=conf)
        self._losses = [loss]
        if chosen.entropy_scale:
            self._losses.append(entropy_loss(policy, chosen.entropy_scale, spaces.action, per_step=True))
        self._learners: dict[int, LocalNet] = {}  # nets by the steps of a rollout
        return []

    def learn(self, batch: Rollout) -> dict[str, float]:
        """Do one update on a rollout by present or older params; return the metrics."""
        steps = len(batch.rewards)
        if steps not in self._learners:
            job, example = self.learning_net(steps)
            self._learners[steps] = LocalNet(job, example, threads=1, is_small=True)
        self.learner = self._learners[steps]
        return super().learn(batch)

    def batches(self, rollout: Rollout) -> Iterator[dict[str, np.ndarray]]:
        """Yield the whole rollout as the batch of one update."""
        yield self._sequences(rollout)

    def learning_net(self, steps: int) -> tuple[Job, dict[str, np.ndarray]]:
        """Return the job of a net over ``steps`` + 1 steps of each environment, and an example."""
        net = NetConf(layer=[*self.model.layers_over(steps + 1), *map(input_layer, INPUTS), *self._losses])
        observation, action = self.spaces.observation, self.spaces.action
        example = {name: np.zeros((1, steps), np.float32) for name in INPUTS}
        example[self.model.input] = np.zeros((1, steps + 1, *observation.shape), observation.dtype)
        if action.shape:
            example[ACTION] = np.zeros((1, steps, math.prod(action.shape)), np.float32)
        return self.net.job.replace(neuralnet=net), example

    def _sequences(self, rollout: Rollout) -> dict[str, np.ndarray]:
        """Return a rollout as records of the input layers, a row for each environment."""
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
