"""Names to classes: how a job's ``type`` or ``user_type`` finds the code behind it."""

from __future__ import annotations

import difflib
import os
import sys
import traceback
import types
from collections.abc import Callable
from pathlib import Path
from typing import Any, TypeVar

from dsinga.errors import UserError

T = TypeVar("T")

KINDS = ("layer", "updater", "schedule", "initialiser", "algorithm", "importer")
_entries: dict[str, dict[str, Any]] = {kind: {} for kind in KINDS}


def register(kind: str, *names: str) -> Callable[[T], T]:
    """Register the decorated class or function under ``names``, for ``kind`` in ``KINDS``.

    A later registration of a name replaces the earlier one, so that a notebook cell can be run twice.
    """
    if kind not in _entries:
        raise UserError(f"nothing can be registered as {kind!r}; the kinds are {', '.join(KINDS)}")
    if not names or not all(isinstance(name, str) for name in names):
        raise UserError(f'register wants the name that a job will give, as in @register("{kind}", "MyOwn")')

    def decorate(entry: T) -> T:
        for name in names:
            _entries[kind][name] = entry
        return entry

    return decorate


def lookup(kind: str, name: str) -> Any:
    """Return what is registered under ``name``; raise UserError with the nearest registered name otherwise."""
    try:
        return _entries[kind][name]
    except KeyError:
        remedy = nearest(name, _entries[kind]) or f'; decorate it with @dsinga.register("{kind}", "{name}")'
        raise UserError(f"no {kind} is registered as {name!r}{remedy}") from None


def registered(kind: str) -> list[str]:
    """Return the names that are registered for a kind, in the order in which they came."""
    return list(_entries[kind])


def import_file(path: str | os.PathLike[str]) -> types.ModuleType:
    """Execute a Python file of the user's own, which registers what it defines; return it as a module.

    The module is not kept in ``sys.modules``: what it defines then travels to other processes by value, as that of a
    script does, so that workers need not have the file. Raises UserError where the file cannot be read, registers
    nothing, or raises something, which is then the ``__cause__``.
    """
    file = Path(path)
    try:
        code = compile(file.read_bytes(), str(file), "exec", dont_inherit=True)
    except SyntaxError as error:
        raise UserError(f"{file}:{error.lineno or 1}: {error.msg}") from error
    except (OSError, ValueError) as error:
        raise UserError(f"{file} cannot be imported: {getattr(error, 'strerror', None) or error}") from error
    before = {kind: dict(entries) for kind, entries in _entries.items()}
    module = types.ModuleType(f"imported_{file.stem}")
    module.__file__ = str(file)
    sys.modules[module.__name__] = module  # while it runs, for what looks itself up, such as dataclasses
    try:
        exec(code, module.__dict__)
    except (Exception, SystemExit) as error:
        steps = traceback.extract_tb(error.__traceback__)
        line = [step.lineno for step in steps if step.filename == str(file)][-1]
        fault = str(error) if isinstance(error, UserError) else f"{type(error).__name__}: {error}"
        raise UserError(f"{file}:{line}: {fault}") from error
    finally:
        del sys.modules[module.__name__]
    if _entries == before:
        raise UserError(f'{file} registers nothing; decorate what a job names, as by @dsinga.register("layer", "Own")')
    return module


def nearest(name: str, known: Any) -> str:
    """Return ``"; did you mean 'x'?"`` for the closest of the ``known`` names, or the empty string."""
    close = difflib.get_close_matches(name, list(known), n=1)
    return f"; did you mean {close[0]!r}?" if close else ""
