"""Checks the settings of estimators, and suggests replacements for other libraries' names."""

from __future__ import annotations

import dataclasses
from collections import ChainMap
from functools import partial
from pathlib import Path
from typing import Any, TypeVar, dataclass_transform

import numpy as np

from dsinga.base.arguments import Remedies, check_range, check_settings, check_whole, checked, value_text
from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.estimators.saving import loadable

T = TypeVar("T")

# Replacements for arguments and attributes of scikit-learn's nets, skorch and XGBoost.
INSTEAD, OF_FIT, ATTRIBUTES = (
    Remedies(Path(__file__).with_name("libraries.toml"), table) for table in ("arguments", "fit", "attributes")
)
named_fit = partial(checked, instead=ChainMap(OF_FIT, INSTEAD))

OF_DEFAULT_NET = "hidden", "activation", "learning_rate", "weight_decay", "loss", "quantiles", "n_components", "method"
WHOLE = "workers", "blocks", "epochs", "batchsize", "n_iter_no_change"


@dataclass_transform(kw_only_default=True, eq_default=False)
def estimator(cls: type[T]) -> type[T]:
    """Decorate an estimator class: give it a constructor of its fields that explains unknown arguments."""
    return loadable(check_settings(dataclasses.dataclass(eq=False, repr=False, kw_only=True)(cls), instead=INSTEAD))


def check_estimator(estimator: Any) -> None:
    """Raise UserError for a wrong setting, or one that a preset or a net makes ineffective."""
    for name in WHOLE:
        if (value := getattr(estimator, name)) is not None:
            check_whole(name, value, 1)
    check_range("validation_fraction", estimator.validation_fraction, 0, 1)
    check_range("tol", estimator.tol, 0)
    if estimator.net is not None:
        for field in dataclasses.fields(estimator):
            if field.name in OF_DEFAULT_NET and value_text(getattr(estimator, field.name)) != value_text(field.default):
                raise UserError(
                    f"{field.name} is a setting of the default net, and net= has layers, a loss and an optimizer; "
                    f"leave {field.name} out, or leave net out"
                )
        if getattr(estimator, "layer", "") is None:
            raise UserError("name the layer of net whose feature is to be returned, as in layer='code'")
    if (preset := getattr(estimator, "preset", None)) is not None:
        _check_preset(estimator, preset)


def _check_preset(estimator: Any, preset: Any) -> None:
    """Raise UserError for an unknown preset, and for settings that it does not support."""
    if preset != "strong":
        hint = nearest(str(preset), ["strong"]) or '; it is "strong", or None for the default net'
        raise UserError(f"preset is {preset!r}{hint}")
    given = estimator.net is not None, estimator.hidden is not None, estimator.activation != "relu"
    for name, is_given in zip(("net", "hidden", "activation"), given, strict=True):
        if is_given:
            raise UserError(f'preset="strong" has a net of its own; leave {name} out, or leave the preset out')
    if getattr(estimator, "loss", "squared_error") != "squared_error":
        raise UserError(
            f'preset="strong" predicts the mean by loss="squared_error", not {estimator.loss!r}; leave the preset out'
        )


def resolve_auto(name: str, value: Any, default: bool) -> bool:
    """Return a setting as a bool; "auto" means ``default``."""
    if isinstance(value, str) and value == "auto":
        return default
    if not isinstance(value, (bool, np.bool_)):
        raise UserError(f"{name} is {value!r}; give True, False or 'auto'")
    return bool(value)
