"""Checks of the extensions of a run, before training starts."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from dsinga.base.errors import UserError
from dsinga.base.registry import is_user_code, listed, nearest, nearest_or_listed
from dsinga.checkpoint import separate_arrays
from dsinga.extensions.best_value import metric_name
from dsinga.extensions.extension import Extension
from dsinga.extensions.standard import ExtensionLike
from dsinga.extensions.triggers import OnMetric
from dsinga.job import AlgType, ExtensionType, Job, Phase
from dsinga.job.enums import PHASES
from dsinga.net import NeuralNet
from dsinga.training import declared_metrics

# The fields by which a job asks for a phase.
ASKED_BY = {"val": "validate_freq", "test": "test_freq"}


def check_extensions(
    extensions: Sequence[Extension],
    job: Job,
    nets: Mapping[Phase, NeuralNet],
    workspace: Path | None = None,
    metrics: Mapping[str, Sequence[str]] | None = None,
) -> None:
    """Raise UserError for the first extension that can never run, or whose state cannot be saved.

    ``nets`` are the nets of the phases that the job runs: their layers say which metrics they report. For an agent
    ``metrics`` are the names by phase; those of a phase that is left out are not known.
    """
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
        remedy = f"give it {ASKED_BY[phase]}, and input layers in that phase"
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
        hint = nearest_or_listed(trigger.monitor, names, "there are")
        raise extension.error(f"there is no metric {trigger.monitor!r} to monitor{hint}", "monitor")
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
    """Raise UserError for a metric that no run of a job with these extensions would record; ``monitor`` is its name.

    ``nets`` and ``metrics`` are as for :func:`check_extensions`.
    """
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
    """Whether all metrics of a net are declared: layers and algorithms of the user's may report others."""
    if phase == "train" and job.train_one_batch.alg is AlgType.kUserAlg:
        return False
    return not any(is_user_code(node.layer) for node in net.nodes)
