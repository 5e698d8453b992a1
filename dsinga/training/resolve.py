"""Finds the registered class or function that a job names by ``type``, or for user code by ``user_type``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Message
from dsinga.registry import lookup


@contextlib.contextmanager
def error_note(note: str) -> Iterator[None]:
    """Add ``note`` to an exception raised within, where user code runs; a UserError needs none."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(note)
        raise


def resolve(kind: str, conf: Message, field: str = "type", user_field: str = "user_type") -> Any:
    """Return the registered ``kind`` that ``conf`` names: a built-in by ``field``, user code by ``user_field``.

    Raises JobError where ``field`` asks for user code and ``user_field`` is missing or not registered.
    """
    member: Enum = getattr(conf, field)
    if not member.name.startswith("kUser"):
        return lookup(kind, member.name)
    name = getattr(conf, user_field)
    if not name:
        raise conf.error(f"{field} {member.name} needs {user_field}: the name of a registered {kind}", field)
    try:
        return lookup(kind, name)
    except UserError as error:
        raise conf.error(str(error), user_field) from None
