"""Loss layers for policies (policy gradient, PPO, entropy) and for action values (temporal differences).

The first source of a policy loss is the policy. A categorical policy is (B, K) logits of K actions. A Gaussian policy
is (B, 2n): means of n numbers, then logs of their standard deviations. Gradients are of the mean over the global batch,
times ``scale``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.job.enums import PolicyDistribution
from dsinga.job.limits import NonNegative, Positive
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import (
    Array,
    Arrays,
    Gradients,
    Layer,
    Output,
    Shape,
)
from dsinga.layers.losses.pair_loss import check_rows
from dsinga.ops import Ops
from dsinga.ops.layout import contiguous
from dsinga.ops.types import is_on_device

LOG_TWO_PI = math.log(2 * math.pi)


class ChosenActions(NamedTuple):
    """Log probabilities of actions, (B,), and their derivatives by the policy, (B, K) or (B, 2n)."""

    log_probability: Array
    derivative: Array


def chosen_actions(distribution: PolicyDistribution, policy: Array, action: Array, ops: Ops) -> ChosenActions:
    """Return log probabilities of actions, (B, 1) numbers or (B, n), and derivatives by the policy."""
    xp = ops.xp
    if distribution is PolicyDistribution.kGaussian:
        means, logs = xp.split(policy, 2, axis=1)
        deviations = (action - means) * xp.exp(-logs)
        squares = deviations * deviations
        constant = policy.dtype.type(0.5 * LOG_TWO_PI * means.shape[1])
        values = -(0.5 * squares + logs).sum(axis=1) - constant
        return ChosenActions(values, xp.concatenate([deviations * xp.exp(-logs), squares - 1], axis=1))
    logs, probabilities = log_softmax(policy, ops)
    rows, numbers = xp.arange(len(policy)), action.reshape(-1).astype(xp.int64)
    derivative = -probabilities
    derivative[rows, numbers] += 1
    return ChosenActions(logs[rows, numbers], derivative)


def entropies(distribution: PolicyDistribution, policy: Array, ops: Ops) -> tuple[Array, Array]:
    """Return each row's entropy, (B,) in nats, and its derivatives by the policy."""
    xp = ops.xp
    if distribution is PolicyDistribution.kGaussian:
        means, logs = xp.split(policy, 2, axis=1)
        constant = policy.dtype.type(0.5 * (1 + LOG_TWO_PI) * means.shape[1])
        derivative = xp.zeros_like(policy)
        derivative[:, means.shape[1] :] = 1
        return logs.sum(axis=1) + constant, derivative
    logs, probabilities = log_softmax(policy, ops)
    entropy = -(probabilities * logs).sum(axis=1)
    return entropy, -probabilities * (logs + entropy[:, None])


def log_softmax(scores: Array, ops: Ops) -> tuple[Array, Array]:
    """Return the log of each row's softmax, and the softmax."""
    xp = ops.xp
    columns = contiguous(scores.transpose())  # numpy takes far longer to reduce many short rows
    shifted = columns - columns.max(axis=0)
    exponentials = xp.exp(shifted)
    sums = exponentials.sum(axis=0)
    return (shifted - xp.log(sums)).transpose(), (exponentials / sums).transpose()


def check_policy(layer: Layer, distribution: PolicyDistribution, conf: Any) -> int:
    """Return how many numbers an action has; raise UserError for a policy of impossible shape."""
    shape = layer.expect_axes((2,), "a policy (batch, K)")
    if distribution is PolicyDistribution.kCategorical:
        return 1
    if shape[1] % 2:
        raise layer.fail(
            f"a Gaussian policy has means and as many logs of standard deviations, but {layer.source_name(0)} gives "
            f"{shape[1]} numbers a row; concatenate both",
            conf,
            "distribution",
        )
    return shape[1] // 2


def check_actions(layer: Layer, action: Array, count: int, ops: Ops, index: int = 1) -> None:
    """Raise UserError if source ``index`` has actions other than 0 to ``count`` - 1."""
    if not len(action):
        return
    are_valid = ((action >= 0) & (action < count)).all()
    if not (ops.read([are_valid])[0] if is_on_device(are_valid) else are_valid):
        low, high = ops.read([action.min(), action.max()])
        raise layer.fail(
            f"has {count} actions, 0 to {count - 1}, but {layer.source_name(index)} gives {low:g} to {high:g}; change "
            "the num_output of the policy, or the actions"
        )


class PolicyConf(Settings):
    """Settings that all losses of policies share: distribution and scale."""

    distribution: PolicyDistribution = setting(
        PolicyDistribution.kCategorical,
        "what the policy's numbers are: scores of actions, or means and logs of deviations",
    )


class PolicyLoss(Layer):
    """Base of loss layers of a policy; the feature (B, 1) is a loss for each row."""

    settings: Any
    is_loss = True
    metric_names: tuple[str, ...] = ("loss",)
    cut = Cut(gathered_because="compares all numbers of a policy")
    sources_after_policy: ClassVar[tuple[str, ...]] = ("actions", "advantages")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.distribution: PolicyDistribution = self.settings.distribution
        self.scale: float = self.settings.scale
        numbers = check_policy(self, self.distribution, self.settings)
        for index, what in enumerate(self.sources_after_policy, start=1):
            check_rows(self, index, numbers if what == "actions" else 1, what)
        self.shape = (self.source_shapes[0][0], 1)

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        """Return each row's loss (B,), its derivatives by the policy, and sums of metrics by name."""
        raise NotImplementedError

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        losses, derivative, sums = self.row_losses(sources, ctx)
        count = len(losses)
        metrics = {"loss": (losses.sum(dtype=np.float64) * self.scale, count)}
        metrics |= {name: (total, count) for name, total in sums.items()}
        return Output(losses[:, None], saved=derivative if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        factor = output.saved.dtype.type(self.scale / ctx.rows.total)
        return [output.saved * factor if needs[0] else None, *[None] * (len(needs) - 1)], ()

    def chosen(self, sources: Arrays, ctx: Context) -> tuple[Array, Array]:
        """Return the log probabilities (B,) of the actions taken, and their derivatives by the policy."""
        if self.distribution is PolicyDistribution.kCategorical:
            check_actions(self, sources[1], sources[0].shape[1], ctx.ops)
        return chosen_actions(self.distribution, sources[0], sources[1], ctx.ops)


@register("layer", kPolicyGradientLoss=733)
class PolicyGradientLoss(PolicyLoss):
    """Loss that makes actions with positive advantage more probable: -scale·Σ advantage·log π(action) / B.

    Williams 1992; Sutton et al. 2000. Sources: policy, action, advantage (B, 1), the return minus a baseline. Metric:
    "loss".
    """

    class Conf(PolicyConf):
        """Settings of kPolicyGradientLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss")

    source_count = 3

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        logs, derivative = self.chosen(sources, ctx)
        advantage = sources[2].reshape(-1)
        return -advantage * logs, derivative * -advantage[:, None], {}


@register("layer", kPPOLoss=734)
class PPOLoss(PolicyLoss):
    """The clipped loss of proximal policy optimisation (Schulman et al. 2017, equation 7).

    -scale·Σ min(r·A, clip(r, 1 - ε, 1 + ε)·A) / B, where r = π(action) / π_old(action), A is the advantage, and ε is
    ``clip``. Sources: policy, action, advantage (B, 1), the log of π_old(action) (B, 1). Metrics:

    - "loss",
    - "kl", the estimate (r - 1) - log r of the divergence of the old policy from the new one,
    - "clip_fraction", the share of rows with |r - 1| > ε.
    """

    class Conf(PolicyConf):
        """Settings of kPPOLoss."""

        clip: Positive = setting(
            0.2,
            "the change of an action's probability, as a share of it, beyond which the gradient is 0",
        )
        scale: NonNegative = setting(1.0, "the factor of the loss")

    settings: Conf
    source_count = 4
    metric_names = ("loss", "kl", "clip_fraction")
    sources_after_policy: ClassVar[tuple[str, ...]] = ("actions", "advantages", "log probabilities")

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        xp = ctx.ops.xp
        logs, derivative = self.chosen(sources, ctx)
        advantage, difference = sources[2].reshape(-1), logs - sources[3].reshape(-1)
        ratio = xp.exp(difference)
        unit, clip = ratio.dtype.type(1), ratio.dtype.type(self.settings.clip)
        unclipped = ratio * advantage
        clipped = xp.clip(ratio, unit - clip, unit + clip) * advantage
        slope = xp.where(unclipped <= clipped, unclipped, 0)  # the clipped one is constant
        sums = {
            "kl": (ratio - unit - difference).sum(dtype=np.float64),
            "clip_fraction": (xp.abs(ratio - unit) > self.settings.clip).sum(dtype=np.float64),
        }
        return -xp.minimum(unclipped, clipped), derivative * -slope[:, None], sums


@register("layer", kEntropyLoss=735)
class EntropyLoss(PolicyLoss):
    """Loss that keeps a policy from being certain too early: minus its entropy, -scale·Σ H(π) / B.

    Source: the policy. Metrics: "loss", and "entropy" in nats.
    """

    class Conf(PolicyConf):
        """Settings of kEntropyLoss."""

        scale: NonNegative = setting(1.0, "the factor of the loss")

    source_count = 1
    metric_names = ("loss", "entropy")
    sources_after_policy: ClassVar[tuple[str, ...]] = ()

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        entropy, derivative = entropies(self.distribution, sources[0], ctx.ops)
        return -entropy, -derivative, {"entropy": entropy.sum(dtype=np.float64)}


WEIGHTS = 3  # the position of the source with weights


@register("layer", kTDLoss=736)
class TDLoss(Layer):
    """Loss that trains the value of the taken action towards a target: scale·Σ w·h(e) / B, e = Q[action] - target.

    Sources: values Q (B, K), action (B, 1), target (B, 1), perhaps weights w (B, 1). The feature is e, (B, 1). h is
    Huber's loss: e²/2 up to |e| = ``delta``, delta·(|e| - delta/2) above it. Only Q gets a gradient. Metrics: "loss",
    and "value", the mean of Q[action].
    """

    class Conf(Settings):
        """Settings of kTDLoss."""

        delta: NonNegative = setting(1.0, "the error beyond which the loss is linear; with 0 it is squared everywhere")
        scale: NonNegative = setting(1.0, "the factor of the loss")

    settings: Conf
    source_count = 3
    optional_sources = 1
    is_loss = True
    metric_names = ("loss", "value")
    cut = Cut(gathered_because="chooses among all values of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.delta, self.scale = self.settings.delta, self.settings.scale
        values = self.expect_axes((2,), "values (batch, K)")
        for index, what in enumerate(("actions", "targets", "weights")[: len(self.source_shapes) - 1], start=1):
            check_rows(self, index, 1, what)
        self.shape = (values[0], 1)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        xp, values = ctx.ops.xp, sources[0]
        check_actions(self, sources[1], values.shape[1], ctx.ops)
        rows, actions = xp.arange(len(values)), sources[1].reshape(-1).astype(xp.int64)
        chosen = values[rows, actions]
        errors = chosen - sources[2].reshape(-1)
        slopes = xp.minimum(xp.maximum(errors, -self.delta), self.delta) if self.delta else errors
        losses = slopes * (errors - slopes / 2)
        if len(sources) > WEIGHTS:
            weights = sources[WEIGHTS].reshape(-1)
            losses, slopes = losses * weights, slopes * weights
        metrics = {
            "loss": (losses.sum(dtype=np.float64) * self.scale, len(values)),
            "value": (chosen.sum(dtype=np.float64), len(values)),
        }
        return Output(errors[:, None], saved=(rows, actions, slopes) if ctx.training else None, metrics=metrics)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        gradients: list[Any] = [None] * len(sources)
        if needs[0]:
            rows, actions, slopes = output.saved
            gradients[0] = ctx.ops.xp.zeros_like(sources[0])
            gradients[0][rows, actions] = slopes * slopes.dtype.type(self.scale / ctx.rows.total)
        return gradients, ()
