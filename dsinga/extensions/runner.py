"""Calls the extensions (callbacks) of a training loop when they are due."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code
from dsinga.extensions.best_value import BAD_STATE
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.standard import Display
from dsinga.extensions.triggers import LoopPosition
from dsinga.monitor import NOT_METRICS
from dsinga.training import Metrics

_log = logging.getLogger(__name__)


class ExtensionRunner:
    """Calls the extensions of a run in order, and says when training must pause for them."""

    def __init__(self, extensions: Iterable[Extension], loop: LoopView):
        self._set_extensions(_by_unique_name(extensions))
        self._loop = loop
        self._recorded: dict[str, float] = {}  # metrics of the present step
        self._last_run: dict[str, int] = {}  # the step of the last run, by name
        self._asked: dict[str, tuple[int, int]] = {}  # the last two steps at which a trigger could have fired, by name
        self._dropped: dict[str, Extension] = {}
        self.failing: Extension | None = None

    def start(self, states: Mapping[str, Mapping[str, State]]) -> None:
        """Start all extensions, each with its state from a checkpoint, or an empty one."""
        for extension in self._extensions.values():
            if extension.is_part_of_run:
                self._call(extension, extension.start, self._loop)
        for name, state in states.items():
            is_own = name.startswith("(")  # dsinga's own, such as the one of a search
            if name not in self._extensions and state["extension"] and not is_own:
                _log.warning("the checkpoint has a state of the extension %s, which this run lacks", name)
        recorded = {extension.phase: extension.trigger for extension in self._extensions.values() if extension.phase}
        for name, extension in self._extensions.items():
            state = states.get(name, {})
            extension.trigger.bind(recorded)
            self._load(name, extension, state)
        for name, extension in self._extensions.items():
            # A new run pauses before its first step, for extensions that pause.
            begin = self._loop.step if self._loop.step or not extension.pauses else -1
            self._asked[name] = begin, begin
            if not extension.is_part_of_run:
                self._call(extension, extension.start, self._loop)

    def _load(self, name: str, extension: Extension, state: Mapping[str, State]) -> None:
        """Give an extension and its trigger their states from a checkpoint."""
        try:
            extension.trigger.load_state(state.get("trigger", {}))
            self._call(extension, extension.load_state, state.get("extension", {}))
        except BAD_STATE as error:
            if is_user_code(type(extension)) or is_user_code(type(extension.trigger)):
                raise
            self.failing = None  # nothing has been trained that would have to be saved
            raise UserError(
                f"the state of the extension {name} in the checkpoint does not fit: {type(error).__name__}: "
                f"{str(error)[:200]}; resume from an earlier checkpoint"
            ) from None

    def next_pause(self, step: int) -> int | None:
        """Return the next step at which training must pause for an extension, or None."""
        steps = (extension.trigger.next_step(step) for extension in self._pausing.values())
        return min((at for at in steps if at is not None), default=None)

    def wants_pause(self) -> bool:
        """Whether training must pause soon because of the time, not of a step."""
        return any(
            extension.trigger.by_clock and extension.trigger.due(self._moment(self._asked[name][1], at_end=False))
            for name, extension in self._pausing.items()
        )

    def next_look(self, step: int) -> int | None:
        """Return the next step at which :meth:`observe` must be called; None for the last."""
        triggers = [extension.trigger for extension in self._looking.values()]
        if self._observing or not all(trigger.names_its_steps for trigger in triggers):
            return step + 1
        return min((at for trigger in triggers if (at := trigger.next_step(step)) is not None), default=None)

    def observe(self, steps: Sequence[Metrics]) -> None:
        """Show metrics of new steps to all extensions, and run the due ones that need no pause."""
        self._recorded.clear()
        for display in self._displays:
            self._call(display, display.add, steps)
        for extension in self._observing:
            self._call(extension, extension.observe, self._loop, steps[-1])
        self._run_due(self._looking, self._loop.step >= self._loop.train_steps)

    def pause(self, at_end: bool = False) -> None:
        """Run the extensions that are due and have not run at this step, while training is paused."""
        self._run_due(self._extensions if at_end else self._pausing, at_end)

    def go_on(self) -> None:
        """Tell all extensions that training continues."""
        for extension in self._extensions.values():
            self._call(extension, extension.go_on, self._loop)

    def show_row(self, row: Mapping[str, Any]) -> None:
        """Show a new row of the history to all extensions."""
        metrics = {name: value for name, value in row.items() if name not in NOT_METRICS}
        self._recorded |= {f"{row['phase']}/{name}": value for name, value in metrics.items()}
        for extension in self._extensions.values():
            self._call(extension, extension.see_row, self._loop, row)

    def show_progress(self, row: Mapping[str, Any]) -> None:
        """Show the progress after a round of steps to all extensions."""
        for extension in self._extensions.values():
            self._call(extension, extension.see_progress, self._loop, row)

    def forget_runs(self) -> None:
        """Let extensions run again at this step, because an extension has changed the params."""
        self._last_run = {name: at for name, at in self._last_run.items() if name in self._looking}

    def finish(self) -> None:
        """Tell all extensions that the last step is done."""
        for extension in self._extensions.values():
            self._call(extension, extension.finish, self._loop)

    def return_params(self) -> None:
        """After a failed run, let extensions return, for instance, the best params."""
        for extension in [each for each in self._extensions.values() if each.returns_params]:
            with contextlib.suppress(Exception):  # it must not hide why the run has failed
                extension.finish(self._loop)

    def close(self, error: BaseException | None) -> None:
        """Let all extensions release files and connections; ``error`` is the error of the run."""
        for name, extension in (self._extensions | self._dropped).items():
            try:
                extension.close(error)
            except Exception:
                _log.warning("the extension %s could not be closed", name, exc_info=True)

    def drop(self, failed: Extension) -> None:
        """Stop calling an extension that raised an exception; its state is still saved."""
        names = [name for name, extension in self._extensions.items() if extension is failed]
        self._dropped |= dict.fromkeys(names, failed)
        self._set_extensions({name: self._extensions[name] for name in self._extensions if name not in names})
        self.failing = None

    def states(self) -> dict[str, dict[str, State]]:
        """Return the states of all extensions and triggers, by name, for a checkpoint."""
        states = {
            name: _state_of(extension) for name, extension in self._extensions.items() if not extension.is_part_of_run
        }
        for name, extension in self._dropped.items():
            with contextlib.suppress(Exception):  # its fault may be in the state itself
                states[name] = _state_of(extension)
        return states

    def _set_extensions(self, extensions: dict[str, Extension]) -> None:
        self._extensions = extensions
        self._pausing = {name: extension for name, extension in extensions.items() if extension.pauses}
        self._looking = {name: extension for name, extension in extensions.items() if not extension.pauses}
        self._displays = [extension for extension in extensions.values() if isinstance(extension, Display)]
        self._observing = [
            extension for extension in extensions.values() if type(extension).observe is not Extension.observe
        ]

    def _run_due(self, extensions: Mapping[str, Extension], at_end: bool) -> None:
        for name, extension in extensions.items():
            if self._last_run.get(name) != self._loop.step:
                self._call(extension, self._run_if_due, name, extension, at_end)

    def _run_if_due(self, name: str, extension: Extension, at_end: bool) -> None:
        before, asked = self._asked[name]
        if asked != self._loop.step:
            before = asked
            self._asked[name] = before, self._loop.step
        moment = self._moment(before, at_end)
        if extension.trigger.due(moment):
            self._last_run[name] = self._loop.step
            extension.run(self._loop)
            extension.trigger.note_run(moment)

    def _moment(self, before: int, at_end: bool) -> LoopPosition:
        return LoopPosition(self._loop.step, self._loop.seconds, self._recorded, at_end, before)

    def _call(self, extension: Extension, method: Callable[..., None], *arguments: Any) -> None:
        outer, self.failing = self.failing, extension
        method(*arguments)
        self.failing = outer


def _state_of(extension: Extension) -> dict[str, State]:
    return {"extension": extension.state_dict(), "trigger": extension.trigger.state_dict()}


def _by_unique_name(extensions: Iterable[Extension]) -> dict[str, Extension]:
    named: dict[str, Extension] = {}
    for extension in extensions:
        name, number = f"({extension.name})" if extension.is_part_of_run else extension.name, 1
        while name in named:
            number += 1
            name = f"{extension.name}-{number}"
        named[name] = extension
    return named
