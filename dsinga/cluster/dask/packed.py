"""Packed arguments of Dask tasks, which only the Dask workers unpack.

The scheduler loads the arguments of tasks that are sent to it. It would import the modules of the user's classes, and
open the stores of records, which may not be there, or take its time.
"""

from __future__ import annotations

import threading
import weakref
from collections.abc import Callable
from typing import Any, Generic, TypeVar

from distributed.protocol.pickle import dumps, loads

T = TypeVar("T")

_sharing = threading.Lock()


class Packed(Generic[T]):
    """An object in pickled form, until a Dask worker unpacks it."""

    def __init__(self, value: T):
        self._pickled = dumps(value)
        self._shared: Callable[[], T | None] = _nothing

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_shared": _nothing}

    def unpack(self) -> T:
        """Return a new copy of the object."""
        value: T = loads(self._pickled)
        return value

    def share(self) -> T:
        """Return a copy that the callers in this process share, for as long as one of them keeps it."""
        with _sharing:
            value = self._shared()
            if value is None:
                value = self.unpack()
                self._shared = weakref.ref(value)
            return value


def _nothing() -> None:
    """The reference to a copy that does not exist."""


def unpacked(value: T | Packed[T]) -> T:
    """Return the object that may be packed."""
    return value.unpack() if isinstance(value, Packed) else value
