"""How gradients change params: SINGA's seven updaters.

For all of them the gradient is first clipped to [clip_low, clip_high] (where that is an interval) or scaled down to the
Euclidean norm ``clip_norm`` (where that is not 0), then ``weight_decay·wd_scale·w`` is added; lr is the schedule's rate
at this step times ``lr_scale``. SINGA clips in only four of them, and its AdaGrad does not know ``delta``; here all
clip and all add the ``delta`` of the job.
"""

from __future__ import annotations

import functools
import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.job import AdaDeltaConf, AdamConf, AdamMaxConf, UpdaterConf
from dsinga.ops import SparseRows
from dsinga.registry import register
from dsinga.training.chosen import chosen, noting
from dsinga.training.schedules import schedule

Block = np.ndarray
Change = Callable[[float, Block, Block, Sequence[Block], Block, Block], None]  # see Updater.change
BLOCK = 65536  # elements; value, gradient, state and scratch of a block stay in the L2 cache over its passes


def create_updater(conf: UpdaterConf) -> Updater:
    """Return the updater that the job asks for; raise JobError where its configuration is missing or wrong.

    A user's own is a subclass of Updater, registered as ``@register("updater", "name")``. It is tried on three numbers,
    so that a fault of its own shows before training.
    """
    if conf.clip_norm and conf.clip_high > conf.clip_low:
        raise conf.error("clips twice: give clip_norm, or clip_low and clip_high", "clip_norm")
    cls = chosen("updater", conf)
    name = conf.user_type or conf.type.name
    if not (isinstance(cls, type) and issubclass(cls, Updater)):
        raise conf.error(f"updater {name!r} must be a subclass of dsinga.training.Updater, not {cls!r}", "user_type")
    if isinstance(cls.slots, str):
        raise conf.error(f"slots of updater {name!r} must be a tuple, as in ({cls.slots!r},)", "user_type")
    with noting(f"in updater {name!r}, tried before training"):
        updater = cls(conf)
        if not hasattr(updater, "rate"):
            raise conf.error(f"{cls.__name__}.__init__ must begin with super().__init__(conf)", "user_type")
        updater.update(0, np.ones(3, np.float32), np.ones(3, np.float32), updater.create_state(3))
    return updater


class Updater(ABC):
    """Changes params by gradients, element by element; itself without state, so threads may share it.

    A subclass names its state arrays in ``slots`` and says in ``change`` what happens to a block.
    """

    slots: tuple[str, ...] = ()

    def __init__(self, conf: UpdaterConf):
        self.conf = conf
        self.rate = schedule(conf.learning_rate)
        self.clips = conf.clip_high > conf.clip_low

    def create_state(self, size: int) -> dict[str, np.ndarray]:
        """Return the state for ``size`` elements before the first update: float32 zeros, by slot."""
        return {slot: np.zeros(size, np.float32) for slot in self.slots}

    def update(
        self,
        step: int,
        value: np.ndarray,
        gradient: np.ndarray,
        state: Mapping[str, np.ndarray],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> None:
        """Change ``value`` and ``state``, 1-d float32 arrays, in place; ``gradient`` is left as it is.

        Elementwise in exactly rounded operations: any slice of a param may be updated alone and has the same bits. Only
        clip_norm wants the gradient of a whole param, or all of it that is not 0.
        """
        lr = float(self.rate(step)) * lr_scale  # a numpy float64 from a user's schedule would widen the blocks
        decay = self.conf.weight_decay * wd_scale
        shrink = shrinkage(gradient, self.conf.clip_norm) if self.conf.clip_norm else 1.0
        change_block = self.change_at(step)
        arrays = [value, gradient, *(state[slot] for slot in self.slots)]
        scratch = np.empty((2, min(value.size, BLOCK)), value.dtype)
        for start in range(0, value.size, BLOCK):
            w, g, *slots = (array[start : start + BLOCK] for array in arrays)
            change, spare = scratch[0, : w.size], scratch[1, : w.size]
            if self.clips:
                g = np.minimum(np.maximum(g, self.conf.clip_low, out=change), self.conf.clip_high, out=change)
            elif shrink < 1.0:
                g = np.multiply(g, shrink, out=change)
            if decay:
                g = np.add(g, np.multiply(w, decay, out=spare), out=change)
            change_block(lr, w, g, slots, change, spare)

    def update_rows(
        self,
        step: int,
        value: np.ndarray,
        gradient: SparseRows,
        state: Mapping[str, np.ndarray],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> None:
        """Change the rows of ``value`` and ``state`` that the gradient has; the others do not move at all.

        ``value`` and ``state`` are flat, as in :meth:`update`. A row that is left out has neither weight decay nor
        momentum in this step.
        """
        shape, at = (gradient.shape[0], math.prod(gradient.shape[1:])), gradient.rows
        rows, slots = value.reshape(shape)[at], {name: array.reshape(shape)[at] for name, array in state.items()}
        flat = {name: array.reshape(-1) for name, array in slots.items()}
        self.update(step, rows.reshape(-1), gradient.values.reshape(-1), flat, lr_scale, wd_scale)
        value.reshape(shape)[at] = rows
        for name, array in slots.items():
            state[name].reshape(shape)[at] = array

    def change_at(self, step: int) -> Change:
        """Return what changes a block at ``step``: :meth:`change`, unless the formula knows the step."""
        return self.change

    @abstractmethod
    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Change ``w`` and ``slots``, blocks of equal length, in place, elementwise.

        ``t`` and ``s`` are scratch; ``g`` may be ``t`` itself and must not be written otherwise.
        """

    def part(self, field: str, default: Any = None) -> Any:
        """Return the message in ``field`` of the configuration, or else ``default``; JobError without either."""
        value = getattr(self.conf, field) or default
        if value is None:
            raise self.conf.error(f"updater {self.conf.type.name} wants {field} {{ ... }}", "type")
        return value


def shrinkage(gradient: np.ndarray, most: float) -> float:
    """Return the factor, at most 1, that brings a gradient down to the Euclidean norm ``most``.

    1 for one that is not finite: it is not made to look as if it were.
    """
    squares = 0.0
    for start in range(0, gradient.size, BLOCK):
        squares += float(np.square(gradient[start : start + BLOCK], dtype=np.float64).sum())
    norm = math.sqrt(squares)
    return most / norm if most < norm < math.inf else 1.0


def average(h: Block, x: Block, rho: float, s: Block) -> None:
    """h = rho·h + (1 - rho)·x, with scratch ``s``, which may be ``x``."""
    h *= rho
    h += np.multiply(x, 1.0 - rho, out=s)


def descend(w: Block, g: Block, h: Block, delta: float, lr: float, t: Block, s: Block) -> None:
    """w -= lr·g / √(h + delta), with scratch ``t``, which may be ``g``, and ``s``."""
    np.multiply(g, lr, out=t)
    t /= np.sqrt(np.add(h, delta, out=s), out=s)
    w -= t


@register("updater", "kSGD")
class SGD(Updater):
    """Stochastic gradient descent, with momentum if the job gives one."""

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.slots = ("history",) if conf.momentum else ()

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """h = m·h - lr·g; w += h, with momentum m; w -= lr·g without."""
        np.multiply(g, lr, out=t)
        if not slots:
            w -= t
            return
        (h,) = slots
        h *= self.conf.momentum
        h -= t
        w += h


@register("updater", "kNesterov")
class Nesterov(Updater):
    """Nesterov's accelerated gradient, in the form of Sutskever et al. (ICML 2013)."""

    slots = ("history",)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """v = h; h = m·h + lr·g; w -= (1 + m)·h - m·v."""
        (h,) = slots
        m = self.conf.momentum
        np.multiply(g, lr, out=t)
        h *= m
        w += h  # m·v
        h += t
        w -= np.multiply(h, 1.0 + m, out=t)


@register("updater", "kAdaGrad")
class AdaGrad(Updater):
    """Duchi, Hazan and Singer (JMLR 2011)."""

    slots = ("squares",)

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """h += g²; w -= lr·g / √(h + delta)."""
        (h,) = slots
        h += np.multiply(g, g, out=s)
        descend(w, g, h, self.conf.delta, lr, t, s)


@register("updater", "kRMSProp")
class RMSProp(Updater):
    """Tieleman and Hinton's lecture 6.5 (2012)."""

    slots = ("squares",)

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.rho = self.part("rmsprop_conf").rho

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """h = rho·h + (1 - rho)·g²; w -= lr·g / √(h + delta)."""
        (h,) = slots
        average(h, np.multiply(g, g, out=s), self.rho, s)
        descend(w, g, h, self.conf.delta, lr, t, s)


@register("updater", "kAdaDelta")
class AdaDelta(Updater):
    """Zeiler (2012)."""

    slots = ("squares", "updates")

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.rho = self.part("adadelta_conf", AdaDeltaConf()).rho

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """h = rho·h + (1 - rho)·g²; t = g·√(u + delta) / √(h + delta); u = rho·u + (1 - rho)·t²; w -= lr·t."""
        h, u = slots
        average(h, np.multiply(g, g, out=s), self.rho, s)
        np.sqrt(np.add(u, self.conf.delta, out=s), out=s)
        np.multiply(g, s, out=t)
        t /= np.sqrt(np.add(h, self.conf.delta, out=s), out=s)
        average(u, np.multiply(t, t, out=s), self.rho, s)
        t *= lr
        w -= t


@register("updater", "kAdam")
class Adam(Updater):
    """Kingma and Ba (2015); as in SINGA without their bias correction, unless the job asks for it."""

    slots = ("mean", "squares")

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        part = self.part("adam_conf", AdamConf())
        self.beta1, self.beta2, self.bias_correction = part.beta1, part.beta2, part.bias_correction

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """m = beta1·m + (1 - beta1)·g; v = beta2·v + (1 - beta2)·g²; w -= lr·m / √(v + delta)."""
        m, v = slots
        average(v, np.multiply(g, g, out=s), self.beta2, s)
        average(m, g, self.beta1, s)
        descend(w, m, v, self.conf.delta, lr, t, s)

    def change_at(self, step: int) -> Change:
        """See :class:`Updater`. The step, counted from 0, stands for the number of updates before this one."""
        return functools.partial(self.change_corrected, step + 1) if self.bias_correction else self.change

    def change_corrected(
        self, count: int, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block
    ) -> None:
        """m and v as in :meth:`change`; w -= lr·m̂ / (√v̂ + delta), m̂ = m / (1 - beta1^count), v̂ likewise by beta2."""
        m, v = slots
        average(v, np.multiply(g, g, out=s), self.beta2, s)
        average(m, g, self.beta1, s)
        np.multiply(m, lr / (1.0 - self.beta1**count), out=t)
        np.sqrt(np.multiply(v, 1.0 / (1.0 - self.beta2**count), out=s), out=s)
        s += self.conf.delta
        t /= s
        w -= t


@register("updater", "kAdamMax")
class AdamMax(Updater):
    """AdaMax of Kingma and Ba (2015); as in SINGA, without their bias correction."""

    slots = ("mean", "norm")

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        part = self.part("adammax_conf", AdamMaxConf())
        self.beta1, self.beta2 = part.beta1, part.beta2

    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """m = beta1·m + (1 - beta1)·g; u = max(beta2·u, |g|) + delta; w -= lr·m / u."""
        m, u = slots
        u *= self.beta2
        np.maximum(u, np.abs(g, out=s), out=u)
        u += self.conf.delta
        average(m, g, self.beta1, s)
        np.multiply(m, lr, out=t)
        t /= u
        w -= t
