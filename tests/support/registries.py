"""What is registered, and putting it back after a test that registers classes of its own."""

import contextlib
from collections.abc import Iterator
from typing import Any

from dsinga.base import registry
from dsinga.job import functions as names


def entries(kind: str) -> dict[str, Any]:
    """Return what is registered for a kind, by its name."""
    return {**registry.entries(kind)}


@contextlib.contextmanager
def restored_registry(*, without_users: bool = False) -> Iterator[None]:
    """Undo at the end what has been registered meanwhile; begin, if asked to, without what tests have registered."""
    tables = (registry._entries, registry._files, registry._numbers)
    for kind in registry.KINDS:
        registry.entries(kind)
    before = [{kind: dict(names) for kind, names in table.items()} for table in tables]
    if without_users:
        for kind, files in before[1].items():
            for name, file in files.items():
                if not file.startswith(registry.PACKAGE):
                    registry.unregister(kind, name)
    try:
        yield
    finally:
        for table, kept in zip(tables, before, strict=True):
            table.update(kept)
        names._local.clear()
        registry._version += 1
