"""Reads records that user code generates again in each epoch, in batches, like Keras's PyDataset."""

from __future__ import annotations

import contextlib
import hashlib
import logging
import random
import sys
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Sequence
from functools import cache
from itertools import repeat
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.chunk_cache import LIMIT_BYTES, MIXED_BLOCKS
from dsinga.data.column import Column
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import as_numpy, check_block, column_dtype, convert

# Modules of Dask that draw numbers from ``random`` in threads of their own.
DRAWING_MODULES = (
    "distributed.comm.core",
    "distributed.scheduler",
    "distributed.utils_comm",
    "dask.sizeof",
    "tornado.ioloop",
)
_lock = threading.RLock()
NAMES = ("x", "y", "sample_weight")  # of the parts of a record, the second and third of which may be missing
Parts = tuple[np.ndarray, ...]
WITHOUT_EFFECT = {"_workers": 1, "_use_multiprocessing": False, "_max_queue_size": 10}  # of Keras's class, by default
_log = logging.getLogger(__name__)


@contextlib.contextmanager
def drawing() -> Iterator[Callable[..., None]]:
    """Make user code reproducible: yield a function that seeds its random generators, and restore them afterwards.

    It seeds ``random``, ``numpy.random`` and, if imported, torch on CPUs. Threads share these, so only one draws at a
    time.
    """
    for module in filter(None, map(sys.modules.get, DRAWING_MODULES)):
        if vars(module).get("random") is random:
            vars(module)["random"] = random.Random()  # so that it takes no numbers out of these sequences
    with _lock:
        of_python, of_numpy, torch = random.getstate(), np.random.get_state(), sys.modules.get("torch")
        of_torch = torch.get_rng_state() if torch else None
        try:
            yield _seed
        finally:
            random.setstate(of_python)
            np.random.set_state(of_numpy)
            if torch:
                torch.set_rng_state(of_torch)


def _seed(*numbers: int) -> None:
    digest = hashlib.blake2b(repr(numbers).encode(), digest_size=8).digest()
    seed = int.from_bytes(digest, "little")
    random.seed(seed)
    np.random.seed(seed & 0xFFFF_FFFF)
    if torch := sys.modules.get("torch"):
        torch.default_generator.manual_seed(seed)


@contextlib.contextmanager
def naming_errors(what: str) -> Iterator[None]:
    """Turn any error of user code, even SystemExit, into a UserError that names ``what`` was read."""
    try:
        yield
    except (KeyboardInterrupt, UserError):
        raise
    except BaseException as error:
        text = f"{type(error).__name__}: {error}".strip().rstrip(".")
        ends = ", which would end the program" if isinstance(error, SystemExit) else ""
        raise UserError(f"{what} cannot be read: {text}{ends}") from error


class DrawnColumn(Column):
    """The records, labels or weights of user batches, as a column."""

    from_files = False

    def __init__(self, batches: Any, part: int, first: np.ndarray):
        name = NAMES[part]
        shape = (1,) if part == 2 and first.ndim == 1 else first.shape[1:]  # as weights of records are elsewhere
        dtype = column_dtype(first, name, labels=part == 1)
        super().__init__(name, batches.length, shape, np.float32 if part == 2 else dtype, batches.block)
        self.batches, self.part = batches, part

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop`` of the first epoch."""
        return self.batches.read(np.arange(start, stop), 0, np.zeros(stop - start, np.int64))[self.part]

    def converted(self, rows: np.ndarray, what: str) -> np.ndarray:
        """Convert rows (n, ...) of a batch to the column's dtype."""
        rows = rows[:, None] if self.part == 2 and rows.ndim == 1 else rows
        dtype = column_dtype(rows, self.name, labels=self.part == 1)
        pad = "; pad to one length, as by torch.nn.functional.pad(x, (0, 0, 0, steps - x.shape[1]))" * (rows.ndim == 3)
        if rows.shape[1:] != self.shape or not (self.dtype.kind == "f" or np.can_cast(dtype, self.dtype)):
            raise UserError(
                f"{what} has {self.name} of the shape {rows.shape[1:]} and the dtype {rows.dtype}, but the first has "
                f"{self.shape} and {self.dtype}; give all records one shape and one dtype{pad}"
            )
        rows = convert(rows, self, labels=self.part == 1).astype(self.dtype, copy=False)
        if self.part == 2 and (rows < 0).any():
            raise UserError(f"{what} has the sample_weight {rows.min():g}; give a number of at least 0")
        return rows


class DrawnRecords(RecordSource):
    """Records with labels that user code generates again in each epoch.

    Attributes:
        keeps_order: whether training reads them in their order.
    """

    _data: DrawnColumn

    def __init__(self, location: str, batches: Any, classes: Sequence[str] = (), keeps_order: bool = False):
        super().__init__(location, *batches.columns[:2], classes=classes)
        self.batches, self.keeps_order, self.has_weights = batches, keeps_order, len(batches.columns) == 3

    def split_weights(self) -> tuple[RecordSource, RecordSource]:
        """Return the records without sample weights, and the weights as separate records."""
        column = self.batches.columns[2]
        changes = {"_data": column, "_labels": None, "label_shape": (), "label_dtype": None, "has_weights": False}
        return self._changed(has_weights=False), self._changed(**changes, shape=column.shape, dtype=column.dtype)

    def draw(
        self, rows: np.ndarray, seed: int = 0, epochs: Callable[[], np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return records and labels as user code generates them in their epochs."""
        parts = self.batches.read(rows, seed, np.zeros(len(rows), np.int64) if epochs is None else epochs())
        for column, array in zip(self.columns, parts[self._data.part :], strict=False):
            if not self.allows_nonfinite:
                self._check_finite(column, array, rows)
        return parts[self._data.part], None if self._labels is None else parts[1]

    def read_labels(self, rows: Any) -> np.ndarray | None:
        """Return the labels of ``rows`` in the first epoch, or None if the source has none."""
        return self.read(rows)[1]

    def end_epoch(self, epoch: int, seed: int) -> None:
        """Tell the user's batches that an epoch has been read."""
        if self._data.part == 0:  # once for records and weights
            self.batches.end_epoch(epoch, seed)

    def label_range(self) -> None:
        """Return None, so that nothing generates all labels: they are checked as they are read."""
        return


class Batches:
    """Reads the batches x, (x, y) or (x, y, sample_weight) of a user's sequence.

    Each is made once an epoch, with seeded random generators.

    Args:
        sequence: the sequence; ``on_epoch_end`` is optional.
        block: the records that training shuffles together; by default the records of a batch.
    """

    def __init__(self, sequence: Any, count: int, block: int = 0):
        self.sequence, self.count = sequence, count
        if not count:
            raise UserError(f"the {type(sequence).__name__} has no {'records' if block else 'batches'}")
        self._forget()
        first = self._read(0, 0, 0)
        self.size = len(first[0])
        self.last = self.size if self.count == 1 else len(self._read(self.count - 1, 0, 0)[0])
        if not block and are_codes(first[0]):  # a batch may be as long as the longest of its sequences
            batches = map(self._read, range(1, self.count), repeat(0), repeat(0))
            steps = max((batch[0].shape[1] for batch in batches if are_codes(batch[0])), default=0)
            first = padded_steps(first, steps)
        self.length, self.block = (self.count - 1) * self.size + self.last, block or self.size
        self.columns = tuple(DrawnColumn(self, part, array) for part, array in enumerate(first))
        self._room = max(MIXED_BLOCKS, LIMIT_BYTES // max(1, sum(array.nbytes for array in first)))
        if not block:
            check_block(self.columns[0], "give smaller batches")
        for name, usual in WITHOUT_EFFECT.items():
            if (setting := getattr(sequence, name, usual)) != usual:
                say_once(f"{name[1:]}={setting} of {type(sequence).__name__} is not used: a thread reads batches ahead")

    def named(self, number: int) -> str:
        """Return the name of a batch for messages."""
        return f"batch {number} of the sequence {type(self.sequence).__name__}"

    def make(self, number: int, seed: int, epoch: int) -> Any:
        """Let the user's code make a batch."""
        return self.sequence[number]

    def _forget(self) -> None:
        self._lock = threading.RLock()  # the user's code need not be ready for threads
        self._kept: OrderedDict[tuple[int, int, int], Parts] = OrderedDict()
        self._begun = self._ended = 0  # epochs

    def read(self, rows: np.ndarray, seed: int, epochs: np.ndarray) -> Parts:
        """Return records of some epochs (n,) as (x, y, sample_weight) arrays in the columns' dtypes."""
        parts = tuple(np.empty((len(rows), *column.shape), column.dtype) for column in self.columns)
        with self._lock:
            for place, (row, epoch) in enumerate(zip(rows.tolist(), epochs.tolist(), strict=True)):
                number, within = divmod(row, self.size)
                for part, array in zip(parts, self._batch(number, seed, epoch), strict=True):
                    part[place] = array[within]
        return parts

    def end_epoch(self, epoch: int, seed: int) -> None:
        """Call ``on_epoch_end`` of the user's sequence, once an epoch."""
        with self._lock:
            while self._ended <= epoch:
                self._call("on_epoch_end", self._ended, seed)
                self._ended += 1

    def _call(self, name: str, epoch: int, seed: int) -> None:
        """Call a method of the sequence with seeded random generators, so that all processes shuffle alike."""
        if hasattr(self.sequence, name):
            with drawing() as seed_by, naming_errors(f"what {name} of {type(self.sequence).__name__} changes"):
                seed_by(seed, epoch, name)
                getattr(self.sequence, name)()

    def _batch(self, number: int, seed: int, epoch: int) -> Parts:
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
            arrays = padded_steps(arrays, *self.columns[0].shape[:1])
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
        return batch_parts(batch, what)

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("_lock", "_kept")}

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._forget()


def are_codes(array: np.ndarray) -> bool:
    """Whether the records of a batch look like sequences of codes, (n, steps)."""
    return array.ndim == 2 and array.dtype.kind in "iu"


def padded_steps(parts: Parts, steps: int = 0) -> Parts:
    """Pad sequences of codes, and the labels of their steps, with -1 to ``steps`` steps."""
    if not are_codes(parts[0]) or (width := parts[0].shape[1]) >= steps:
        return parts
    missing = [(0, 0), (0, steps - width)]
    return tuple(
        np.pad(part, missing, constant_values=-1) if are_codes(part) and part.shape[1] == width else part
        for part in parts
    )


def batch_parts(batch: Any, what: str) -> Parts:
    """Return the arrays of a batch: x, or also y and sample_weight. Raises UserError for anything else."""
    parts = tuple(batch) if isinstance(batch, (tuple, list)) else (batch,)
    arrays = tuple(as_numpy(part, name) for part, name in zip(parts, NAMES, strict=False))
    if len(parts) not in (1, 2, 3) or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
        raise UserError(f"{what} must be arrays x, (x, y) or (x, y, sample_weight), of as many rows")
    return arrays


def is_sequence(value: Any) -> bool:
    """Whether ``value`` is a sequence of batches: it has the methods of Keras's PyDataset."""
    names = ("__getitem__", "__len__", "on_epoch_end")
    return not is_of(value, "torch", "Dataset") and all(hasattr(type(value), name) for name in names)


@cache
def say_once(text: str) -> None:
    """Log a warning, but only once in this process."""
    _log.warning("%s", text)
