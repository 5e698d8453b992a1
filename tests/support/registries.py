"""What is registered, and putting it back after a test that registers classes of its own."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import Any

from dsinga import registry


def entries(kind: str) -> dict[str, Any]:
    """Return what is registered for a kind, by its name."""
    return {name: registry.lookup(kind, name) for name in registry.registered(kind)}


@contextlib.contextmanager
def restored_registry() -> Iterator[None]:
    """Undo at the end what has been registered meanwhile."""
    before = {kind: entries(kind) for kind in registry.ROOMS}
    try:
        yield
    finally:
        for kind, names in before.items():
            for name, entry in entries(kind).items():
                if names.get(name) is not entry:
                    registry.unregister(kind, name)
            for name in names.keys() - entries(kind).keys():
                registry.register(kind, name)(names[name])
