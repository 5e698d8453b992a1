"""The lengths of sequences, for batches of sequences of similar lengths, and the share of padding in batches."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.record_source import RecordSource

KEPT_ORDERS = 8  # as many as a process reads at a time: a batch may span the end of an epoch


class SequenceLengths:
    """The lengths of the sequences of a source, read block by block when they are first asked for.

    A record's length is the number of its codes that are not -1; of other records, that of its labels by step.

    Args:
        source: the records.
        steps: the number of steps of a record in the net, which may be fewer than are stored.

    Raises:
        UserError: the records are no sequences.
    """

    def __init__(self, source: RecordSource, steps: int | None = None):
        self._has_codes = len(source.shape) == 1 and _are_codes(source)
        if not self._has_codes and not (source.label_dtype == np.int64 and len(source.label_shape) == 1):
            raise UserError("takes sequences: records of codes, or with a label for each step, -1 after the end")
        self._source = source.without_labels() if self._has_codes else source
        stored = source.shape[0] if self._has_codes else source.label_shape[0]
        self.steps = min(stored, steps or stored)
        self._blocks: dict[int, np.ndarray] = {}
        self._orders: dict[Any, np.ndarray] = {}

    def kept(self, key: Any, compute: Callable[[], np.ndarray]) -> np.ndarray:
        """Return the rows that ``compute`` returned for ``key``, of which the newest few are kept."""
        if (rows := self._orders.get(key)) is None:
            rows = compute()
            self._orders = dict([*self._orders.items()][1 - KEPT_ORDERS :]) | {key: rows}  # other threads read it
        return rows

    def of(self, rows: np.ndarray) -> np.ndarray:
        """Return the lengths (n,) int64 of the records with these numbers (n,)."""
        block = self._source.block
        lengths = np.empty(len(rows), np.int64)
        for number in np.unique(rows // block).tolist():
            chosen = rows // block == number
            lengths[chosen] = self._of_block(number)[rows[chosen] - number * block]
        return lengths

    def _of_block(self, number: int) -> np.ndarray:
        if number not in self._blocks:
            start = number * self._source.block
            rows = np.arange(start, min(start + self._source.block, len(self._source)))
            codes: Any = self._source.read(rows)[0] if self._has_codes else self._source.read_labels(rows)
            self._blocks[number] = (codes[:, : self.steps] != -1).sum(axis=1)
        return self._blocks[number]

    def __getstate__(self) -> dict[str, Any]:
        return {**vars(self), "_blocks": {}, "_orders": {}}


def _are_codes(source: RecordSource) -> bool:
    """Whether records of one axis are codes, to judge by the first one: arrays of integers are read as float32."""
    if source.dtype == np.int32:
        return True
    numbers = source.without_labels().read(np.arange(1))[0]
    return bool((numbers == np.round(numbers)).all() and (numbers >= -1).all())


def padding_share(lengths: Sequence[np.ndarray]) -> float:
    """Return the share of the steps of batches, each as long as its longest sequence, that come after ends.

    ``lengths`` (n,) are those of the sequences of each batch.

    >>> padding_share([np.array([4, 2]), np.array([1, 1])])
    0.2
    """
    computed = sum(len(batch) * int(batch.max(initial=0)) for batch in lengths)
    return 1 - sum(int(batch.sum()) for batch in lengths) / computed if computed else 0.0
