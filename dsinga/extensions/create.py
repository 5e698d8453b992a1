"""Creates the extensions of a run: the standard ones, those that the job names, and those that the caller gives."""

from __future__ import annotations

from collections.abc import Callable, Iterable
from fractions import Fraction
from typing import Any

from dsinga.errors import UserError
from dsinga.extensions.extension import Extension
from dsinga.extensions.standard import FunctionExtension, create_standard
from dsinga.extensions.triggers import EverySteps, Trigger
from dsinga.job import ExtensionConf, Job
from dsinga.job.component import Settings
from dsinga.job.message import JobError, field_types
from dsinga.training.resolve import error_note, resolve

# What dsinga.train takes as an extension.
ExtensionLike = Extension | Callable[[int, dict[str, float]], object]


def create_extensions(
    job: Job, given: ExtensionLike | Iterable[ExtensionLike] | None = (), epoch: Fraction | None = None
) -> list[Extension]:
    """Return all extensions of a run in the order in which they run: SINGA's, then the job's, then those ``given``.

    ``given`` may be a single one, or None.
    ``epoch`` is the length of an epoch in steps, for a job with ``epochs``.

    Raises UserError for one that is none, or whose configuration is wrong.
    """
    standard = create_standard(job, epoch)
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
        return _check_trigger(extension)
    if callable(extension) and not isinstance(extension, type):
        return FunctionExtension(extension, rows)
    what = f"the class {extension.__name__}; call it" if isinstance(extension, type) else repr(extension)
    raise UserError(f"extensions are objects of dsinga.extensions, or functions of (step, metrics), not {what}")


def _check_trigger(extension: Extension) -> Extension:
    if not isinstance(getattr(extension, "trigger", None), Trigger):
        raise extension.error("it has no trigger; set self.trigger in __init__, as in EverySteps(100)", "user_type")
    return extension
