"""Arguments of tasks that only Dask workers load.

The scheduler loads the arguments of tasks that are sent to it. It would import the modules of the user's classes, and
open the stores of records, which may not be there, or take its time.
"""

from __future__ import annotations

from typing import Generic, TypeVar

from distributed.protocol.pickle import dumps, loads

T = TypeVar("T")


class Packed(Generic[T]):
    """An object in pickled form, until a Dask worker unpacks it."""

    def __init__(self, value: T):
        self._pickled = dumps(value)

    def unpack(self) -> T:
        """Return a new copy of the object."""
        value: T = loads(self._pickled)
        return value


def unpacked(value: T | Packed[T]) -> T:
    """Return the object that may be packed."""
    return value.unpack() if isinstance(value, Packed) else value
