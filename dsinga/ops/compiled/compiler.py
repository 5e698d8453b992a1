"""Finds numba, imports it on first use, and compiles loops for given types."""

from __future__ import annotations

import logging
import os
from collections.abc import Callable
from functools import cache
from importlib import import_module
from importlib.util import find_spec
from types import ModuleType
from typing import Any

from dsinga.base.errors import UserError

VARIABLE = "DSINGA_COMPILED"
# Numbers of an array. Loops over smaller ones do not pay for the second that numba takes to be imported.
SMALLEST = 1 << 16

_log = logging.getLogger(__name__)


def compiled(module: str, size: int) -> Any:
    """Import a module of compiled loops; None without numba, or if ``size`` is too small to pay."""
    return _load(module) if size >= SMALLEST else None


@cache
def _load(module: str) -> ModuleType | None:
    if not is_wanted() or find_spec("numba") is None:
        return None
    try:
        return import_module(f"dsinga.ops.compiled.{module}")
    except Exception as error:  # numba refuses versions of numpy and Python that it does not know
        _log.warning("computing without compiled loops, since numba cannot compile them: %s", error)
        return None


def describe() -> str:
    """Say which numba version compiles loops, or that there is none."""
    if find_spec("numba") is None:
        return "no loops are compiled: pip install numba"
    from importlib import metadata  # few ask for a version

    return f"loops are compiled by numba {metadata.version('numba')}" if is_wanted() else "no loops are compiled"


def is_wanted() -> bool:
    """Whether ``DSINGA_COMPILED`` allows compiled loops."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0"):
        raise UserError(f"{VARIABLE}={value!r} is unknown: leave it unset, or set it to '0' to do without numba")
    return not value


def compile_loop(signature: Any, loop: Callable[..., Any]) -> Any:
    """Compile a loop for a numba ``signature``, without reordering of floats and without the GIL."""
    import numba

    options: dict[str, Any] = {"nogil": True, "error_model": "numpy"}
    try:
        return numba.njit(signature, cache=True, **options)(loop)
    except RuntimeError:  # there is no file of the source, or no folder that can be written
        return numba.njit(signature, **options)(loop)
