"""Updater, the base class of all updaters, which change params by gradients: clipping, weight decay, learning rate.

The gradient is first clipped to [clip_low, clip_high] (where that is an interval) or scaled down to the Euclidean norm
``clip_norm`` (where that is not 0), then ``weight_decay·wd_scale·w`` is added; lr is the schedule's rate at this step
times ``lr_scale``. With ``nan_to_zero``, elements that are NaN become 0 before all that, as in cxxnet. SINGA clips in
only four of its updaters, and its AdaGrad does not know ``delta``; here all clip and all add the ``delta`` of the job.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from dsinga.errors import UserError
from dsinga.job import ParamSettingsConf, UpdaterConf, UpdaterType
from dsinga.job.component import Configured
from dsinga.job.writer import lines, message_fields
from dsinga.ops import Array, SparseRows, Update
from dsinga.ops.update import apply
from dsinga.registry import nearest
from dsinga.training.resolve import error_note, resolve
from dsinga.training.schedules import schedule

PARAM_SETTINGS = (
    "learning_rate", "momentum", "momentum_conf", "weight_decay", "l1", "l2", "clip_low", "clip_high",
    "clip_norm",
)  # fmt: skip


def with_settings(conf: UpdaterConf, settings: ParamSettingsConf) -> UpdaterConf:
    """Return the updater as it is for the params that ``settings`` match; raise JobError where these contradict."""
    if settings.base_lr is not None and settings.learning_rate is not None:
        raise settings.error("gives base_lr and learning_rate: put base_lr into learning_rate", "base_lr")
    changes = {name: value for name in PARAM_SETTINGS if (value := getattr(settings, name)) is not None}
    if settings.base_lr is not None:
        changes["learning_rate"] = conf.learning_rate.replace(base_lr=settings.base_lr)
    if settings.momentum is not None:
        changes.setdefault("momentum_conf", None)
    elif settings.momentum_conf is not None:
        changes["momentum"] = 0.0
    if settings.clip_norm:
        changes = {"clip_low": 0.0, "clip_high": 0.0} | changes
    elif settings.clip_low is not None or settings.clip_high is not None:
        changes = {"clip_norm": 0.0} | changes
    return conf.replace(param_settings=[], **changes)


def check_patterns(conf: UpdaterConf, params: Collection[str]) -> None:
    """Raise JobError for a pattern that matches none of these params, with the names that are nearest to it."""
    for settings in conf.param_settings:
        if not any(fnmatchcase(param, settings.match) for param in params):
            advice = nearest(settings.match.strip("*"), params) or f"; the first are {', '.join(sorted(params)[:5])}"
            raise settings.error(f"match: {settings.match!r} matches the name of no param{advice}", "match")


def describe_settings(conf: UpdaterConf, params: Collection[str]) -> list[str]:
    """Return a line for each of the updater's param_settings: the params for which it holds, and what it sets."""
    left, described = list(params), []
    for settings in conf.param_settings:
        matched = [param for param in left if fnmatchcase(param, settings.match)]
        left = [param for param in left if param not in matched]
        values = " ".join(lines(item for item in message_fields(settings) if item[0] != "match"))
        described.append(f"{settings.match}: {values}; holds for {' '.join(matched) or 'no param'}")
    return described


SMALLEST = float(np.finfo(np.float32).tiny)  # keeps 0 / 0 from being NaN
Block = Any  # an array, or what stands for one: see dsinga.ops.ufunc_programs
Change = Callable[[float, Block, Block, Sequence[Block], Block, Block], None]  # see Updater.change


def create_updater(conf: UpdaterConf) -> Updater:
    """Return the updater that the job names; raise JobError where its configuration is missing or wrong.

    A user's updater is a subclass of Updater, registered as ``@register("updater", "name")``. It updates three numbers
    here, so that a fault in it shows before training.
    """
    updater = _create(conf)
    updater.variants = tuple(
        (settings.match, _create(with_settings(conf, settings))) for settings in conf.param_settings
    )
    return updater


def _create(conf: UpdaterConf) -> Updater:
    """Return the updater without those of its param_settings."""
    if conf.clip_norm and conf.clip_high > conf.clip_low:
        raise conf.error("clips twice: give clip_norm, or clip_low and clip_high", "clip_norm")
    if conf.clip_norm and conf.nan_to_zero:
        raise conf.error("nan_to_zero goes with clip_low and clip_high, not with clip_norm", "nan_to_zero")
    if conf.momentum_conf and conf.type not in (UpdaterType.kSGD, UpdaterType.kNesterov, UpdaterType.kUserUpdater):
        raise conf.error(f"{conf.type.name} has no momentum; leave momentum_conf out", "momentum_conf")
    if conf.momentum_conf and conf.momentum:
        raise conf.error("gives momentum and momentum_conf; leave one out", "momentum")
    cls = resolve(conf)
    name = conf.user_type or conf.type.name
    if not (isinstance(cls, type) and issubclass(cls, Updater)):
        raise conf.error(f"updater {name!r} must be a subclass of dsinga.training.Updater, not {cls!r}", "user_type")
    if isinstance(cls.slots, str):
        raise conf.error(f"slots of updater {name!r} must be a tuple, as in ({cls.slots!r},)", "user_type")
    with error_note(f"in updater {name!r}, tried before training"):
        updater = cls(conf)
        if not hasattr(updater, "rate"):
            raise conf.error(f"{cls.__name__}.__init__ must begin with super().__init__(conf)", "user_type")
        updater.update(0, np.ones(3, np.float32), np.ones(3, np.float32), updater.create_state(3))
    return updater


def factor_at(factors: Sequence[tuple[int, float]], step: int) -> float:
    """Return the factor that holds at ``step``, of (from which step on, factor) in rising order; 1 before the first."""
    return next((factor for start, factor in reversed(factors) if start <= step), 1.0)


@dataclass(frozen=True)
class Later:
    """A schedule that begins so many steps later: those that an earlier run has done."""

    schedule: Callable[[int], float]
    steps: int

    def __call__(self, step: int) -> float:
        """Return the rate of the schedule at ``step``, counted from the end of the earlier run."""
        return self.schedule(step + self.steps)


class Updater(Configured, ABC):
    """Changes params by gradients, element by element; has no state itself, so that threads can share it.

    A subclass names its state arrays in ``slots`` and defines :meth:`change`, which updates a block of a param. It may
    declare settings as ``Conf``; those of the job are then in ``settings``.
    """

    conf: UpdaterConf
    slots: tuple[str, ...] = ()
    variants: tuple[tuple[str, Updater], ...] = ()  # for the params that each pattern matches
    _rate_factors: Sequence[tuple[int, float]] = ()  # (from which step on, factor), in rising order of the steps

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.rate = Later(schedule(conf.learning_rate), conf.earlier_steps)
        self.clips = conf.clip_high > conf.clip_low

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the schedule's rate by ``factors[s]`` from step s on, up to the next step of the table.

        It takes the place of an earlier table. Threads may be updating: the rate of a step with the same factor in both
        tables does not change.
        """
        self._rate_factors = tuple(sorted(factors.items()))
        for _, variant in self.variants:
            variant.set_rate_factors(factors)

    def of(self, param: str) -> Updater:
        """Return the updater of a param, given by its whole name: that of the first pattern which matches, or this."""
        return next((variant for pattern, variant in self.variants if fnmatchcase(param, pattern)), self)

    def momentum_at(self, step: int) -> float:
        """Return the momentum at ``step``: ``momentum``, or base + (final - base)·step / saturation_step, up to final.

        That is cxxnet's schedule, which takes the smaller of this and final_momentum.
        """
        if (conf := self.conf.momentum_conf) is None:
            return self.conf.momentum
        share = min(step / conf.saturation_step, 1.0)
        return conf.base_momentum + (conf.final_momentum - conf.base_momentum) * share

    def rate_at(self, step: int) -> float:
        """Return the learning rate at ``step``: the schedule's, times the factor that holds then."""
        rate = float(self.rate(step))  # a numpy float64 of a user's schedule would make blocks float64
        return rate * factor_at(self._rate_factors, step)

    def create_state(self, size: int) -> dict[str, np.ndarray]:
        """Return the initial state for ``size`` elements: float32 zeros, by slot."""
        return {slot: np.zeros(size, np.float32) for slot in self.slots}

    def check_state(self, param: str, state: Collection[str]) -> None:
        """Raise UserError if the slots of a param in a checkpoint are not those of this updater."""
        expected = self.create_state(1).keys()
        if set(state) != expected:
            raise UserError(
                f"param {param!r}: the checkpoint has the updater state {_names(state)}, but the job's updater needs "
                f"{_names(expected)}: resume with the updater that wrote it, or start a new run from its params with "
                "checkpoint_path"
            )

    def update(
        self,
        step: int,
        value: Array,
        gradient: Array | SparseRows,
        state: Mapping[str, Array],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> None:
        """Change ``value`` and ``state``, 1-d float32 arrays, in place; ``gradient``, 1-d too, stays unchanged.

        All may be arrays of a backend that take numpy's ufuncs, as CuPy's do.

        The update is elementwise, in exactly rounded operations: a slice of a param gets the same bits alone as within
        the whole. Only clip_norm needs the gradient of the whole param, or at least all of it that is not 0.

        A sparse gradient changes its rows of ``value`` and ``state`` only: in this step, the other rows have neither
        weight decay nor momentum.
        """
        apply(self.create_update(step, value, gradient, state, lr_scale, wd_scale), self.conf.clip_norm)

    def create_update(
        self,
        step: int,
        value: Array,
        gradient: Array | SparseRows,
        state: Mapping[str, Array],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
    ) -> Update:
        """Return the formula of :meth:`update` with its arrays: ``Ops.update`` applies those of many params at once.

        The norm of the gradient is not clipped yet: ``Ops.update`` takes ``clip_norm``.
        """
        lr = self.rate_at(step) * lr_scale
        formula = Formula(self, self.change_at(step + self.conf.earlier_steps), lr, self.conf.weight_decay * wd_scale)
        slots = [state[slot] for slot in self.slots]
        if isinstance(gradient, SparseRows):
            values = gradient.values.reshape(len(gradient.rows), math.prod(gradient.shape[1:]))
            return Update(formula, value, values, slots, gradient.rows)
        return Update(formula, value, gradient, slots)

    def change_at(self, step: int) -> Change:
        """Return the function that changes a block at ``step``: :meth:`change`, unless it depends on the step."""
        return self.change

    @abstractmethod
    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Change ``w`` and ``slots``, blocks of equal length, in place, elementwise.

        ``t`` and ``s`` are scratch; ``g`` may be ``t`` itself and must not be written otherwise.
        """


def _names(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


@dataclass(frozen=True)
class Formula:
    """An updater at one step, as a function of blocks (:data:`dsinga.ops.update.Formula`), without clip_norm."""

    updater: Updater
    change: Change
    lr: float
    decay: float

    def __call__(self, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Clip the gradient, add the weight decay, and change the block."""
        conf = self.updater.conf
        if conf.nan_to_zero:  # fmax and fmin take the number of a number and NaN
            g = np.add(np.fmax(g, 0.0, out=s), np.fmin(g, 0.0, out=t), out=t)
        if self.updater.clips:
            g = np.minimum(np.maximum(g, conf.clip_low, out=t), conf.clip_high, out=t)
        if self.decay:
            g = np.add(g, np.multiply(w, self.decay, out=s), out=t)
        if conf.l2:
            g = np.add(g, np.multiply(w, 2 * conf.l2, out=s), out=t)
        if conf.l1:  # of sign(w), which is 0 of 0
            size = np.add(np.absolute(w, out=s), SMALLEST, out=s)
            g = np.add(g, np.multiply(np.divide(w, size, out=s), conf.l1, out=s), out=t)
        self.change(self.lr, w, g, slots, t, s)
