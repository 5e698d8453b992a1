"""Finds the registered class or function that a job names by ``type``, or for user code by ``user_type``."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.job.component import Component


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


def resolve(conf: Component) -> Any:
    """Return the registered class or function that ``conf`` names.

    Raises JobError where its type asks for user code that it does not name, or that is not registered.
    """
    member = getattr(conf, conf.type_field)
    if not member.is_user:
        return lookup(conf.kind, member)
    if not conf.type_name:
        text = f"{conf.type_field} {member} needs {conf.user_field}: the name of a registered {conf.kind}"
        raise conf.error(text, conf.type_field)
    try:
        return lookup(conf.kind, conf.type_name)
    except UserError as error:
        raise conf.error(str(error), conf.user_field) from None
