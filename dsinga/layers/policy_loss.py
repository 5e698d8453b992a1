"""Losses of policies: kPolicyGradientLoss, kPPOLoss and kEntropyLoss.

The first source gives the policy (:mod:`dsinga.layers.policy`); actions, advantages and log probabilities are records,
which get no gradient. Gradients are of the mean over the global batch, times ``scale``.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import EntropyLossConf, LayerConf, PolicyGradientLossConf, PPOLossConf
from dsinga.job.enums import PolicyDistribution
from dsinga.layers.base import Array, Arrays, Gradients, Layer, Output, Shape
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.policy import check_actions, check_policy, check_rows, chosen_actions, entropies
from dsinga.registry import register


class PolicyLoss(Layer):
    """Base of losses of a policy: the feature is (B, 1), a number for each row.

    A subclass returns, in ``row_losses``, the loss of each row (B,) and its derivatives by the policy.
    """

    is_loss: ClassVar[bool] = True
    metric_names: ClassVar[tuple[str, ...]] = ("loss",)
    gathered_because = "compares all numbers of a policy"
    sources_after_policy: ClassVar[tuple[str, ...]] = ("actions", "advantages")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        settings: Any = self.settings(conf)
        self.distribution: PolicyDistribution = settings.distribution
        self.scale: float = settings.scale
        numbers = check_policy(self, self.distribution, settings)
        for index, what in enumerate(self.sources_after_policy, start=1):
            check_rows(self, index, numbers if what == "actions" else 1, what)
        self.shape = (self.source_shapes[0][0], 1)

    @staticmethod
    def settings(conf: LayerConf) -> Any:
        """Return the part of the configuration that is this layer's."""
        raise NotImplementedError

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        """Return the loss of each row (B,), its derivatives by the policy, and sums of metrics by name."""
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
        """Return the log probabilities (B,) of the actions, and their derivatives by the policy."""
        if self.distribution is PolicyDistribution.kCategorical:
            check_actions(self, sources[1], sources[0].shape[1], ctx.ops)
        return chosen_actions(self.distribution, sources[0], sources[1], ctx.ops)


@register("layer", "kPolicyGradientLoss")
class PolicyGradientLoss(PolicyLoss):
    """The policy gradient as a loss, -scale·Σ advantage·log π(action) / B (Williams 1992; Sutton et al. 2000).

    Sources: policy, action, advantage (B, 1), which is the return less a baseline. Metric: "loss".
    """

    source_count: ClassVar[int | None] = 3

    @staticmethod
    def settings(conf: LayerConf) -> PolicyGradientLossConf:
        return conf.policygradientloss_conf or PolicyGradientLossConf()

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        logs, derivative = self.chosen(sources, ctx)
        advantage = sources[2].reshape(-1)
        return -advantage * logs, derivative * -advantage[:, None], {}


@register("layer", "kPPOLoss")
class PPOLoss(PolicyLoss):
    """The clipped loss of proximal policy optimisation (Schulman et al. 2017, equation 7).

    -scale·Σ min(r·A, clip(r, 1 - ε, 1 + ε)·A) / B, where r = π(action) / π_old(action), A is the advantage, and ε is
    ``clip``. Sources: policy, action, advantage (B, 1), the log of π_old(action) (B, 1). Metrics: "loss"; "kl", the
    estimate (r - 1) - log r of the divergence of the old policy from the new one; "clip_fraction", the share of rows
    with |r - 1| > ε.
    """

    source_count: ClassVar[int | None] = 4
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "kl", "clip_fraction")
    sources_after_policy: ClassVar[tuple[str, ...]] = ("actions", "advantages", "log probabilities")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.clip = self.settings(conf).clip

    @staticmethod
    def settings(conf: LayerConf) -> PPOLossConf:
        return conf.ppoloss_conf or PPOLossConf()

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        xp = ctx.ops.xp
        logs, derivative = self.chosen(sources, ctx)
        advantage, difference = sources[2].reshape(-1), logs - sources[3].reshape(-1)
        ratio = xp.exp(difference)
        one = ratio.dtype.type(1)
        whole = ratio * advantage
        clipped = xp.clip(ratio, one - ratio.dtype.type(self.clip), one + ratio.dtype.type(self.clip)) * advantage
        slope = xp.where(whole <= clipped, whole, 0)  # of the smaller one: the clipped one is constant
        sums = {
            "kl": (ratio - one - difference).sum(dtype=np.float64),
            "clip_fraction": (xp.abs(ratio - one) > self.clip).sum(dtype=np.float64),
        }
        return -xp.minimum(whole, clipped), derivative * -slope[:, None], sums


@register("layer", "kEntropyLoss")
class EntropyLoss(PolicyLoss):
    """Minus the entropy of the policy, -scale·Σ H(π) / B: what keeps a policy from being certain too early.

    Source: the policy. Metrics: "loss", and "entropy" in nats.
    """

    source_count: ClassVar[int | None] = 1
    metric_names: ClassVar[tuple[str, ...]] = ("loss", "entropy")
    sources_after_policy: ClassVar[tuple[str, ...]] = ()

    @staticmethod
    def settings(conf: LayerConf) -> EntropyLossConf:
        return conf.entropyloss_conf or EntropyLossConf()

    def row_losses(self, sources: Arrays, ctx: Context) -> tuple[Array, Array, dict[str, Array]]:
        entropy, derivative = entropies(self.distribution, sources[0], ctx.ops)
        return -entropy, -derivative, {"entropy": entropy.sum(dtype=np.float64)}
