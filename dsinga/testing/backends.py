"""Lists the kernel backends that load on this machine."""

from __future__ import annotations

from dsinga.errors import UserError
from dsinga.ops import BACKENDS


def why_missing(backend: str) -> str:
    """Return why ``backend`` does not load on this machine, the empty string if it does."""
    if backend not in BACKENDS:
        return f"there is no backend {backend}"
    try:
        BACKENDS[backend]()
    except UserError as error:
        return str(error)
    return ""


def available_backends() -> list[str]:
    """Return the names of the backends that load on this machine; "numpy" always does."""
    return [backend for backend in BACKENDS if not why_missing(backend)]
