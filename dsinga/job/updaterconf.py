"""The schema of updaters and learning rates: ``updater { }`` of a job, and the messages within it."""

from __future__ import annotations

from dataclasses import field
from numbers import Real
from typing import Any, ClassVar

from dsinga.base.arguments import check_range, fail_for_name
from dsinga.base.errors import UserError
from dsinga.job.component import Component
from dsinga.job.enums import ChangeMethod, UpdaterType
from dsinga.job.limits import Bound, Count, Natural, NonNegative, Share
from dsinga.job.message import Message


class LRGenConf(Component):
    """The learning rate and its schedule.

    Beyond SINGA, as in cxxnet: the rate is ``base_lr`` before ``start_step``, then the schedule's at that step, and
    nowhere from there on less than ``minimum_lr``. In the first ``warmup_steps`` steps the rate rises in a line from
    ``warmup_lr`` to the schedule's first rate; the schedule counts its steps from there.
    """

    kind: ClassVar = "schedule"
    instead: ClassVar = {
        "assign": "write model.optimizer.learning_rate = 0.001",
        **dict.fromkeys(("numpy", "item", "value"), "float(model.optimizer.learning_rate) is a fixed rate"),
    }

    type: ChangeMethod = ChangeMethod.kUserChange
    user_type: str | None = None
    base_lr: NonNegative = 0.01
    minimum_lr: NonNegative | None = None
    start_step: Natural = 0
    warmup_steps: Natural = 0
    warmup_lr: NonNegative = 0.0

    def __float__(self) -> float:
        """Return a fixed rate; raise UserError for one that depends on the step."""
        if self.type is not ChangeMethod.kFixed or self.start_step or self.warmup_steps:
            raise UserError(f"the learning rate is a schedule, {self.type_name}, no number; base_lr is where it begins")
        return self.base_lr


class MomentumConf(Message):
    """A momentum that moves from ``base_momentum`` at step 0 in a line to ``final_momentum`` at ``saturation_step``.

    With ``one_cycle``, in place of ``saturation_step``, it moves against the learning rate of kOneCycle: it is
    ``base_momentum`` where that is lowest, and ``final_momentum`` where it is highest.
    """

    base_momentum: Share = 0.5
    final_momentum: Share = 0.9
    saturation_step: Count | None = None
    one_cycle: bool = False


class EMAConf(Message):
    """An exponential moving average of the params (EMA): a = decay·a + (1 - decay)·w after every ``every`` updates.

    The first of these copies the params. With ``warmup`` the decay of the t-th one, counted from 0, is at most
    1 - (1 + t)^(-2/3).
    """

    decay: Share = 0.999
    warmup: bool = False
    every: Count = 1


class ParamSettingsConf(Message):
    """Settings of the updater for the params whose name ``match``, a pattern such as ``*_bias``, fits.

    Fields that are not given have the value of the updater. ``base_lr`` changes that of its ``learning_rate``.
    ``l1`` and ``l2`` are the factors of the penalties Σ|w| and Σw², as for the updater.
    """

    match: str
    base_lr: NonNegative | None = None
    learning_rate: LRGenConf | None = None
    momentum: Share | None = None
    momentum_conf: MomentumConf | None = None
    weight_decay: NonNegative | None = None
    l1: NonNegative | None = None
    l2: NonNegative | None = None
    clip_low: Bound | None = None
    clip_high: Bound | None = None
    clip_norm: NonNegative | None = None


class UpdaterConf(Component):
    """The updater, which changes params by gradients. Gradients are clipped if ``clip_high > clip_low``.

    Beyond SINGA: if ``clip_norm`` is not 0, a param's gradient with a larger Euclidean norm is scaled down to it,
    and if ``clip_global_norm`` is not 0, all gradients are, where their norm together is larger. Both norms are
    computed from the whole batch's gradient, added up over workers.
    With ``clip_norm`` servers keep params whole, so one large param may keep one server busy. A layer that is cut by
    features has a norm, and is clipped, part by part.
    With ``clip_global_norm`` each server waits for all gradients of a step and exchanges a few numbers with the others,
    so updates do not overlap with the backward pass. Several worker groups use the norm of the group's own gradients.
    Sums of squares are exact in float64, so two runs give the same bits. A norm that is not finite scales nothing. It
    cannot be combined with the other bounds or with graph grain.
    ``decoupled_weight_decay`` subtracts lr·weight_decay·w from the param, and adds no decay to the gradient.
    ``nan_to_zero`` sets the elements of a gradient that are NaN to 0, before it is clipped. ``momentum_conf`` takes
    the place of ``momentum``. With ``ema_conf`` params are averaged: tests and results use the averages. Of
    ``param_settings``, the first that matches a param's name holds for it.
    ``l1`` and ``l2`` add the gradients l1·sign(w) and 2·l2·w of penalties, as weight decay also after clipping.
    ``earlier_steps`` of another run count for the schedule and for formulas that depend on the step, such as Adam's.
    ``goes_on`` says that other runs go on from this one, so that the schedule may last longer than it.
    """

    kind: ClassVar = "updater"
    instead: ClassVar = {
        **dict.fromkeys(("get_config", "from_config"), "print(model) shows the job with its updater"),
        **dict.fromkeys(("lr", "param_groups"), "write model.optimizer.learning_rate"),
        "iterations": "a callback gets the step; model.result.step is that of the last fit",
        "variables": "model.save keeps its state; model.weights are the params",
        **dict.fromkeys(
            ("apply_gradients", "apply", "minimize", "step", "zero_grad"),
            "dsinga.nn.LocalNet(model.job(train_steps=1), x, y) is for a loop of your own (docs/howto/callbacks.md)",
        ),
    }

    type: UpdaterType = UpdaterType.kUserUpdater
    user_type: str | None = None
    learning_rate: LRGenConf = field(default_factory=lambda: LRGenConf(type=ChangeMethod.kFixed))
    momentum: Share = 0.0
    momentum_conf: MomentumConf | None = None
    weight_decay: NonNegative = 0.0
    decoupled_weight_decay: bool = False
    l1: NonNegative = 0.0
    l2: NonNegative = 0.0
    delta: NonNegative = 1e-8
    clip_low: Bound = 0.0
    clip_high: Bound = 0.0
    clip_norm: NonNegative = 0.0
    clip_global_norm: NonNegative = 0.0
    nan_to_zero: bool = False
    ema_conf: EMAConf | None = None
    earlier_steps: Natural = 0
    goes_on: bool = False
    param_settings: list[ParamSettingsConf] = field(default_factory=list)

    def __setattr__(self, name: str, value: Any) -> None:
        if name == "learning_rate" and isinstance(value, Real):
            check_range(name, value, 0)
            value = LRGenConf(type=ChangeMethod.kFixed, base_lr=float(value))
        if name in self.instead:
            fail_for_name("an optimizer", name, (), self.instead)
        super().__setattr__(name, value)

    @property
    def clips_norms(self) -> bool:
        """Whether the norm of some params' gradients is clipped, which needs these gradients whole."""
        return bool(self.clip_norm) or any(settings.clip_norm for settings in self.param_settings)
