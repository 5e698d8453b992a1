"""The params of a model while fit trains it: what callbacks see of them, and what they change."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NoReturn, Protocol

import numpy as np

from dsinga.base.errors import UserError
from dsinga.extensions import LoopView
from dsinga.nn.model.training_state import TrainingState

REMEDY = "do it before or after fit"
CLOSED = (
    "the params of a model that fit trains are set in events of a callback at which training stands: on_train_begin, "
    "on_train_end, on_epoch_begin and on_epoch_end, without workers and a client also on_train_batch_begin and "
    "on_train_batch_end"
)


class TrainedModel(Protocol):
    """What a running fit sets of its model."""

    _params: Any
    _complete: bool
    _training_state: TrainingState


class RunningFit:
    """A fit that goes on: in the events of its callbacks the model has the params of the run, and the run those of it.

    Params are copied when they are first read in an event, as arrays that are read-only: callbacks may keep them.

    Args:
        model: the model that is trained.
        steps: how many steps its optimizer had done before.
    """

    def __init__(self, model: TrainedModel, steps: int):
        self._model, self._steps = model, steps
        self._loop: LoopView | None = None  # within an event at which training stands
        self._params: dict[str, np.ndarray] = {}
        self._state = TrainingState()
        self._step: int | None = None  # the step of these params
        self._state_step: int | None = None  # the step of this state
        self._before = model._params, model._complete, model._training_state

    @contextmanager
    def event(self, loop: LoopView | None) -> Iterator[None]:
        """Let the model have the params of the run meanwhile; then give those that it was given to the run.

        ``loop`` is None for an event at which training does not stand: then the model keeps those that it has.
        """
        self._loop = loop
        if loop is not None and self._step != loop.step:
            self._step = self._state_step = None
        try:
            yield
            self._return_changes()
        finally:
            self._loop = None

    def refresh(self) -> None:
        """Give the params of the run to the model, unless it has those of this step."""
        if self._loop is None or self._step == self._loop.step:
            return
        self._step = self._loop.step
        self._params = self._loop.params()
        for array in self._params.values():
            array.flags.writeable = False
        self._model._params, self._model._complete = self._params, True

    def refresh_state(self) -> None:
        """Give the optimizer's state of the run to the model, unless it has that of this step."""
        if self._loop is None or self._state_step == self._loop.step:
            return
        self._state_step = self._loop.step
        self._state = TrainingState(self._steps + self._loop.step, self._loop.updater_state())
        self._model._training_state = self._state

    def check_open(self) -> None:
        """Raise UserError unless params may be set now."""
        if self._loop is None:
            raise UserError(CLOSED)
        self.refresh()

    def refuse(self, action: str) -> NoReturn:
        """Raise UserError for an action that has no effect on a fit that goes on."""
        raise UserError(f"{action} has no effect while fit trains the model; {REMEDY}")

    def _return_changes(self) -> None:
        """Let the run go on from the params and the optimizer's state that the model was given in an event."""
        if self._loop is None or self._step is None:
            return
        params = self._model._params or {}
        changed = {name: array for name, array in params.items() if array is not self._params.get(name)}
        state = self._model._training_state if self._state_step is not None else self._state
        if changed or state is not self._state:
            self._loop.set_params(changed, None if state is self._state else state.slots)
            self._step = self._state_step = None

    def close(self) -> None:
        """Give the model what it had before the fit, which keeps what it has trained in another way."""
        if self._params:
            self._model._params, self._model._complete, self._model._training_state = self._before
