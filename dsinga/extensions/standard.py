"""Creates the extensions of a run: the standard ones, those that the job names, and those that the caller gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from typing import Any

import numpy as np

from dsinga.base.epochs import Epochs
from dsinga.base.errors import UserError
from dsinga.extensions.best_value import checked_number
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import AtEnd, EveryEpoch, EverySteps, Trigger
from dsinga.job import ExtensionConf, Job, Phase, training_phases
from dsinga.job.component import Settings, error_note, resolve
from dsinga.job.message import JobError, field_types
from dsinga.layers.metrics.metric_state import MetricState, restore_state, saved_state
from dsinga.monitor import NOT_METRICS
from dsinga.training import Metrics, add_metrics

# What dsinga.train takes as an extension.
ExtensionLike = Extension | Callable[[int, dict[str, float]], object]


def create_extensions(
    job: Job, given: ExtensionLike | Iterable[ExtensionLike] | None = (), epochs: Epochs | None = None
) -> list[Extension]:
    """Return all extensions of a run in the order in which they run: SINGA's, then the job's, then those ``given``.

    ``given`` may be a single one, or None.
    ``epochs`` are those of a job that counts them.

    Raises UserError for one that is none, or whose configuration is wrong.
    """
    standard = create_standard(job, epochs)
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [] if given is None else [given]
    return [
        *standard,
        *(create_extension(conf) for conf in job.extension),
        *(_check_given(extension, standard[0].trigger) for extension in given),
    ]


def create_extension(conf: ExtensionConf) -> Extension:
    """Return the extension that a message of a job describes; raise JobError where it does not describe one."""
    entry = resolve(conf)
    settings = getattr(entry, "Conf", None)
    try:
        with error_note(f"in extension {conf.user_type or conf.type.name!r}, made before training"):
            extension = entry(conf) if settings is None else entry(**_given(conf, settings))
    except JobError:
        raise
    except UserError as error:
        raise conf.error(f"extension {conf.user_type or conf.type.name}: {error}") from error
    if not isinstance(extension, Extension):
        raise conf.error(f"extension {conf.user_type!r} must be a subclass of dsinga.extensions.Extension", "user_type")
    extension.conf = conf
    if conf.freq is not None:
        extension.trigger = EverySteps(conf.freq, conf.after)
    return _check_trigger(extension)


def _given(conf: ExtensionConf, settings: type[Settings]) -> dict[str, Any]:
    """Return the settings of an extension that its message has, by name."""
    values = {name: getattr(conf, name) for name in field_types(settings)}
    return {name: value for name, value in values.items() if value is not None}


def _check_given(extension: Any, rows: Trigger) -> Extension:
    """Return an extension of the caller; ``rows`` is the trigger of rows of training."""
    if isinstance(extension, Extension):
        extension.run_after(rows)
        return _check_trigger(extension)
    from dsinga.extensions.keras_callbacks import is_keras_callback  # which no extension of a job needs

    if is_keras_callback(extension):
        raise UserError(f"{type(extension).__name__} has the events of Keras, which fit of a model of dsinga.nn calls")
    if callable(extension) and not isinstance(extension, type):
        return FunctionExtension(extension, rows)
    what = f"the class {extension.__name__}; call it" if isinstance(extension, type) else repr(extension)
    raise UserError(f"extensions are objects of dsinga.extensions, or functions of (step, metrics), not {what}")


def _check_trigger(extension: Extension) -> Extension:
    if not isinstance(getattr(extension, "trigger", None), Trigger):
        raise extension.error("it has no trigger; set self.trigger in __init__, as in EverySteps(100)", "user_type")
    return extension


# How many rows of training a run has whose job does not say how often.
DEFAULT_DISPLAYS = 100


class Display(Extension):
    """Adds the means of the training metrics since its last run to the history."""

    pauses = False  # it looks at reports only
    phase = "train"

    def __init__(self, trigger: Trigger):
        self.trigger = trigger
        self._sums: Metrics = {}

    def observe(self, loop: LoopView, sums: Metrics) -> None:
        """Add up the metrics."""
        self._sums = add_metrics([self._sums, sums])

    def run(self, loop: LoopView) -> None:
        """Add a row, and begin anew."""
        sums, self._sums = self._sums, {}  # before another extension sees the row, and may fail
        loop.record("train", loop.means("train", sums))

    def state_dict(self) -> State:
        """Return the sums since the last row."""
        states = {name: metric for name, metric in self._sums.items() if isinstance(metric[0], MetricState)}
        numbers = {name: list(metric) for name, metric in self._sums.items() if name not in states}
        more = {name: {**saved_state(state), "count": count} for name, (state, count) in states.items()}
        return {"sums": numbers, **({"states": more} if more else {})}

    def load_state(self, state: State) -> None:
        """Go on from these sums."""
        self._sums = {
            name: (checked_number(total), checked_number(count))
            for name, (total, count) in state.get("sums", {}).items()
        }
        for name, metric in state.get("states", {}).items():
            self._sums[name] = restore_state(metric), checked_number(metric["count"])


class Evaluation(Extension):
    """Evaluates a phase and adds its metrics to the history.

    Args:
        trigger: when.
        phase: "val" or "test".
        batches: how many batches it is; by default as the job says, or all records if it does not say.
    """

    def __init__(self, trigger: Trigger, phase: str, batches: int | None = None):
        self.trigger, self.phase, self._batches = trigger, phase, batches

    def run(self, loop: LoopView) -> None:
        """Evaluate the phase with the params of this step."""
        assert self.phase is not None
        loop.record(self.phase, loop.evaluate(self.phase, self._batches))


class Checkpointing(Extension):
    """Writes a checkpoint of the run to its workspace, if it has one."""

    def __init__(self, trigger: Trigger):
        self.trigger = trigger

    def run(self, loop: LoopView) -> None:
        """Ask for a checkpoint of this step."""
        loop.write_checkpoint()


class FunctionExtension(Extension):
    """Calls ``function(step, metrics)`` for each row of the history, with metrics such as {"val/loss": 0.3}.

    It is made of a plain function among the extensions of ``dsinga.train``. A function that returns True, and nothing
    else, ends training. Training pauses at ``rows``, the trigger of rows of training, so that it ends at the step of
    the row.
    """

    def __init__(self, function: Callable[[int, dict[str, float]], object], rows: Trigger):
        self.trigger = rows
        self._function = function

    @property
    def name(self) -> str:
        """The function's name."""
        return getattr(self._function, "__name__", type(self._function).__name__)

    def see_row(self, loop: LoopView, row: Mapping[str, Any]) -> None:
        """Call the function, and end training if it returns True."""
        metrics = {f"{row['phase']}/{name}": value for name, value in row.items() if name not in NOT_METRICS}
        result = self._function(row["step"], metrics)
        if isinstance(result, (bool, np.bool_)) and result:
            loop.stop(f"the function {self.name} has returned True")

    def run(self, loop: LoopView) -> None:
        """Do nothing: the function has been called for each row."""


def create_standard(job: Job, epochs: Epochs | None) -> list[Extension]:
    """Return the extensions that ``disp_freq``, ``validate_freq``, ``test_freq`` and ``checkpoint_freq`` ask for."""
    display_freq = job.disp_freq or (0 if epochs else max(1, job.train_steps // DEFAULT_DISPLAYS))
    extensions: list[Extension] = [Display(_singa_trigger(display_freq, job.disp_after, epochs))]
    phases = training_phases(job)
    if Phase.kVal in phases:
        extensions.append(Evaluation(_singa_trigger(job.validate_freq, job.validate_after, epochs), "val"))
    if Phase.kTest in phases:
        extensions.append(Evaluation(_singa_trigger(job.test_freq, job.test_after, epochs), "test"))
    # The params before the first step are not worth a checkpoint.
    checkpoint_after = job.checkpoint_after or job.checkpoint_freq
    extensions.append(Checkpointing(_singa_trigger(job.checkpoint_freq, checkpoint_after)))
    return extensions


def _singa_trigger(freq: int, after: int, epochs: Epochs | None = None) -> Trigger:
    """Return SINGA's rule; beyond it, everything is done once more at the end, and without a frequency every epoch."""
    if freq:
        return EverySteps(freq, after) | AtEnd()
    return EveryEpoch(epochs) | AtEnd() if epochs else AtEnd()
