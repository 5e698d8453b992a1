"""Defines Updater, the base class of optimizers: clipping, weight decay, learning rate and averages of params.

First the gradient is clipped to [clip_low, clip_high], if this is an interval, or scaled down to the norm
``clip_norm``, if it is not 0. Then ``weight_decay·wd_scale·w`` is added. lr is the schedule's rate times ``lr_scale``.
Decoupled decay, w -= lr·weight_decay·wd_scale·w, comes before the formula (Loshchilov and Hutter, 2019), as in PyTorch,
Keras and optax. With ``nan_to_zero``, NaN becomes 0 before everything else, as in cxxnet.
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import fnmatchcase
from typing import Any

import numpy as np

from dsinga.base.arrays import EMA_SLOT
from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code, nearest
from dsinga.job import ParamSettingsConf, UpdaterConf, UpdaterType
from dsinga.job.component import Configured, error_note, resolve
from dsinga.job.message import Message
from dsinga.job.writer import lines, message_fields
from dsinga.ops import Array, SparseRows, Update
from dsinga.ops.ufunc_programs import TracedSeries, Untraceable
from dsinga.ops.update import apply
from dsinga.training.schedules import decay_at, schedule

PARAM_SETTINGS = (
    "learning_rate", "momentum", "momentum_conf", "weight_decay", "l1", "l2", "clip_low", "clip_high",
    "clip_norm",
)  # fmt: skip


def with_settings(conf: UpdaterConf, settings: ParamSettingsConf) -> UpdaterConf:
    """Return the updater configuration for the params that a pattern of ``param_settings`` matches."""
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
    """Raise JobError for a pattern of ``param_settings`` that matches no param, and suggest similar names."""
    patterns: list[tuple[Message, str, int, str]] = [(each, "match", 0, each.match) for each in conf.param_settings]
    cls = resolve(conf)
    if cls.Conf is not None and cls.pattern_settings:
        settings = conf.settings_of(cls.Conf)
        for field in cls.pattern_settings:
            patterns += [(settings, field, item, pattern) for item, pattern in enumerate(getattr(settings, field))]
    for message, field, item, pattern in patterns:
        if not any(fnmatchcase(param, pattern) for param in params):
            advice = nearest(pattern.strip("*"), params) or f"; the first are {', '.join(sorted(params)[:5])}"
            raise message.error(f"{field}: {pattern!r} matches the name of no param{advice}", field, item)


def describe_settings(conf: UpdaterConf, params: Collection[str]) -> list[str]:
    """Say which params each pattern of ``param_settings`` matches, and their settings, a line for each."""
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
    """Make the optimizer that a job configures.

    A user's updater is tried on three numbers, so that a fault shows before training.
    """
    updater = _create(conf)
    updater.variants = tuple(
        (settings.match, _create(with_settings(conf, settings))) for settings in conf.param_settings
    )
    return updater


def _create(conf: UpdaterConf) -> Updater:
    """Make the optimizer, without the settings of single params."""
    if conf.clip_norm and conf.clip_high > conf.clip_low:
        raise conf.error("clips twice: give clip_norm, or clip_low and clip_high", "clip_norm")
    if (conf.clip_norm or conf.clip_global_norm) and conf.nan_to_zero:
        name = "clip_norm" if conf.clip_norm else "clip_global_norm"
        raise conf.error(f"nan_to_zero goes with clip_low and clip_high, not with {name}", "nan_to_zero")
    if conf.clip_global_norm and (conf.clip_norm or conf.clip_high > conf.clip_low):
        text = "clips twice: give clip_global_norm, or clip_norm, clip_low and clip_high, also in param_settings"
        raise conf.error(text, "clip_global_norm")
    has_momentum = conf.type in (UpdaterType.kSGD, UpdaterType.kNesterov, UpdaterType.kUserUpdater)
    for name in () if has_momentum else ("momentum", "momentum_conf"):
        if getattr(conf, name) and not (name == "momentum" and conf.type.name in IGNORE_MOMENTUM):
            raise conf.error(f"{conf.type.name} has no momentum; leave {name} out", name)
    if conf.momentum_conf and conf.momentum:
        raise conf.error("gives momentum and momentum_conf; leave one out", "momentum")
    cls = resolve(conf)
    name = conf.user_type or conf.type.name
    if not (isinstance(cls, type) and issubclass(cls, Updater)):
        raise conf.error(f"updater {name!r} must be a subclass of dsinga.training.Updater, not {cls!r}", "user_type")
    if conf.ema_conf and cls.update is not Updater.update:
        raise conf.error(
            f"ema_conf averages params in Updater.update, which {name!r} replaces; leave it out", "ema_conf"
        )
    if isinstance(cls.slots, str):
        raise conf.error(f"slots of updater {name!r} must be a tuple, as in ({cls.slots!r},)", "user_type")
    with error_note(f"in updater {name!r}, tried before training"):
        updater = cls(conf)
        if not hasattr(updater, "schedule"):
            raise conf.error(f"{cls.__name__}.__init__ must begin with super().__init__(conf)", "user_type")
        updater.update(0, value := np.ones(3, np.float32), np.ones(3, np.float32), updater.initial_state(value))
    return updater


IGNORE_MOMENTUM = ("kAdaGrad", "kRMSProp", "kAdaDelta", "kAdam", "kAdamMax")  # so that SINGA's jobs stay as they are


def factor_at(factors: Sequence[tuple[int, float]], step: int) -> float:
    """Look up the factor of the learning rate at ``step``, in a table of (first step, factor); 1 before the first."""
    return next((factor for start, factor in reversed(factors) if start <= step), 1.0)


class Updater(Configured, ABC):
    """Base class of optimizers: changes params by their gradients. It has no state, so threads can share it.

    With ``whole``, :meth:`change` gets whole params in their shapes, which servers do not slice.

    A subclass names its state arrays in ``slots`` and defines :meth:`change`, which updates a block of a param. It may
    declare settings as ``Conf``.

    >>> import numpy as np
    >>> import dsinga
    >>> from dsinga.job import Settings, setting
    >>> from dsinga.training import Updater
    >>> @dsinga.register("updater", "SignOfMean")  # nn.SignOfMean(0.01, memory=0.8)
    ... class SignOfMean(Updater):
    ...     class Conf(Settings):
    ...         memory: float = setting(0.9, "the share of the mean that an update keeps")
    ...
    ...     slots = ("mean",)
    ...
    ...     def change(self, lr, w, g, slots, t, s):
    ...         (mean,) = slots
    ...         mean *= self.settings.memory
    ...         mean += (1 - self.settings.memory) * g
    ...         w -= lr * np.sign(mean)

    A job names it ``updater { user_type: "SignOfMean" signofmean_conf { memory: 0.8 } }``.
    """

    conf: UpdaterConf
    slots: tuple[str, ...] = ()
    decoupled: bool = False  # whether weight decay is no part of the gradient, also unless the job says so
    whole: bool = False  # whether the formula is not elementwise, and needs the whole param
    variants: tuple[tuple[str, Updater], ...] = ()  # for the params that each pattern matches
    pattern_settings: tuple[str, ...] = ()  # the names of settings that are lists of patterns of params' names
    _rate_factors: Sequence[tuple[int, float]] = ()  # (from which step on, factor), in rising order of the steps

    def __init__(self, conf: UpdaterConf):
        super().__init__(conf)
        self.schedule = schedule(conf.learning_rate)
        self.programs: dict[Any, dict[Any, TracedSeries | None]] = {}  # of Formulas, by their other settings
        self._momentum_share: Any = None
        if conf.momentum_conf is not None:
            from dsinga.training.composed_schedules import momentum_share

            self._momentum_share = momentum_share(conf)
        self.clips = conf.clip_high > conf.clip_low
        self.decoupled = self.decoupled or conf.decoupled_weight_decay

    def set_rate_factors(self, factors: Mapping[int, float]) -> None:
        """Multiply the schedule's rate by ``factors[s]`` from step s on, up to the next step of the table."""
        self._rate_factors = tuple(sorted(factors.items()))
        for _, variant in self.variants:
            variant.set_rate_factors(factors)

    def of(self, param: str, shape: tuple[int, ...] = ()) -> Updater:
        """Return the updater for a param: of the first pattern that matches its name, or this one."""
        matching = (variant for pattern, variant in self.variants if fnmatchcase(param, pattern))
        return next(matching, self).for_param(param, shape)

    def for_param(self, param: str, shape: tuple[int, ...]) -> Updater:
        """Return the updater for a param of this shape: this one, or another."""
        return self

    @property
    def needs_whole_params(self) -> bool:
        """Whether some updates need a whole gradient, so that params must not be cut among servers."""
        return self.conf.clips_norms or any(each.whole for each in (self, *(variant for _, variant in self.variants)))

    def momentum_at(self, step: int) -> float:
        """Return the momentum at ``step``, which may move from base to final."""
        if (conf := self.conf.momentum_conf) is None or self._momentum_share is None:
            return self.conf.momentum
        return conf.base_momentum + (conf.final_momentum - conf.base_momentum) * self._momentum_share(step)

    def rate(self, step: int) -> float:
        """Return the learning rate at ``step`` by the schedule; steps of an earlier run count."""
        return float(self.schedule(step + self.conf.earlier_steps))  # a numpy float64 would make blocks float64

    def rate_at(self, step: int) -> float:
        """Return the learning rate at ``step``, with factors that extensions have set."""
        return self.rate(step) * factor_at(self._rate_factors, step) if self._rate_factors else self.rate(step)

    def create_state(self, size: int) -> dict[str, np.ndarray]:
        """Return the initial optimizer state for ``size`` elements: float32 zeros, by slot."""
        return {slot: np.zeros(size, np.float32) for slot in self.slots}

    @property
    def has_state(self) -> bool:
        """Whether the optimizer keeps arrays, such as a momentum, between updates."""
        return any(updater.state_slots for updater in (self, *(variant for _, variant in self.variants)))

    @property
    def state_slots(self) -> tuple[str, ...]:
        """The names of all state arrays: ``slots``, and the param's average if the job asks for averages."""
        return (*self.slots, EMA_SLOT) if self.conf.ema_conf else self.slots

    def initial_state(self, value: np.ndarray) -> dict[str, np.ndarray]:
        """Return the initial optimizer state of a param: zeros, and its value (size,) as its average."""
        state = self.create_state(value.size)
        return state | {EMA_SLOT: np.array(value, np.float32)} if self.conf.ema_conf else state

    def check_state(self, param: str, state: Collection[str]) -> None:
        """Raise UserError if a checkpoint has the state of another kind of optimizer."""
        expected = self.initial_state(np.zeros(1, np.float32)).keys()
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
        shape: tuple[int, ...] = (),
    ) -> None:
        """Apply a gradient: change ``value`` and ``state``, 1-d float32 arrays, in place.

        The update is elementwise and exactly rounded: a slice of a param gets the same bits alone as within the whole.
        Only clip_norm needs the param's whole gradient.

        A sparse gradient changes its rows only: others get neither weight decay nor momentum.
        """
        apply(self.create_update(step, value, gradient, state, lr_scale, wd_scale, shape), self.conf.clip_norm)

    def create_update(
        self,
        step: int,
        value: Array,
        gradient: Array | SparseRows,
        state: Mapping[str, Array],
        lr_scale: float = 1.0,
        wd_scale: float = 1.0,
        shape: tuple[int, ...] = (),
    ) -> Update:
        """Return an update that is not applied yet, so that ``Ops.update`` can apply many at once."""
        formula = Formulas(self, lr_scale, wd_scale, shape if self.whole else ()).at(step)
        slots = [state[slot] for slot in self.state_slots]
        if self.whole:
            gradient = gradient.dense().reshape(-1) if isinstance(gradient, SparseRows) else gradient
            return Update(formula, value, gradient, slots, whole=True)
        if isinstance(gradient, SparseRows):
            values = gradient.values.reshape(len(gradient.rows), math.prod(gradient.shape[1:]))
            return Update(formula, value, values, slots, gradient.rows)
        return Update(formula, value, gradient, slots)

    def change_at(self, step: int) -> Change:
        """Return the function that changes a block of a param at ``step``: by default :meth:`change`."""
        return self.change

    def averages_at(self, step: int) -> bool:
        """Whether ``step`` updates the averages of params (EMA)."""
        return decay_at(self.conf.ema_conf, step + self.conf.earlier_steps) is not None

    def decay_and_change(
        self, change: Change, lr: float, decay: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block
    ) -> None:
        """Apply the weight decay, coupled or decoupled, and then ``change`` to a block of a param."""
        if decay and self.decoupled:
            w -= np.multiply(w, lr * decay, out=s)
        elif decay:
            g = np.add(g, np.multiply(w, decay, out=s), out=t)
        change(lr, w, g, slots, t, s)

    @abstractmethod
    def change(self, lr: float, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Apply the optimizer's formula to ``w`` and ``slots``, blocks of equal length, in place, elementwise.

        ``t`` and ``s`` are scratch. ``g`` may be ``t`` itself; do not write to it otherwise.
        """


def _names(names: Collection[str]) -> str:
    return ", ".join(map(repr, sorted(names))) or "none"


@dataclass(frozen=True)
class Formulas:
    """The formulas that change a param at each step, with the param's scales."""

    updater: Updater
    lr_scale: float = 1.0
    wd_scale: float = 1.0
    shape: tuple[int, ...] = ()  # of the arrays of a whole param; () leaves them flat

    @property
    def programs(self) -> dict[Any, TracedSeries | None]:
        """The traced programs of these formulas, which the updater keeps."""
        return self.updater.programs.setdefault((self.lr_scale, self.wd_scale, self.shape), {})

    def __call__(self, numbers: Sequence[Any]) -> Formula:
        """Return the formula with symbols for a step's numbers, to compile it once."""
        if is_user_code(self.updater):
            raise Untraceable(f"{type(self.updater).__name__} is the user's")
        return Formula(self, tuple(numbers))

    def at(self, step: int) -> Formula:
        """Return the formula of a step, a function of blocks."""
        return Formula(self, self.numbers_at(step))

    def numbers_at(self, step: int) -> tuple[float, int, float | None]:
        """Return the numbers of a step: learning rate, steps before it, and the average's decay, if any."""
        updater, conf = self.updater, self.updater.conf
        counted = step + conf.earlier_steps
        ema_decay = None if conf.ema_conf is None else decay_at(conf.ema_conf, counted)
        return updater.rate_at(step) * self.lr_scale, counted, ema_decay


@dataclass(frozen=True)
class Formula:
    """An updater's formula at one step, as a function of blocks, without clip_norm."""

    series: Formulas
    numbers: tuple[Any, ...]  # see Formulas.numbers_at

    def __call__(self, w: Block, g: Block, slots: Sequence[Block], t: Block, s: Block) -> None:
        """Clip the gradient, apply the weight decay, change the block, and update its average."""
        lr, counted, share = self.numbers
        updater, shape = self.series.updater, self.series.shape
        conf, decay = updater.conf, updater.conf.weight_decay * self.series.wd_scale
        if shape:
            w, g, t, s = (array.reshape(shape) for array in (w, g, t, s))
            slots = [array.reshape(shape) for array in slots]
        slots, averages = (slots[:-1], slots[-1:]) if conf.ema_conf else (slots, ())
        if conf.nan_to_zero:  # fmax and fmin take the number of a number and NaN
            g = np.add(np.fmax(g, 0.0, out=s), np.fmin(g, 0.0, out=t), out=t)
        if updater.clips:
            g = np.minimum(np.maximum(g, conf.clip_low, out=t), conf.clip_high, out=t)
        if conf.l2:
            g = np.add(g, np.multiply(w, 2 * conf.l2, out=s), out=t)
        if conf.l1:  # of sign(w), which is 0 of 0
            size = np.add(np.absolute(w, out=s), SMALLEST, out=s)
            g = np.add(g, np.multiply(np.divide(w, size, out=s), conf.l1, out=s), out=t)
        updater.decay_and_change(updater.change_at(counted), lr, decay, w, g, slots, t, s)
        if share is not None:
            for a in averages:
                a *= share
                a += np.multiply(w, 1.0 - share, out=s)
