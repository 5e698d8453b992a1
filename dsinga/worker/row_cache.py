"""Params of which a partition keeps a whole copy, because servers tell it the rows alone that have changed."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import numpy as np

from dsinga.ops import Array, SparseRows
from dsinga.server import Slice


class RowCache:
    """The flat values of some params, brought up to date slice by slice. Used by one thread at a time.

    ``slices`` are those of each param by name.
    """

    def __init__(self, slices: Mapping[str, Sequence[Slice]]):
        self._values = {name: np.empty(pieces[-1].stop, np.float32) for name, pieces in slices.items()}
        self._versions: dict[int, int] = {}

    def __contains__(self, name: str) -> bool:
        return name in self._values

    def __getitem__(self, name: str) -> Array:
        """Return a param, flat and read-only; the next :meth:`fill` changes it."""
        view = self._values[name].view()
        view.flags.writeable = False
        return view

    def versions(self, pieces: Sequence[Slice]) -> dict[int, int]:
        """Return at which version each slice is here, by id, of those that are."""
        return {piece.id: self._versions[piece.id] for piece in pieces if piece.id in self._versions}

    def fill(self, piece: Slice, arrived: Array | SparseRows, version: int) -> None:
        """Bring a slice to ``version``, by the whole value or by the rows that have changed."""
        own = self._values[piece.param][piece.start : piece.stop]
        if isinstance(arrived, SparseRows):
            own.reshape(arrived.shape)[arrived.rows] = arrived.values
        else:
            own[:] = arrived
        self._versions[piece.id] = version

    def forget(self) -> None:
        """Have no slice at any version."""
        self._versions.clear()
