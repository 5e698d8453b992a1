"""Makes and checks the extensions of a run: display, evaluation and checkpoints, the job's, and the caller's."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from dsinga.base.advice import option
from dsinga.base.arguments import value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code, listed, nearest
from dsinga.checkpoint.tensor_files import separate_arrays
from dsinga.extensions.best_value import checked_number, metric_name
from dsinga.extensions.extension import Extension, LoopView, State
from dsinga.extensions.triggers import AtEnd, EveryEpoch, EverySteps, OnMetric, Trigger
from dsinga.job import AlgType, ExtensionConf, ExtensionType, Job, Phase, training_phases
from dsinga.job.component import Settings, error_note, resolve
from dsinga.job.enums import PHASES
from dsinga.job.epochs import Epochs
from dsinga.job.message import JobError, field_types
from dsinga.layers.metrics.metric_state import MetricState, restore_state, saved_state
from dsinga.monitor import NOT_METRICS
from dsinga.net import NeuralNet
from dsinga.reading.checked_job import CheckedJob, changed
from dsinga.training import Metrics, add_metrics, declared_metrics

# What dsinga.train takes as an extension.
ExtensionLike = Extension | Callable[[int, dict[str, float]], object]


def create_extensions(
    job: Job, given: ExtensionLike | Iterable[ExtensionLike] | None = (), epochs: Epochs | None = None
) -> list[Extension]:
    """Make all extensions of a run, in order: for the job's frequencies, the job's own, then ``given`` ones."""
    standard = create_standard(job, epochs)
    if isinstance(given, str) or not isinstance(given, Iterable):
        given = [] if given is None else [given]
    return [
        *standard,
        *(create_extension(conf) for conf in job.extension),
        *(_check_given(extension, standard[0].trigger) for extension in given),
    ]


def changed_by_extensions(checked: CheckedJob, given: Any) -> CheckedJob:
    """Let extensions change the job before it is trained: return the changed job."""
    changing = [conf for conf in checked.job.extension if hasattr(resolve(conf), "change_job")]
    changing = [conf for conf in changing if resolve(conf).change_job is not Extension.change_job]
    listed = given if isinstance(given, Sequence) else [given]
    extensions = [*map(create_extension, changing), *(each for each in listed if isinstance(each, Extension))]
    return changed(checked, [extension.change_job for extension in extensions])


def create_extension(conf: ExtensionConf) -> Extension:
    """Make the extension that a job names. Raises JobError."""
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
    values = {name: getattr(conf, name) for name in field_types(settings)}
    return {name: value for name, value in values.items() if value is not None}


def _check_given(extension: Any, rows: Trigger) -> Extension:
    """Make an extension of an object of the caller: an extension, or a function of (step, metrics)."""
    if isinstance(extension, Extension):
        extension.run_after(rows)
        return _check_trigger(extension)
    from dsinga.extensions.keras_callbacks import (
        BackupAndRestore,
        is_keras_callback,
    )  # which no extension of a job needs

    if isinstance(extension, BackupAndRestore):
        folder, every = option("workspace", str(extension.backup_dir)), "checkpoint_freq of the job"
        raise UserError(f"BackupAndRestore is for fit of a model of dsinga.nn; give {folder}, and {every} as save_freq")
    if is_keras_callback(extension):
        raise UserError(f"{type(extension).__name__} has the events of Keras, which fit of a model of dsinga.nn calls")
    if callable(extension) and not isinstance(extension, type):
        _check_parameters(extension)
        return FunctionExtension(extension, rows)
    what = f"the class {extension.__name__}; call it" if isinstance(extension, type) else repr(extension)
    raise UserError(f"extensions are objects of dsinga.extensions, or functions of (step, metrics), not {what}")


def _check_parameters(function: Any) -> None:
    """Raise UserError if a user's function does not accept (step, metrics)."""
    try:
        parameters = inspect.signature(function)
    except (TypeError, ValueError):  # a function of C has none
        return
    try:
        parameters.bind(0, {})
    except TypeError:
        name = value_text(function)
        raise UserError(f"the callback {name} takes {parameters}; give a function of (step, metrics)") from None


def _check_trigger(extension: Extension) -> Extension:
    if not isinstance(getattr(extension, "trigger", None), Trigger):
        text = "it does not say when it runs; give it a trigger, as in trigger = EverySteps(100) in the class"
        raise extension.error(text, "user_type")
    return extension


# How many rows of training a run has whose job does not say how often.
DEFAULT_DISPLAYS = 100


class Display(Extension):
    """Adds a row of training metrics to the history: means since the last row."""

    pauses = False  # it looks at reports only
    phase = "train"

    def __init__(self, trigger: Trigger):
        self.trigger = trigger
        self._sums: Metrics = {}

    def add(self, steps: Sequence[Metrics]) -> None:
        """Add up the metrics of several steps for the next row."""
        self._sums = add_metrics([self._sums, *steps])

    def run(self, loop: LoopView) -> None:
        """Add a row to the history, and restart the sums."""
        sums, self._sums = self._sums, {}  # before another extension sees the row, and may fail
        loop.record("train", loop.means("train", sums))

    def state_dict(self) -> State:
        """Return the sums since the last row, for a checkpoint."""
        states = {name: metric for name, metric in self._sums.items() if isinstance(metric[0], MetricState)}
        numbers = {name: list(metric) for name, metric in self._sums.items() if name not in states}
        more = {name: {**saved_state(state), "count": count} for name, (state, count) in states.items()}
        return {"sums": numbers, **({"states": more} if more else {})}

    def load_state(self, state: State) -> None:
        """Restore the sums since the last row."""
        self._sums = {
            name: (checked_number(total), checked_number(count))
            for name, (total, count) in state.get("sums", {}).items()
        }
        for name, metric in state.get("states", {}).items():
            self._sums[name] = restore_state(metric), checked_number(metric["count"])


class Evaluation(Extension):
    """Evaluates validation or test records during training, and adds a row to the history.

    Args:
        trigger: when to run.
        phase: "val" or "test".
        batches: the number of batches; by default the job's, or all records.
    """

    def __init__(self, trigger: Trigger, phase: str, batches: int | None = None):
        self.trigger, self.phase, self._batches = trigger, phase, batches

    def run(self, loop: LoopView) -> None:
        """Evaluate the params of this step."""
        assert self.phase is not None
        loop.record(self.phase, loop.evaluate(self.phase, self._batches))


class Checkpointing(Extension):
    """Writes checkpoints to the run's workspace, if it has one."""

    def __init__(self, trigger: Trigger):
        self.trigger = trigger

    def run(self, loop: LoopView) -> None:
        """Request a checkpoint of this step."""
        loop.write_checkpoint()


class FunctionExtension(Extension):
    """Calls a user's ``function(step, metrics)`` for each row of metrics, such as {"val/loss": 0.3}.

    Training ends at the row's step if the function returns True.
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
        """Do nothing: :meth:`see_row` calls the function."""


def create_standard(job: Job, epochs: Epochs | None) -> list[Extension]:
    """Make the extensions for ``disp_freq``, ``validate_freq``, ``test_freq`` and ``checkpoint_freq`` of a job."""
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
    """Return when an action of the job runs: by its frequency, or every epoch, and at the end."""
    if freq:
        return EverySteps(freq, after) | AtEnd()
    return EveryEpoch(epochs) | AtEnd() if epochs else AtEnd()


# The fields by which a job asks for a phase.
ASKED_BY = {"val": "validate_freq", "test": "test_freq"}


def check_extensions(
    extensions: Sequence[Extension],
    job: Job,
    nets: Mapping[Phase, NeuralNet],
    workspace: Path | None = None,
    metrics: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise UserError, before training, for an extension that can never run or be saved."""
    recorded = {extension.phase for extension in extensions if extension.phase}
    for extension in extensions:
        for trigger in extension.trigger.metrics():
            _check_monitor(extension, trigger, job, nets, recorded, metrics)
        reason = extension.trigger.never_due(job.train_steps)
        if reason:
            raise extension.error(f"it would never run: {reason}", "freq")
        try:
            separate_arrays(extension.state_dict())
        except TypeError as error:
            raise extension.error(f"its state_dict() cannot be saved: {error}") from error
        extension.check(workspace)


def _check_monitor(
    extension: Extension,
    trigger: OnMetric,
    job: Job,
    nets: Mapping[Phase, NeuralNet],
    recorded: set[str],
    metrics: Mapping[str, Sequence[str]] | None,
) -> None:
    phase, _, metric = trigger.monitor.partition("/")
    known = [*dict.fromkeys(["train", *ASKED_BY, *recorded])]
    if not metric or phase not in known:
        hint = nearest(phase, known) if metric else ""
        raise extension.error(
            f"monitor: {trigger.monitor!r} must be a phase ({', '.join(known)}) and a metric, as in 'val/loss'{hint}",
            "monitor",
        )
    if phase not in recorded:
        to_fit = "fit validation_data=, or a job" if phase == "val" else "it"
        remedy = f"give {to_fit} {ASKED_BY[phase]}, and input layers in that phase"
        if metrics is not None:
            remedy = {"val": "an agent is evaluated in phase test", "test": "give evaluation_episodes"}[phase]
        raise extension.error(
            f"monitor: {trigger.monitor!r} would never be known: the job has no phase {PHASES[phase].name}; {remedy}",
            "monitor",
        )
    net = nets.get(PHASES[phase]) if phase in PHASES else None
    declared = declared_metrics(net) if net else (metrics or {}).get(phase, ())
    names = [f"{phase}/{name}" for name in declared]
    # A row of an agent lacks some before it learns.
    trigger.is_declared = trigger.monitor in names or (metrics is not None and not names)
    if not trigger.is_declared and (_is_known_whole(net, job, phase) if net else names):
        raise extension.error(trigger.unknown(names), "monitor")
    if trigger.best is not None:
        try:
            trigger.best.higher  # noqa: B018  raises where the name of the metric does not tell
        except UserError as error:
            raise extension.error(str(error), "monitor") from error


def check_metric(
    monitor: str,
    job: Job,
    nets: Mapping[Phase, NeuralNet],
    extensions: Sequence[ExtensionLike] = (),
    metrics: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise UserError if a run of the job would never record the metric ``monitor``."""
    phases = {name: PHASES[name] for name in ("train", *ASKED_BY) if PHASES[name] in nets}
    declared = {name: declared_metrics(nets[phase]) for name, phase in phases.items()} | dict(metrics or {})
    names = [f"{name}/{metric}" for name, known in declared.items() for metric in known]
    monitor = metric_name(monitor)
    name = monitor.partition("/")[0]
    # Rows of the user's extensions are not known before they are there, nor are all metrics of the user's layers.
    by_extension = {getattr(extension, "phase", None) for extension in extensions}
    has_user_extension = any(conf.type is ExtensionType.kUserExtension for conf in job.extension)
    is_user_phase = name in by_extension or (has_user_extension and name not in declared)
    is_user_phase |= metrics is not None and name == "train" and name not in metrics
    has_user_code = name in phases and not _is_known_whole(nets[phases[name]], job, name)
    if monitor in names or is_user_phase or has_user_code:
        return
    needed = f" (those of {name} need {ASKED_BY[name]})" if name in ASKED_BY and name not in phases else ""
    hint = nearest(monitor, names)
    raise UserError(f"there is no metric {monitor!r}{hint}; the metrics of the job are {listed(names)}{needed}")


def _is_known_whole(net: NeuralNet, job: Job, phase: str) -> bool:
    """Whether a net reports no other metrics than it declares, as users' layers may."""
    if phase == "train" and job.train_one_batch.alg is AlgType.kUserAlg:
        return False
    return not any(is_user_code(node.layer) for node in net.nodes)
