"""Describes a store for ``dsinga data info``, and finds damaged records for ``dsinga data verify``."""

from __future__ import annotations

import contextlib
import itertools
import math
import os
import re
from collections.abc import Callable, Iterator
from functools import partial
from typing import Any, NamedTuple

import numpy as np
import zarr

from dsinga.base.advice import option
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.data.locations import absolute
from dsinga.data.missing_values import as_nan, missing_values
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.zarr_source import arrays_to_verify, open_record_store
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.data.stores.missing_chunks import MissingChunks
from dsinga.data.stores.record_store import RecordStore, StoreColumn
from dsinga.data.stores.reference_scales import scale_faults
from dsinga.data.stores.store_faults import chunk_fault
from dsinga.data.stores.store_format import MAX_BLOCK_BYTES

SAMPLED_BLOCKS = 16
MOST_FAULTS = 20  # that a message lists
MOST_CLASSES = 1000  # beyond which integer labels are described as numbers


@public
def describe(source: RecordSource) -> dict[str, Any]:
    """Summarise a source of records, in bounded memory: counts, shapes, bytes, labels and values.

    Keys: ``location``, ``kind``, ``records``, ``shape``, ``dtype``: as the source returns its records. ``chunk_rows``,
    ``chunks``, ``stored_bytes`` and others: how they are stored. ``block_rows``: rows that are read and shuffled
    together. ``raw_bytes``: bytes of all records and labels in memory, in the stored dtypes. ``label_shape``,
    ``label_dtype``: of one label; None without labels. ``labels``: number of records, or of steps of sequences, by
    label or class name; None for floats, and for more than 1000 different labels. ``label_values``: like ``sample``,
    over all labels, if they are not counted. ``outputs``: outputs that a net needs: the largest class + 1, or the
    number of floats; K for integers (N, K) that are all 0 or 1. ``vocabulary``: its length. ``steps``, for sequences of
    codes: the ``longest`` and ``mean`` number of steps, and ``padding``, the share of -1. ``sample``: ``rows`` and the
    ``min``, ``max``, ``mean``, ``std`` of their finite numbers, from up to 16 blocks; and ``nonfinite``, the number of
    NaN and infinite values, if any.
    """
    source = source.allowing_nonfinite()
    counts = _histogram(source)
    names = dict(enumerate(source.classes))
    facts: dict[str, Any] = {
        "location": source.location,
        "kind": source.kind or source.location,
        "records": len(source),
        "shape": source.shape,
        "dtype": source.dtype.name,
        **source.storage(),
        "block_rows": source.block,
        "label_shape": source.label_shape if source.has_labels else None,
        "label_dtype": source.label_dtype.name if source.label_dtype is not None else None,
        "labels": None if counts is None else {names.get(label, str(label)): n for label, n in counts.items()},
    }
    if source.has_labels and counts is None:
        facts["label_values"] = statistics(source.label_parts())
    facts["outputs"] = _outputs(source, counts)
    facts["vocabulary"] = len(source.vocabulary)
    if steps := _steps(source):
        facts["steps"] = steps
    facts["sample"] = statistics(_data_parts(source))
    return facts


def _steps(source: RecordSource) -> dict[str, float]:
    if source.dtype != np.int32 or len(source.shape) != 1:
        return {}
    lengths = np.concatenate([(part != -1).sum(axis=1) for part in _data_parts(source)])
    padding = 1 - lengths.sum() / (len(lengths) * source.shape[0])
    return {"longest": int(lengths.max()), "mean": float(lengths.mean()), "padding": float(padding)} if padding else {}


def _data_parts(source: RecordSource) -> Iterator[np.ndarray]:
    unlabelled, blocks = source.without_labels(), -(-len(source) // source.block)
    rows = source.columns[0].sample_rows
    for index in np.unique(np.linspace(0, blocks - 1, SAMPLED_BLOCKS).round().astype(int)):
        start = index * source.block
        yield unlabelled.read(np.arange(start, min(start + rows, len(source))))[0]


def _histogram(source: RecordSource) -> dict[int, int] | None:
    """Count how often each integer label occurs; None for floats and for more than MOST_CLASSES labels."""
    if source.label_dtype != np.int64:
        return None
    counts: dict[int, int] = {}
    for labels in source.label_parts():
        labels = labels[labels != -1] if source.label_shape else labels  # -1 pads a sequence after its end
        for label, count in zip(*np.unique(labels, return_counts=True), strict=True):
            counts[int(label)] = counts.get(int(label), 0) + int(count)
        if len(counts) > MOST_CLASSES:
            return None
    return dict(sorted(counts.items()))


def _outputs(source: RecordSource, counts: dict[int, int] | None) -> int | None:
    if not source.has_labels:
        return None
    if source.label_dtype != np.int64:
        return int(np.prod(source.label_shape))
    if counts is not None and set(counts) <= {0, 1} and source.label_shape:
        padded = any((labels == -1).any() for labels in source.label_parts())
        return 2 if padded else source.label_shape[0]
    span = source.label_range()
    return None if span is None or span[0] < 0 else max(span[1] + 1, len(source.classes))


def statistics(parts: Iterator[np.ndarray]) -> dict[str, Any]:
    """Return the rows, min, max, mean and std of arrays that come one by one (Chan, Golub and LeVeque, 1983)."""
    rows = count = nonfinite = 0
    low, high, mean, squares = np.inf, -np.inf, 0.0, 0.0
    for part in parts:
        rows += len(part)
        numbers = part.ravel() if part.dtype.kind != "f" else part[np.isfinite(part)]
        nonfinite += part.size - numbers.size
        if not numbers.size:
            continue
        low, high = min(low, float(numbers.min())), max(high, float(numbers.max()))
        part_mean = float(numbers.mean(dtype=np.float64))
        part_squares = float(numbers.var(dtype=np.float64)) * numbers.size
        total, change = count + numbers.size, part_mean - mean
        mean += change * numbers.size / total
        squares += part_squares + change**2 * count * numbers.size / total
        count = total
    facts: dict[str, Any] = {"rows": rows}
    if count:
        facts |= {"min": low, "max": high, "mean": mean, "std": (squares / count) ** 0.5}
    return facts | {"nonfinite": nonfinite} if nonfinite else facts


class Verified(NamedTuple):
    """The result of :func:`verify_store`: the numbers of records and faults, and the checks that were made.

    Without checksums, changed bytes that can be decoded go unnoticed.

    Attributes:
        records: the number of records, or of rows of the longest array.
        nonfinite: the numbers that are NaN, infinite or mean "missing"; training refuses them.
        missing_chunks: the chunks that are not stored and read as the fill value.
    """

    records: int
    chunks: int
    has_checksums: bool
    nonfinite: int = 0
    missing_chunks: int = 0
    arrays: int = 1


@public
def verify_store(
    store: str | os.PathLike[str],
    *,
    data: str | None = None,
    label: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Check a store for damage: read all records and labels, or all arrays of a zarr group.

    In a record store every chunk is compared with its checksum. In other zarr data chunks must exist and be decodable,
    and records and labels must be equally many. References must unpack numbers as their netCDF or HDF5 files do.

    Args:
        store: path or URL of a record store, of any other zarr array or group, or of references.
        data: name of an array of records in a zarr group; only it and ``label`` are read.
        label: name of the array of labels.
        progress: called with the rows read and the total rows, over all arrays.

    Raises:
        UserError: the store cannot be opened, or parts of it are damaged; the message lists up to 20 of them.
    """
    location = absolute(store)
    source = open_record_store(location, data, label)
    arrays = [] if source else [_StoredArray(array) for array in arrays_to_verify(location, data, label)]
    reads = _reads_of_records(source) if source else [read for array in arrays for read in array.reads()]
    total, done, nonfinite = sum(rows for rows, _ in reads), 0, 0
    faults = [fault for array in arrays for fault in scale_faults(array.array)]
    for rows, read in reads:
        try:
            numbers = read()
            nonfinite += numbers.size - int(np.isfinite(numbers).sum()) if numbers.dtype.kind == "f" else 0
        except UserError as error:
            faults.append(str(error))
        done += rows
        if progress is not None:
            progress(done, total)
    if faults:
        listed = "".join(f"\n  {_short(fault, location)}" for fault in faults[:MOST_FAULTS])
        more = f"\n  and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        remedy = f"import it again with {option('overwrite')}, or put back a copy of these chunks"
        raise UserError(f"{location}: {len(faults)} of {len(reads)} chunks are damaged; {remedy}:{listed}{more}")
    if source:
        return Verified(len(source), len(reads), source.has_checksums, nonfinite, 0, len(source.columns))
    records = max((each.array.shape or (1,))[0] for each in arrays)
    return Verified(records, len(reads), False, nonfinite, sum(each.missing.count for each in arrays), len(arrays))


def _reads_of_records(store: RecordStore) -> list[tuple[int, Callable[[], np.ndarray]]]:
    """Return how to read each chunk of a record store: its number of rows, and a function."""
    reads: list[tuple[int, Callable[[], np.ndarray]]] = []
    for column in store.allowing_nonfinite().columns:
        chunk = column.chunk if isinstance(column, StoreColumn) else column.block
        for start in range(0, column.length, chunk):
            stop = min(start + chunk, column.length)
            reads.append((stop - start, partial(column.load, start, stop)))
    return reads


class _StoredArray:
    """Reads any zarr array as it is stored, without unpacking numbers."""

    def __init__(self, array: zarr.Array):
        self.array, self.missing = array, MissingChunks(array)
        self._reader = RegionReader(array)
        self._missing_values: tuple[float, ...] = ()
        with contextlib.suppress(UserError):  # of packed numbers
            self._missing_values = missing_values(array)

    def reads(self) -> list[tuple[int, Callable[[], np.ndarray]]]:
        return [
            (each[0].stop - each[0].start if each else 1, partial(self._read, each)) for each in _regions(self.array)
        ]

    def _read(self, region: tuple[slice, ...]) -> np.ndarray:
        try:
            numbers = self._reader.read(region)
        except Exception as error:  # of codecs and file systems: any class
            raise chunk_fault(self.array, region, error) from error
        self.missing.check(numbers, region)
        return as_nan(numbers, self._missing_values)


def _regions(array: Any) -> Iterator[tuple[slice, ...]]:
    """Yield regions that cover an array and fit into memory: adjacent chunks up to 256 MiB, or one."""
    steps, chunks = list(array.shape), array.shards or array.chunks
    for axis, chunk in enumerate(chunks):
        if not axis or math.prod(steps) * array.dtype.itemsize > MAX_BLOCK_BYTES:
            steps[axis] = chunk
    axes = zip(array.shape, steps, strict=True)
    yield from itertools.product(
        *([slice(start, min(start + step, size)) for start in range(0, size, step)] for size, step in axes)
    )


def _short(fault: str, location: str) -> str:
    fault = fault.removeprefix(f"{location} is damaged: ").removeprefix(f"{location}: ")
    return re.split(r"; (?:import it|write the array) again", fault)[0]
