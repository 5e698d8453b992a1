"""Defines RecordSource, which reads training records by number from any store or array."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Hashable, Iterable, Iterator, Mapping, Sequence
from itertools import pairwise
from types import MappingProxyType
from typing import Any, NoReturn

import numpy as np

from dsinga.base.errors import RunError, UserError
from dsinga.base.redaction import redact
from dsinga.data.chunk_cache import LIMIT_BYTES, MIXED_BLOCKS, ChunkCache
from dsinga.data.column import Column, PointRanges
from dsinga.data.conversion import find_nonfinite, label_dtype, nonfinite_error
from dsinga.data.missing_values import values_text
from dsinga.data.stores.store_format import LABEL_ROWS

_cache = ChunkCache()


def clear_cache() -> None:
    """Free the memory of decoded chunks that this process keeps for sources that may be read again."""
    _cache.clear()


class RecordSource:
    """The records that a net is trained on, with optional labels, read by row number.

    Threads may share it; other processes read the records from its pickle.

    Attributes:
        location: absolute path, URL, or a description such as "numpy array".
        shape: shape of one record.
        dtype: dtype of one record: uint8, int32 or float32.
        block: rows that are read and shuffled together.
        label_shape: shape of one record's label: (), (T,) for sequences with a label for each step, (K,) for several
            targets, or (C, *space) for targets that are fields.
        label_dtype: int64, float32, or None without labels.
        classes: names of the labels, if known.
        vocabulary: words or characters that codes stand for, if known.
        allows_nonfinite: whether NaN and infinity are returned instead of refused.

    Raises:
        UserError: there are no records, or not as many labels.
    """

    kind = ""  # of source, for ``dsinga data info``, where the location does not say it
    cache_name = "records"  # of the cache of decoded blocks, which sources of one process share
    leads: Any = None  # how records of several leads are made of the one that is read; None for one lead
    has_weights = False  # whether there are weights of records, beside the labels, that nobody reads yet
    allows_nonfinite = False
    keeps_order = False  # whether training reads the records in their order
    _changes: Mapping[str, Any] = MappingProxyType({})  # of a copy

    def __init__(
        self,
        location: str,
        data: Column,
        labels: Column | None = None,
        *,
        classes: Sequence[str] = (),
        vocabulary: Sequence[str] = (),
        digest: str = "",
    ):
        if labels is not None and labels.length != data.length:
            raise UserError(
                f"{location} has {data.length} records in {data.name!r}, but {labels.length} labels in "
                f"{labels.name!r}; give one label, or one row of labels, for each record"
            )
        if not data.length:
            raise UserError(f"{location} has no records: {data.name!r} is empty")
        self.location = location
        self.shape, self.dtype, self.block = data.shape, data.dtype, data.block
        self.label_shape = labels.shape if labels is not None else ()
        self.label_dtype = labels.dtype if labels is not None else None
        self.classes, self.vocabulary, self.digest = tuple(classes), tuple(vocabulary), digest
        self._data, self._labels = data, labels
        self._register()

    def __setstate__(self, state: dict[str, Any]) -> None:
        vars(self).update(state)
        self._register()

    def _register(self) -> None:
        self._unread: dict[Hashable, set[int]] = {}  # blocks by the key of a column that has all rows in memory
        _cache.reserve(self, self._data.block_bytes)
        _cache.forget_after(self, [column.key for column in self.columns if not column.stays_cached])

    @property
    def columns(self) -> tuple[Column, ...]:
        """The :class:`Column` of data, and the column of labels, if there are labels."""
        return (self._data,) if self._labels is None else (self._data, self._labels)

    @property
    def blocks(self) -> int | tuple[int, ...]:
        """The rows that are shuffled together: their number, or the ends of unequal groups."""
        return self.block if self._data.ends is None else tuple(self._data.ends.tolist())

    @property
    def from_files(self) -> bool:
        """Whether a process needs access to files or URLs to read the records."""
        return any(column.from_files for column in self.columns)

    @property
    def record_bytes(self) -> int:
        """Bytes of one record in memory, without its label."""
        return self._data.row_bytes

    @property
    def label_bytes(self) -> int:
        """Bytes of one record's label in memory if it is a field, else 0."""
        return self._labels.row_bytes if self._labels is not None and len(self._labels.shape) > 1 else 0

    @property
    def decoded_bytes(self) -> int:
        """Bytes of all decoded records in memory, with labels that are fields."""
        return len(self) * (self.record_bytes + self.label_bytes)

    @property
    def cache_limit(self) -> int:
        """The most bytes of decoded records in the process's shared cache."""
        return max(LIMIT_BYTES, MIXED_BLOCKS * self._data.block_bytes)

    @property
    def has_labels(self) -> bool:
        """Whether every record has a label."""
        return self._labels is not None

    def __len__(self) -> int:
        return self._data.length

    def __getitem__(self, rows: Any) -> NoReturn:
        """Refuse indexing: records are read with :meth:`read`, with their labels."""
        raise UserError(f"{type(self).__name__} has no index; .read([0]) returns its first record and the label")

    def __repr__(self) -> str:
        labels = "with labels" if self.has_labels else "no labels"
        kind = type(self).__name__
        return f"<{kind} {redact(self.location)}: {len(self)} records {self.dtype} {self.shape}, {labels}>"

    def read(self, rows: Any) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the records of ``rows`` and their labels, in the order of ``rows``.

        Args:
            rows: row numbers (n,), integers in [0, len(source)), in any order, maybe repeated.

        Returns:
            Data (n, *shape) in ``dtype``, and labels (n, *label_shape) in ``label_dtype``, or None without labels.

        Raises:
            IndexError: a row number is out of range.
            UserError: a block cannot be read, or has NaN or infinity.
        """
        return self.draw(self._checked(rows))

    def draw(
        self, rows: np.ndarray, seed: int = 0, epochs: Callable[[], np.ndarray] | None = None
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Read training records: like :meth:`read`, but user code may change them in each epoch.

        Args:
            rows: row numbers (n,) int64, all in range.
            seed: the job's seed.
            epochs: returns the epoch of each row, (n,); None for the first epoch.
        """
        labels = self._labels
        return self._gather(self._data, rows), None if labels is None else self._gather(labels, rows)

    def end_epoch(self, epoch: int, seed: int) -> None:
        """Learn that this process has read its records of an epoch; do nothing by default."""

    def read_labels(self, rows: Any) -> np.ndarray | None:
        """Return the labels (n, *label_shape) of ``rows``, or None if the source has none."""
        return None if self._labels is None else self._gather(self._labels, self._checked(rows))

    def in_region(self, data: PointRanges | None, labels: PointRanges | None = None) -> RecordSource:
        """Return a copy that reads only some points of each record and label.

        Columns that cannot read regions stay whole, as ``shape`` and ``label_shape`` show.

        Args:
            data: the points along each axis of a record; None for all.
            labels: the points along each axis of a label; None for all.
        """
        changes: dict[str, Any] = {}
        if data is not None and (column := self._data.in_region(data)) is not None:
            changes |= {"_data": column, "shape": column.shape}
        if labels is not None and self._labels is not None and (column := self._labels.in_region(labels)) is not None:
            changes |= {"_labels": column, "label_shape": column.shape}
        if not changes:
            return self
        source = self._changed(**changes)
        _cache.reserve_for_part(self, source, source._data.block_bytes)
        return source

    def storage(self) -> dict[str, Any]:
        """Return how the records are stored, such as chunks and bytes; empty for arrays in memory."""
        return {}

    def job_settings(self) -> dict[str, Any]:
        """Return the ``store_conf`` fields that make a job prepare other data in the same way."""
        return {}

    def named_fields(self) -> dict[str, Any]:
        """Return the ``store_conf`` fields that name these records in a job file; empty if nothing can."""
        return {}

    def in_training_order(self, settings: Mapping[str, Any]) -> RecordSource:
        """Return the records with columns in the order of the training data, by their :meth:`job_settings`."""
        return self

    def codes(self) -> dict[str, Any]:
        """Return how many words or characters a text has, "codes", and a hash of them, "words"."""
        words = "\n".join(self.vocabulary)
        return {"codes": len(self.vocabulary), "words": hashlib.sha256(words.encode()).hexdigest() if words else ""}

    def label_parts(self) -> Iterator[np.ndarray]:
        """Yield the labels of all records in order, LABEL_ROWS at a time."""
        if (column := self._labels) is not None:
            for start in range(0, len(self), LABEL_ROWS):
                yield self._gather(column, np.arange(start, min(start + LABEL_ROWS, len(self))))

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest integer label; None without integer labels. Reads all labels."""
        if self._labels is None or self._labels.dtype.kind == "f":
            return None
        low = high = None
        for labels in self.label_parts():
            labels = labels[labels != -1] if self.label_shape else labels
            if labels.size:
                least, most = int(labels.min()), int(labels.max())
                low, high = (least, most) if low is None or high is None else (min(low, least), max(high, most))
        return (-1, -1) if low is None or high is None else (low, high)

    def allowing_nonfinite(self) -> RecordSource:
        """Return a copy that does not refuse NaN and infinity, for jobs that skip such batches."""
        return self._changed(allows_nonfinite=True)

    def without_labels(self) -> RecordSource:
        """Return a copy that has no labels."""
        return self._changed(_labels=None, label_shape=(), label_dtype=None)

    def _pickled_changes(self) -> dict[str, Any] | None:
        """Return how a copy differs from its source, for a pickle; None if it does not."""
        return {**self._changes, "_changes": self._changes} if self._changes else None

    def _changed(self, **changes: Any) -> RecordSource:
        source = object.__new__(type(self))  # not copy.copy, which may open the source again, as a pickle does
        changes = {**self._changes, **changes}
        source.__dict__.update(self.__dict__, _changes=changes, **changes)
        source._register()
        return source

    def _checked(self, rows: Any) -> np.ndarray:
        rows = np.asarray(rows, np.int64)
        least, most = (rows.min(), rows.max()) if rows.size else (0, 0)
        if not 0 <= least <= most < len(self):
            raise IndexError(f"rows {least} to {most} are not all in the {len(self)} records of {self.location}")
        return rows

    def _gather(self, column: Column, rows: np.ndarray) -> np.ndarray:
        if column.whole is not None:
            if column.key not in self._unread:
                self._unread[column.key] = {*range(-(-column.length // column.block))}
            if unread := self._unread[column.key]:  # reading a block checks it
                for index in unread.intersection(column.blocks_of(rows).tolist()):
                    self._read_block(column, index)
                    unread.discard(index)
            return column.whole.take(rows, axis=0).astype(column.dtype, copy=False)
        shape = (len(rows), *column.shape)
        if not rows.size:
            return np.empty(shape, column.dtype)
        index = int(column.blocks_of(int(rows.min())))
        if index == column.blocks_of(int(rows.max())):  # always so for a small source
            block = self._read_block(column, index)
            within = rows - column.rows_of(index)[0]
            chosen = block.take(within, axis=0) if block.flags.c_contiguous else block[within]
            return chosen.astype(column.dtype, copy=False)
        out = np.empty(shape, column.dtype)
        order = np.argsort(rows, kind="stable")  # makes the rows of each block adjacent
        ordered = rows[order]
        blocks = column.blocks_of(ordered)
        ends = [*(np.flatnonzero(np.diff(blocks)) + 1).tolist(), len(rows)]
        for start, end in pairwise([0, *ends]):
            index = int(blocks[start])
            out[order[start:end]] = self._read_block(column, index)[ordered[start:end] - column.rows_of(index)[0]]
        return out

    def _read_block(self, column: Column, index: int) -> np.ndarray:
        key = (column.key, index, self.allows_nonfinite, self._may_be_masked(column))
        return _cache.get(key, lambda: self._load(column, index))

    def _load(self, column: Column, index: int) -> np.ndarray:
        start, stop = column.rows_of(index)
        rows = column.load(start, stop)
        if rows.dtype.kind == "f" and not self.allows_nonfinite:
            self._check_finite(column, rows, range(start, start + len(rows)))
        if column.in_memory and column.ranges is not None:
            return rows
        # numpy's take() would copy the whole block for each batch otherwise. An array that Dask has sent to another
        # process lies anywhere in the bytes of its message.
        return np.require(rows, requirements=["C", "ALIGNED"])

    def _may_be_masked(self, column: Column) -> bool:
        return column is self._labels and len(column.shape) > 1

    def _check_finite(self, column: Column, rows: np.ndarray, numbers: Sequence[int] | np.ndarray) -> None:
        """Raise UserError for the first NaN or infinity in records; losses check labels that are fields."""
        bad = find_nonfinite(rows, allows_nan=self._may_be_masked(column))
        if bad is not None:
            value = f"{bad.value} ({values_text(values)})" if (values := column.missing_values) else bad.value
            place = column.place(bad.position)
            what = f"{self.location}: {column.name!r}"
            raise nonfinite_error(what, value, int(numbers[bad.row]), place, column.remedy)


def kept_bytes(shares: Iterable[tuple[RecordSource, float]]) -> int:
    """Return the most memory, in bytes, that caches of decoded records use in a process."""
    decoded: dict[str, float] = {}
    limits: dict[str, int] = {}
    for source, share in shares:
        decoded[source.cache_name] = decoded.get(source.cache_name, 0) + source.decoded_bytes * share
        limits[source.cache_name] = max(limits.get(source.cache_name, 0), source.cache_limit)
    return sum(min(int(size), limits[name]) for name, size in decoded.items())


class AlgorithmRecords(RecordSource):
    """Stands for a store where the training algorithm makes the records, as in reinforcement learning."""

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: Any, labels: np.ndarray | None = None):
        column = None
        if labels is not None:
            column = _NoColumn("y", rows, labels.shape[1:], label_dtype(labels.dtype), rows)
        super().__init__("records of the algorithm", _NoColumn("x", rows, shape, dtype, rows), column)


class _NoColumn(Column):
    from_files = False

    def load(self, start: int, stop: int) -> NoReturn:
        raise RunError("an algorithm makes these records while it trains; there are none to read")


def connect_sources(sources: Iterable[RecordSource], client: Callable[[], Any]) -> None:
    """Get ``sources`` ready to be read in the process of a Dask worker; see :meth:`Column.connect`."""
    for source in sources:
        for column in source.columns:
            column.connect(client)
