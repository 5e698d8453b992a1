"""Asks the kind of the records that a model is given how they are predicted and evaluated."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Mapping
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import entries
from dsinga.data import RecordSource
from dsinga.job.definition import RecordsDefinition
from dsinga.nn.words.keras_arguments import check_names


def kinds_of_records(model: Any, x: Any) -> list[RecordsDefinition]:
    """Return the definitions of the records ``x``, else those of the records that a model was trained on."""
    if isinstance(x, RecordSource):
        return [*x.job_settings().values()]
    return [by for definition in model.trained_definitions().values() for by in definition.values()]


def given_options(function: Callable[..., Any], options: Mapping[str, Any]) -> dict[str, Any]:
    """Return the options that are not None. Raises UserError for a name that no kind of records has."""
    if options:
        known = [*inspect.signature(inspect.unwrap(function)).parameters, *_options_of_all()]
        check_names(function.__name__, known, options)
    return {name: value for name, value in options.items() if value is not None}


def refuse_options(options: Mapping[str, Any]) -> None:
    """Raise UserError for options of another kind of records than those that are given."""
    for name in options:
        raise UserError(_options_of_all()[name])


def _options_of_all() -> dict[str, str]:
    """Return the options that any kind of records has, with the error for other records."""
    definitions = [cls for cls in entries("message").values() if issubclass(cls, RecordsDefinition)]
    return {name: fault for cls in definitions for name, fault in cls.options.items()}
