"""From a ``type`` (and ``user_type``) of the job to what is registered for it, which may be the user's own code."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from enum import Enum
from typing import Any

from dsinga.errors import UserError
from dsinga.job import Message
from dsinga.registry import lookup


@contextlib.contextmanager
def noting(where: str) -> Iterator[None]:
    """Note on what is raised within where it was, for code of the user's runs there; a UserError says so itself."""
    try:
        yield
    except UserError:
        raise
    except Exception as error:
        error.add_note(where)
        raise


def chosen(kind: str, conf: Message, field: str = "type", user_field: str = "user_type") -> Any:
    """Return the entry of the registry that ``conf`` chooses: a built-in member of an enum, or a user's name.

    Raises JobError where a user's own is wanted and not named or not registered.
    """
    member: Enum = getattr(conf, field)
    if not member.name.startswith("kUser"):
        return lookup(kind, member.name)
    name = getattr(conf, user_field)
    if not name:
        raise conf.error(f"{field} {member.name} wants {user_field}: the name of a registered {kind}", field)
    try:
        return lookup(kind, name)
    except UserError as error:
        raise conf.error(str(error), user_field) from None
