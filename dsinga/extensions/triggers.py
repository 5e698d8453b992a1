"""Triggers, which decide at which steps or times an extension of the training loop runs."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

from dsinga.base.arguments import check_range, is_whole
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest_or_listed
from dsinga.extensions.best_value import BestValue, metric_name, spelled_as
from dsinga.job.epochs import Epochs


class LoopPosition(NamedTuple):
    """A moment of a run at which extensions may run.

    Attributes:
        seconds: time since training was requested.
        metrics: the metrics recorded at this step, by phase and name: {"val/loss": 0.3}.
        at_end: whether training is complete.
        before: the step of the previous moment; None for the step before.
    """

    step: int
    seconds: float = 0.0
    metrics: Mapping[str, float] = {}
    at_end: bool = False
    before: int | None = None

    @property
    def earlier(self) -> int:
        """The step of the previous moment; -1 if there is none."""
        return self.step - 1 if self.before is None else self.before


class Trigger(ABC):
    """Decides when an extension runs. ``a | b`` fires when either fires.

    A trigger with ``by_clock`` depends on the time.
    """

    by_clock: bool = False

    @abstractmethod
    def due(self, moment: LoopPosition) -> bool:
        """Whether the extension should run now. May be called more than once for one moment."""

    def next_step(self, step: int) -> int | None:
        """Return the next step at which training must pause because the trigger may fire, or None."""
        return None

    def never_due(self, train_steps: int) -> str:
        """Return why the trigger can never fire in ``train_steps`` steps, with a remedy; "" if it can."""
        return ""

    def bind(self, recorded: Mapping[str, Trigger]) -> None:
        """Receive the triggers of the extensions that record metrics, by phase, before training."""

    def metrics(self) -> list[OnMetric]:
        """Return the metrics that this trigger waits for, as triggers."""
        return []

    def note_run(self, moment: LoopPosition) -> None:
        """Learn that the extension has run."""

    def state_dict(self) -> dict[str, Any]:
        """Return the trigger's state for a checkpoint, as plain values."""
        return {}

    def load_state(self, state: Mapping[str, Any]) -> None:
        """Restore the trigger's state from a checkpoint; an empty one means a new run."""

    def __or__(self, other: Trigger) -> Trigger:
        return Either(self, other)

    @property
    def names_its_steps(self) -> bool:
        """Whether the trigger fires only at steps that :meth:`next_step` returns, or at the end."""
        return type(self) in (EverySteps, EveryEpoch, AtEnd)


class EverySteps(Trigger):
    """Fires every ``freq`` steps, first after ``after`` steps (by default ``freq``; 0 is before training).

    It fires if step >= after and (step - after) % freq == 0.
    """

    def __init__(self, freq: int, after: int | None = None):
        if not is_whole(freq, 1) or not is_whole(after or 0, 0):
            raise UserError(
                f"EverySteps takes a freq of at least 1 and an after of at least 0, not {freq!r} and {after}"
            )
        self.freq, self.after = freq, freq if after is None else after

    def due(self, moment: LoopPosition) -> bool:
        return self._count(moment.step) > self._count(moment.earlier)

    def _count(self, step: int) -> int:
        return 0 if step < self.after else (step - self.after) // self.freq + 1

    def next_step(self, step: int) -> int | None:
        return self.after if step < self.after else step + self.freq - (step - self.after) % self.freq

    def never_due(self, train_steps: int) -> str:
        if self.after <= train_steps:
            return ""
        field = "after" if self.after != self.freq else "freq"
        return (
            f"it runs for the first time after {self.after} steps ({field}: {self.after}), but train_steps is "
            f"{train_steps}; give {field}: {train_steps} or less, or more train_steps"
        )


class EveryEpoch(Trigger):
    """Fires at the end of each epoch."""

    def __init__(self, epochs: Epochs):
        self.epochs = epochs

    def due(self, moment: LoopPosition) -> bool:
        return self.epochs.done(moment.step) > self.epochs.done(max(moment.earlier, 0))

    def next_step(self, step: int) -> int | None:
        return self.epochs.end(self.epochs.done(step) + 1)


class AtEnd(Trigger):
    """Fires once, when training is complete or an extension has stopped it."""

    def due(self, moment: LoopPosition) -> bool:
        return moment.at_end


class EverySeconds(Trigger):
    """Fires every ``seconds`` seconds, at the end of a round of steps."""

    by_clock = True

    def __init__(self, seconds: float):
        check_range("EverySeconds: seconds", seconds, 0)
        if seconds == 0:
            raise UserError("EverySeconds takes a number of seconds above 0, not 0")
        self.seconds = seconds
        self._last = 0.0

    def due(self, moment: LoopPosition) -> bool:
        return moment.seconds - self._last >= self.seconds

    def note_run(self, moment: LoopPosition) -> None:
        self._last = moment.seconds

    def load_state(self, state: Mapping[str, Any]) -> None:
        self._last = 0.0


class OnMetric(Trigger):
    """Fires when the metric ``monitor``, such as "val/loss", is recorded."""

    def __init__(self, monitor: str, best: BestValue | None = None):
        self.monitor, self.best = metric_name(monitor), best
        self._given = monitor
        self.is_declared = True  # whether the net says that it reports the metric; else the rows must show it
        self._recorded: Trigger | None = None

    @property
    def phase(self) -> str:
        """The phase of the metric: "val" of "val/loss"."""
        return self.monitor.partition("/")[0]

    def due(self, moment: LoopPosition) -> bool:
        """Whether the metric was recorded at this step. Raises UserError if its phase's rows lack it."""
        if self.monitor in moment.metrics:
            return True
        known = [name for name in moment.metrics if name.startswith(f"{self.phase}/")]
        if known and not self.is_declared:
            raise UserError(self.unknown(known))
        return False

    def unknown(self, known: Iterable[str]) -> str:
        """Return the error message that a run has no such metric, with the ``known`` ones."""
        hint = nearest_or_listed(self._given, [spelled_as(self._given, name) for name in known], "there are")
        return f"there is no metric {self._given!r} to monitor{hint}"

    def next_step(self, step: int) -> int | None:
        return self._recorded.next_step(step) if self._recorded else None

    def bind(self, recorded: Mapping[str, Trigger]) -> None:
        self._recorded = recorded[self.phase]

    def metrics(self) -> list[OnMetric]:
        return [self]


class WhenBest(OnMetric):
    """Fires when the metric ``monitor`` has a new best value."""

    def __init__(self, monitor: str, mode: str = "auto", min_delta: float = 0.0):
        super().__init__(monitor)
        self.best: BestValue = BestValue(monitor, mode, min_delta)

    def due(self, moment: LoopPosition) -> bool:
        return super().due(moment) and self.best.is_better(moment.metrics[self.monitor], self.best.value)

    def note_run(self, moment: LoopPosition) -> None:
        if self.monitor in moment.metrics:
            self.best.update(moment.metrics[self.monitor])

    def state_dict(self) -> dict[str, Any]:
        return {"best": self.best.value}

    def load_state(self, state: Mapping[str, Any]) -> None:
        self.best.load(state.get("best"))


class Either(Trigger):
    """Fires when any of several triggers fires."""

    def __init__(self, *triggers: Trigger):
        self._triggers = triggers
        self.by_clock = any(trigger.by_clock for trigger in triggers)

    @property
    def names_its_steps(self) -> bool:
        return all(trigger.names_its_steps for trigger in self._triggers)

    def due(self, moment: LoopPosition) -> bool:
        return any(trigger.due(moment) for trigger in self._triggers)

    def next_step(self, step: int) -> int | None:
        return min((at for trigger in self._triggers if (at := trigger.next_step(step)) is not None), default=None)

    def never_due(self, train_steps: int) -> str:
        reasons = [trigger.never_due(train_steps) for trigger in self._triggers]
        return "; ".join(reasons) if all(reasons) else ""

    def bind(self, recorded: Mapping[str, Trigger]) -> None:
        for trigger in self._triggers:
            trigger.bind(recorded)

    def metrics(self) -> list[OnMetric]:
        return [part for trigger in self._triggers for part in trigger.metrics()]

    def note_run(self, moment: LoopPosition) -> None:
        for trigger in self._triggers:
            if trigger.due(moment):
                trigger.note_run(moment)

    def state_dict(self) -> dict[str, Any]:
        return {str(number): trigger.state_dict() for number, trigger in enumerate(self._triggers)}

    def load_state(self, state: Mapping[str, Any]) -> None:
        for number, trigger in enumerate(self._triggers):
            trigger.load_state(state.get(str(number), {}))
