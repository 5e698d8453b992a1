"""Turns Keras's regularizers into weight penalties ``l1`` and ``l2`` of the optimizer."""

from __future__ import annotations

import glob
from collections.abc import Mapping, Sequence
from fnmatch import fnmatchcase
from typing import Any, NamedTuple

from dsinga.base.arguments import check_range, unknown_name, value_text
from dsinga.base.errors import UserError
from dsinga.job import ParamSettingsConf, UpdaterConf
from dsinga.nn.words.keras_arguments import checked, missing_names


class Penalty(NamedTuple):
    """A weight penalty, a term added to the loss for a param w: l1·Σ|w| + l2·Σw²."""

    l1: float = 0.0
    l2: float = 0.0


@checked
def L1(l1: float = 0.01) -> Penalty:
    """Return the penalty l1·Σ|w| of a param w, for an argument such as ``kernel_regularizer``.

    Training adds its gradient after clipping; the reported loss does not include it.
    """
    return L1L2(l1=l1)


@checked
def L2(l2: float = 0.01) -> Penalty:
    """Return the penalty l2·Σw² of a param w, for an argument such as ``kernel_regularizer``.

    Training adds its gradient 2·l2·w after clipping; the reported loss does not include it.

    Examples:
        >>> from dsinga import nn
        >>> layer = nn.Dense(10, kernel_regularizer=nn.L2(0.01))
    """
    return L1L2(l2=l2)


@checked
def L1L2(l1: float = 0.0, l2: float = 0.0) -> Penalty:
    """Return the penalty l1·Σ|w| + l2·Σw² of a param w. Raises UserError for a negative factor."""
    for name, factor in {"l1": l1, "l2": l2}.items():
        check_range(name, factor, 0)
    return Penalty(float(l1), float(l2))


l1, l2 = L1, L2  # Keras's names, too


@checked
def l1_l2(l1: float = 0.01, l2: float = 0.01) -> Penalty:
    """Return the penalty l1·Σ|w| + l2·Σw² of a param w: :func:`L1L2` with other defaults."""
    return L1L2(l1, l2)


NAMES = {"l1": L1, "l2": L2, "l1_l2": l1_l2}
OWN = "write nn.L1(0.01), nn.L2(0.01) or nn.L1L2(), or add the penalty of features in a loss that is a function"


def penalty(regularizer: Any) -> Penalty:
    """Check an argument such as ``kernel_regularizer`` and return its penalty."""
    if isinstance(regularizer, Penalty):
        return regularizer
    if not isinstance(regularizer, str) or regularizer not in NAMES:
        if callable(regularizer):
            if regularizer not in (L1, L2, L1L2, l1_l2):
                raise UserError(f"the regularizer {value_text(regularizer)} is a function of your own; {OWN}")
            raise UserError(
                f"the regularizer {value_text(regularizer)} is a function; call it: nn.{value_text(regularizer)}()"
            )
        raise unknown_name("regularizer", regularizer, NAMES)
    return NAMES[regularizer]()


def weights(**roles: tuple[Any, Any]) -> dict[str, Any]:
    """Sort pairs (initialiser, regularizer) by param role into ``inits`` and ``penalties``."""
    penalties = {role: penalty(regularizer) for role, (_, regularizer) in roles.items() if regularizer is not None}
    return {"inits": {role: initializer for role, (initializer, _) in roles.items()}, "penalties": penalties}


def penalised(updater: UpdaterConf, penalties: Mapping[str, Penalty]) -> UpdaterConf:
    """Return the optimizer with a penalty for each given param, besides the param's other settings."""
    settings: Sequence[ParamSettingsConf] = updater.param_settings
    own = []
    for name, factors in penalties.items():
        known = next((each for each in settings if fnmatchcase(name, each.match)), ParamSettingsConf(match=""))
        own.append(known.replace(match=glob.escape(name), l1=factors.l1, l2=factors.l2))
    return updater.replace(param_settings=[*own, *settings])


__getattr__ = missing_names(__name__, public="dsinga.nn.regularizers")
