"""Sequences of batches, as Keras's PyDataset (before: Sequence), whose i-th item is the i-th batch (x, y)."""

from __future__ import annotations

import logging
import threading
from collections import OrderedDict
from functools import cache
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.chunk_cache import LIMIT_BYTES, MIXED_BLOCKS
from dsinga.data.sources.arrays import as_numpy, check_block
from dsinga.data.sources.drawn_records import NAMES, DrawnColumn, Parts
from dsinga.data.sources.random_draws import drawing, naming_errors

WITHOUT_EFFECT = {"_workers": 1, "_use_multiprocessing": False, "_max_queue_size": 10}  # of Keras's class, by default
_log = logging.getLogger(__name__)


class Batches:
    """The batches x, (x, y) or (x, y, sample_weight) of a sequence, of equal length but for the last one.

    Each is made once an epoch, by a call that finds the generators of random numbers seeded; the newest are kept.
    Raises UserError where the sequence is empty, or a batch is no array and no such tuple.

    Args:
        sequence: what has the batches; its ``on_epoch_end`` is called, where it has one.
        count: the number of batches.
        block: the records that training shuffles together; by default those of a batch.
    """

    def __init__(self, sequence: Any, count: int, block: int = 0):
        self.sequence, self.count = sequence, count
        if not count:
            raise UserError(f"the {type(sequence).__name__} has no {'records' if block else 'batches'}")
        self._forget()
        first = self._read(0, 0, 0)
        self.size = len(first[0])
        self.last = self.size if self.count == 1 else len(self._read(self.count - 1, 0, 0)[0])
        self.length, self.block = (self.count - 1) * self.size + self.last, block or self.size
        self.columns = tuple(DrawnColumn(self, part, array) for part, array in enumerate(first))
        self._room = max(MIXED_BLOCKS, LIMIT_BYTES // max(1, sum(array.nbytes for array in first)))
        if not block:
            check_block(self.columns[0], "give smaller batches")
        for name, usual in WITHOUT_EFFECT.items():
            if (given := getattr(sequence, name, usual)) != usual:
                say_once(f"{name[1:]}={given} of {type(sequence).__name__} is not used: a thread reads batches ahead")

    def named(self, number: int) -> str:
        """Return what messages call a batch."""
        return f"batch {number} of the sequence {type(self.sequence).__name__}"

    def make(self, number: int, seed: int, epoch: int) -> Any:
        """Return a batch, by the user's code."""
        return self.sequence[number]

    def _forget(self) -> None:
        """Begin as a process does that has read nothing."""
        self._lock = threading.RLock()  # the user's code need not be ready for threads
        self._kept: OrderedDict[tuple[int, int, int], Parts] = OrderedDict()
        self._begun = self._ended = 0  # epochs

    def read(self, rows: np.ndarray, seed: int, epochs: np.ndarray) -> Parts:
        """Return the parts (n, ...) of records, in the dtypes of the columns, as they are in the epochs (n,) of a run.

        Raises UserError for what the user's code raises, and for batches unlike the first one.
        """
        parts = tuple(np.empty((len(rows), *column.shape), column.dtype) for column in self.columns)
        with self._lock:
            for place, (row, epoch) in enumerate(zip(rows.tolist(), epochs.tolist(), strict=True)):
                number, within = divmod(row, self.size)
                for part, array in zip(parts, self._batch(number, seed, epoch), strict=True):
                    part[place] = array[within]
        return parts

    def end_epoch(self, epoch: int, seed: int) -> None:
        """Call ``on_epoch_end`` of the sequence, once for each epoch."""
        with self._lock:
            while self._ended <= epoch:
                self._call("on_epoch_end", self._ended, seed)
                self._ended += 1

    def _call(self, name: str, epoch: int, seed: int) -> None:
        """Call a method of the sequence, which may shuffle its records: so in the same way in each process."""
        if hasattr(self.sequence, name):
            with drawing() as seed_by, naming_errors(f"what {name} of {type(self.sequence).__name__} changes"):
                seed_by(seed, epoch, name)
                getattr(self.sequence, name)()

    def _batch(self, number: int, seed: int, epoch: int) -> Parts:
        """Return the parts of a batch in the dtypes of the columns."""
        while self._begun <= epoch:
            self.end_epoch(self._begun - 1, seed)
            self._call("on_epoch_begin", self._begun, seed)
            self._begun += 1
        key = seed, epoch, number
        if key not in self._kept:
            arrays, what = self._read(number, seed, epoch), self.named(number)
            rows = self.last if number == self.count - 1 else self.size
            if len(arrays) != len(self.columns) or len(arrays[0]) != rows:
                raise UserError(
                    f"{what} has {len(arrays[0])} records of {len(arrays)} parts, not {rows} of {len(self.columns)}; "
                    "all batches but the last one are like the first"
                )
            columns = zip(self.columns, arrays, strict=True)
            self._kept[key] = tuple(column.converted(array, what) for column, array in columns)
            while len(self._kept) > self._room:
                self._kept.popitem(last=False)
        self._kept.move_to_end(key)
        return self._kept[key]

    def _read(self, number: int, seed: int, epoch: int) -> Parts:
        what = self.named(number)
        with drawing() as seed_by, naming_errors(what):
            seed_by(seed, epoch, number)
            batch = self.make(number, seed, epoch)
        parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
        arrays = tuple(as_numpy(part, name) for part, name in zip(parts, NAMES, strict=False))
        if len(parts) not in (1, 2, 3) or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            raise UserError(f"{what} must be arrays x, (x, y) or (x, y, sample_weight), of as many rows")
        return arrays

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence of batches: it has the methods of Keras's class, whatever its module."""
    names = ("__getitem__", "__len__", "on_epoch_end")
    return not is_of(value, "torch", "Dataset") and all(hasattr(type(value), name) for name in names)


@cache
def say_once(text: str) -> None:
    """Log a warning, unless this process has done so before."""
    _log.warning("%s", text)
