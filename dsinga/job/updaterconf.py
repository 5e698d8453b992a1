"""The fields of a job's ``updater { }``: optimizer, learning rate, momentum, and averages of params."""

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

    Args:
        type: the type of the schedule.
        user_type: the name of your own schedule.
        base_lr: the rate from which the formula of the schedule starts.
        minimum_lr: the least rate, starting at ``start_step``.
        start_step: before this step the rate is ``base_lr``.
        warmup_steps: the number of first steps in which the rate rises in a line to the schedule's first rate. The
            schedule counts from there.
        warmup_lr: the rate at which the warm-up starts.
    """

    kind: ClassVar = "schedule"
    of_number: ClassVar = "type: kFixed base_lr: {}"  # what to write for a number alone
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
        """Return the learning rate if it is fixed. Raises UserError if it depends on the step."""
        if self.type is not ChangeMethod.kFixed or self.start_step or self.warmup_steps:
            raise UserError(f"the learning rate is a schedule, {self.type_name}, no number; base_lr is where it begins")
        return self.base_lr


class MomentumConf(Message):
    """A momentum that changes during training.

    Args:
        base_momentum: the momentum at step 0. With ``one_cycle``, the momentum where the learning rate is lowest.
        final_momentum: the last momentum. With ``one_cycle``, the momentum where the learning rate is highest.
        saturation_step: the step at which it is ``final_momentum``. Before it, the momentum moves in a line.
        one_cycle: whether the momentum moves against the learning rate of kOneCycle.
    """

    base_momentum: Share = 0.5
    final_momentum: Share = 0.9
    saturation_step: Count | None = None
    one_cycle: bool = False


class EMAConf(Message):
    """An exponential moving average (EMA) of the params: a = decay·a + (1 - decay)·w after each ``every`` updates.

    Validation, tests, ``KeepBest`` and results use the averages. Training and resumed runs use the params. Checkpoints
    have both. The first average is a copy of the params, as in Keras and PyTorch's AveragedModel. A further ``fit``
    starts from the averages.

    Several worker groups update one average. Of several server groups, the averages of the first count; with
    ``sync_method: kMean`` outer params are averaged. Frozen params and running statistics have no averages.

    Args:
        decay: the decay. The average covers about the last 1 / (1 - decay) updates.
        warmup: whether the decay of the t-th average, counted from 0, is at most 1 - (1 + t)^(-2/3), for short runs.
        every: the number of updates between two averages.
    """

    decay: Share = 0.999
    warmup: bool = False
    every: Count = 1


class ParamSettingsConf(Message):
    """Settings of the optimizer for the params with names that match a pattern.

    The first pattern that matches counts. A field that is not given has the updater's value. A param's ``lr_scale`` and
    ``wd_scale`` still apply.

    Args:
        match: the pattern, such as ``*_bias``. A pattern that matches no param is refused.
        base_lr: the ``base_lr`` of the updater's schedule.
        learning_rate: another schedule.
        momentum: the momentum.
        momentum_conf: a momentum that changes during training.
        weight_decay: the factor of w that is added to its gradient.
        l1: the factor of the penalty Σ|w|.
        l2: the factor of the penalty Σw².
        clip_low: the least number of a gradient.
        clip_high: the largest number of a gradient.
        clip_norm: the largest Euclidean norm of the gradient of a param; 0 for no limit.
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
    """The updater (optimizer), which changes the params by their gradients.

    Norms are of the whole batch's gradient. With ``clip_norm`` servers keep params whole. A layer that is cut by
    features is clipped part by part, and refused with ``blocks``.

    With ``clip_global_norm`` updates do not overlap with the backward pass. Each worker group uses its own norm. A norm
    that is not finite scales nothing. ``clip_global_norm`` cannot be combined with the other bounds or with graph
    grain.

    Args:
        type: the type of the updater.
        user_type: the name of your own updater.
        learning_rate: the learning rate and its schedule.
        momentum: the momentum of kSGD and kNesterov.
        momentum_conf: a momentum that changes during training, in place of ``momentum``.
        weight_decay: the factor of w that is added to its gradient.
        decoupled_weight_decay: whether lr·weight_decay·w is subtracted from w instead. kAdamW and kMuon always do so.
        l1: the factor of the penalty Σ|w|: l1·sign(w) is added to the gradient after clipping.
        l2: the factor of the penalty Σw²: 2·l2·w is added to the gradient after clipping.
        delta: the number that is added to the divisor (epsilon).
        clip_low: the least number of a gradient, if ``clip_high`` is larger.
        clip_high: the largest number of a gradient.
        clip_norm: the largest Euclidean norm of the gradient of a param; 0 for no limit. A larger one is scaled down.
        clip_global_norm: the largest Euclidean norm of all gradients together; 0 for no limit.
        nan_to_zero: whether NaN in a gradient becomes 0, before clipping.
        ema_conf: averages the params over time.
        earlier_steps: steps of an earlier run, which count for the schedule and the formulas.
        goes_on: whether other runs continue from this one. Then the schedule may be longer than the run.
        param_settings: settings of some params by the patterns of their names.
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
        """Whether gradient norms are clipped, which needs whole gradients of a param."""
        return bool(self.clip_norm) or any(settings.clip_norm for settings in self.param_settings)
