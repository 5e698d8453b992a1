"""The optimizers SGD, Nesterov, AdaGrad, RMSProp, AdaDelta, Adam, AdaMax (SINGA's), AdamW and Lion."""

from __future__ import annotations

import functools
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.registry import register
from dsinga.job import UpdaterConf
from dsinga.job.component import Settings, required, setting
from dsinga.job.limits import Share
from dsinga.training.updater import SMALLEST, Block, Change, Updater


def average(h: Block, x: Block, rho: float, s: Block) -> None:
    """Move an average: h = rho·h + (1 - rho)·x, with scratch ``s``, which may be ``x``."""
    h *= rho
    h += np.multiply(x, 1.0 - rho, out=s)


def descend(w: Block, g: Block, h: Block, delta: float, lr: float, t: Block, s: Block) -> None:
    """Do a step of AdaGrad or RMSProp: w -= lr·g / √(h + delta), with scratch ``t``, which may be ``g``, and ``s``."""
    np.multiply(g, lr, out=t)
    t /= np.sqrt(np.add(h, delta, out=s), out=s)
    w -= t


class MomentumUpdater(Updater):
    """Base class of optimizers with a momentum, which may change with the step (``momentum_conf``)."""

    def change_at(self, step: int) -> Change:
        """Return :meth:`change`, with the momentum of ``step`` if it changes."""
        return functools.partial(self.change_with, self.momentum_at(step)) if self.conf.momentum_conf else self.change

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply the formula with the job's constant momentum."""
        self.change_with(self.conf.momentum, lr, w, g, slots, t, s)

    def change_with(self, m: float, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply the formula with momentum ``m``; other arguments as in :meth:`change`."""
        raise NotImplementedError


@register("updater", kSGD=1)
class SGD(MomentumUpdater):
    """Stochastic gradient descent, with momentum if it is set: h = m·h - lr·g; w += h.

    Without momentum, w -= lr·g.
    """

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.slots = ("history",) if conf.momentum or conf.momentum_conf else ()

    def change_with(self, m: float, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply SGD's formula with momentum m."""
        np.multiply(g, lr, out=t)
        if not slots:
            w -= t
            return
        (h,) = slots
        h *= m
        h -= t
        w += h


@register("updater", kNesterov=4)
class Nesterov(MomentumUpdater):
    """Nesterov's accelerated gradient: v = h; h = m·h + lr·g; w -= (1 + m)·h - m·v.

    Sutskever et al. (ICML 2013).
    """

    slots = ("history",)

    def change_with(self, m: float, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply Nesterov's formula with momentum m."""
        (h,) = slots
        np.multiply(g, lr, out=t)
        h *= m
        w += h  # m·v
        h += t
        w -= np.multiply(h, 1.0 + m, out=t)


@register("updater", kAdaGrad=2)
class AdaGrad(Updater):
    """AdaGrad of Duchi, Hazan and Singer (JMLR 2011): h += g²; w -= lr·g / √(h + δ).

    Keras starts h at 0.1; here it starts at 0.
    """

    slots = ("squares",)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply AdaGrad's formula to a block."""
        (h,) = slots
        h += np.multiply(g, g, out=s)
        descend(w, g, h, self.conf.delta, lr, t, s)


@register("updater", kRMSProp=3)
class RMSProp(Updater):
    """RMSProp of Tieleman and Hinton (lecture 6.5, 2012): h = ρ·h + (1 - ρ)·g²; w -= lr·g / √(h + δ).

    With ``centered`` (Graves 2013), m = ρ·m + (1 - ρ)·g, and the divisor is √(max(h - m², 0) + δ).
    """

    class Conf(Settings):
        """Settings of kRMSProp."""

        rho: Share = required("the decay of the running mean of squared gradients")
        centered: bool = setting(
            False, "whether the square of the running mean of the gradients is subtracted (Graves 2013)"
        )

    settings: Conf

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.rho = self.settings.rho
        self.slots = ("squares", "mean") if self.settings.centered else ("squares",)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply RMSProp's formula to a block."""
        h, *means = slots
        average(h, np.multiply(g, g, out=s), self.rho, s)
        for m in means:
            average(m, g, self.rho, s)
            np.multiply(m, m, out=s)
            np.subtract(h, s, out=s)
            h = np.maximum(s, 0.0, out=s)  # rounding may have left it below 0
        descend(w, g, h, self.conf.delta, lr, t, s)


@register("updater", kAdaDelta=5)
class AdaDelta(Updater):
    """AdaDelta of Zeiler (2012).

    h = ρ·h + (1 - ρ)·g²; t = g·√(u + δ) / √(h + δ); u = ρ·u + (1 - ρ)·t²; w -= lr·t.
    """

    class Conf(Settings):
        """Settings of kAdaDelta."""

        rho: Share = setting(0.9, "the decay of the running means of squared gradients and of squared updates")

    settings: Conf
    slots = ("squares", "updates")

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.rho = self.settings.rho

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply AdaDelta's formula to a block."""
        h, u = slots
        average(h, np.multiply(g, g, out=s), self.rho, s)
        np.sqrt(np.add(u, self.conf.delta, out=s), out=s)
        np.multiply(g, s, out=t)
        t /= np.sqrt(np.add(h, self.conf.delta, out=s), out=s)
        average(u, np.multiply(t, t, out=s), self.rho, s)
        t *= lr
        w -= t


@register("updater", kAdam=6)
class Adam(Updater):
    """Adam of Kingma and Ba (2015): a = β₁·a + (1 - β₁)·g; v = β₂·v + (1 - β₂)·g²; w -= lr·a / √(v + δ).

    With ``bias_correction`` it is the published form, as in PyTorch and ``nn.Adam``: w -= lr·â / (√v̂ + δ). Here â = a
    / (1 - β₁ᵗ) and v̂ = v / (1 - β₂ᵗ) at the t-th step.
    """

    class Conf(Settings):
        """Settings of kAdam."""

        beta1: Share = setting(0.9, "the decay of the first moment, the running mean of gradients")
        beta2: Share = setting(0.999, "the decay of the second moment, the running mean of squared gradients")
        bias_correction: bool = setting(False, "whether the moments are corrected for their bias, as in the paper")

    settings: Conf
    slots = ("mean", "squares")

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply SINGA's form of Adam, without bias correction, to a block."""
        m, v = slots
        average(v, np.multiply(g, g, out=s), self.settings.beta2, s)
        average(m, g, self.settings.beta1, s)
        descend(w, m, v, self.conf.delta, lr, t, s)

    def change_at(self, step: int) -> Change:
        """Return the function that applies Adam at ``step``, with bias correction if requested."""
        return functools.partial(self.change_corrected, step + 1) if self.settings.bias_correction else self.change

    def change_corrected(
        self, count: int, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block
    ) -> None:
        """Apply Adam with bias correction, as update number ``count``, to a block."""
        set_corrected_step(count, lr, self.settings, self.conf.delta, g, slots, t, s)
        w -= t


def set_corrected_step(
    count: int, lr: float, settings: Any, delta: float, g: Block, slots: Sequence[Block], t: Block, s: Block
) -> None:
    """Update Adam's moments m and v, and set t to the corrected step, lr·m̂ / (√v̂ + delta)."""
    m, v = slots
    average(v, np.multiply(g, g, out=s), settings.beta2, s)
    average(m, g, settings.beta1, s)
    np.multiply(m, lr / (1.0 - settings.beta1**count), out=t)
    np.sqrt(np.multiply(v, 1.0 / (1.0 - settings.beta2**count), out=s), out=s)
    s += delta
    t /= s


@register("updater", kAdamW=9)
class AdamW(Adam):
    """AdamW of Loshchilov and Hutter (2019): Adam with bias correction and decoupled ``weight_decay``."""

    class Conf(Settings):
        """Settings of kAdamW."""

        beta1: Share = setting(0.9, "the decay of the first moment, the running mean of gradients")
        beta2: Share = setting(0.999, "the decay of the second moment, the running mean of squared gradients")

    settings: Conf  # type: ignore[assignment]
    decoupled = True

    def change_at(self, step: int) -> Change:
        """Return the function that applies Adam with bias correction at ``step``."""
        return functools.partial(self.change_corrected, step + 1)


@register("updater", kAdamMax=7)
class AdamMax(Updater):
    """AdaMax of Kingma and Ba (2015): a = β₁·a + (1 - β₁)·g; u = max(β₂·u, |g|) + δ; w -= lr·a / u.

    As in SINGA, there is no bias correction.
    """

    class Conf(Settings):
        """Settings of kAdamMax."""

        beta1: Share = setting(0.9, "the decay of the first moment, the running mean of gradients")
        beta2: Share = setting(0.999, "the decay of the infinity norm of gradients")

    settings: Conf
    slots = ("mean", "norm")

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply AdaMax's formula to a block."""
        m, u = slots
        u *= self.settings.beta2
        np.maximum(u, np.abs(g, out=s), out=u)
        u += self.conf.delta
        average(m, g, self.settings.beta1, s)
        np.multiply(m, lr, out=t)
        t /= u
        w -= t


@register("updater", kLion=8)
class Lion(Updater):
    """Lion of Chen et al. (2023): w -= lr·sign(β₁·a + (1 - β₁)·g); a = β₂·a + (1 - β₂)·g.

    Symbolic Discovery of Optimization Algorithms. Good rates are a tenth of Adam's. ``weight_decay`` is added to the
    gradient; the paper has the decay of ``decoupled_weight_decay``.
    """

    class Conf(Settings):
        """Settings of kLion."""

        beta1: Share = setting(0.9, "the weight of the running mean, compared with the newest gradient, in a step")
        beta2: Share = setting(0.99, "the decay of the running mean of gradients")

    settings: Conf
    slots = ("mean",)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply Lion's formula to a block."""
        (m,) = slots
        np.subtract(g, m, out=s)
        s *= 1.0 - self.settings.beta1
        s += m
        average(m, g, self.settings.beta2, t)
        np.absolute(s, out=t)
        t += SMALLEST  # so that the sign of 0 is 0
        s /= t
        s *= lr
        w -= s
