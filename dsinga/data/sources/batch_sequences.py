"""Sequences of batches, as Keras's PyDataset (before: Sequence), whose i-th item is the i-th batch (x, y)."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.column import Column
from dsinga.data.sources.arrays import (
    DataAndLabels,
    Kind,
    Labels,
    Options,
    as_numpy,
    check_block,
    column_dtype,
    convert,
)


class Batches:
    """The batches of a sequence, of equal length but for the last one; it keeps the batch that was read last.

    Raises UserError where the sequence is empty, or a batch is no array and no pair (x, y).
    """

    def __init__(self, sequence: Any):
        self.sequence = sequence
        self.count = len(sequence)
        if not self.count:
            raise UserError(f"{self.text} has no batches")
        self._lock = threading.Lock()
        self._newest: tuple[int, tuple[np.ndarray, ...]] = (-1, ())
        self.size = len(self.part(0, 0))
        self.length = (self.count - 1) * self.size + len(self.part(self.count - 1, 0))

    @property
    def text(self) -> str:
        """What messages call the sequence."""
        return f"the sequence {type(self.sequence).__name__}"

    def part(self, number: int, part: int) -> np.ndarray:
        """Return x, part 0, or y, part 1, of a batch."""
        with self._lock:  # whose code need not be ready for threads, and which computes x and y together
            if self._newest[0] != number:
                self._newest = number, self._read(number)
            parts = self._newest[1]
        if part >= len(parts):
            raise UserError(f"batch {number} of {self.text} has no labels, but the first one has")
        return parts[part]

    def _read(self, number: int) -> tuple[np.ndarray, ...]:
        batch = self.sequence[number]
        parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        if len(parts) > 2:
            raise UserError(
                f"batch {number} of {self.text} has {len(parts)} parts; give pairs (x, y), and weights as "
                "fit(sample_weight=)"
            )
        arrays = tuple(as_numpy(part, name) for part, name in zip(parts, "xy", strict=False))
        if not arrays or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            raise UserError(f"batch {number} of {self.text} must be arrays x, or (x, y), of as many rows")
        return arrays

    @property
    def parts(self) -> int:
        """1, or 2 for batches with labels."""
        self.part(0, 0)
        return len(self._newest[1])

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_newest")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._lock = threading.Lock()
        self._newest = (-1, ())


class BatchColumn(Column):
    """The records, or the labels, of the batches of a sequence; a batch is a block, which is shuffled as one.

    A batch that was read may be kept, so that the sequence must give the same batch each time: random changes of
    records belong into layers.
    """

    from_files = False

    def __init__(self, batches: Batches, labels: bool = False):
        name = "y" if labels else "x"
        first = batches.part(0, int(labels))
        super().__init__(name, batches.length, first.shape[1:], column_dtype(first, name, labels), batches.size)
        self.batches, self.labels = batches, labels
        check_block(self, "give smaller batches")

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``. Raises UserError for a batch of another length or shape."""
        size = self.batches.size
        parts = []
        for number in range(start // size, -(-stop // size)):
            rows = self.batches.part(number, int(self.labels))
            length = min(size, self.length - number * size)
            if rows.shape != (length, *self.shape):
                raise UserError(
                    f"batch {number} of {self.batches.text} has {self.name} of the shape {rows.shape}, not "
                    f"{(length, *self.shape)}; all batches but the last one have as many rows as the first"
                )
            parts.append(rows[max(start - number * size, 0) : stop - number * size])
        return convert(parts[0] if len(parts) == 1 else np.concatenate(parts), self, self.labels)


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence of batches: it has the methods of Keras's class, whatever its module."""
    return all(hasattr(type(value), name) for name in ("__getitem__", "__len__", "on_epoch_end"))


def batch_records(x: Any, y: Any, options: Options) -> DataAndLabels:
    """Return the records of a sequence beside their labels."""
    if y is not None:
        raise UserError(f"{type(x).__name__} is a sequence of batches; leave y out, its batches are (x, y)")
    batches = Batches(x)
    labels = BatchColumn(batches, labels=True) if batches.parts > 1 else None
    return DataAndLabels(f"batches of {type(x).__name__}", BatchColumn(batches), labels)


def batch_labels(y: Any, name: str, length: int, options: Options) -> Labels:
    """Return the column of labels, which :func:`batch_records` has made."""
    return y, options.classes


BATCHES = Kind(
    "a sequence of batches",
    lambda value: isinstance(value, BatchColumn) or is_sequence(value),
    batch_records,
    labels=batch_labels,
)
