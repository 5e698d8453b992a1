"""Describes a store for ``dsinga data info``, and finds damaged records for ``dsinga data verify``."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.advice import option
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.data.column import Column
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.zarr_column import ZarrColumn
from dsinga.data.sources.zarr_source import open_zarr_records
from dsinga.data.stores.record_store import RecordStore, StoreColumn

SAMPLED_BLOCKS = 16
MOST_FAULTS = 20  # that a message lists
MOST_CLASSES = 1000  # beyond which integer labels are described as numbers


@public
def describe(source: RecordSource) -> dict[str, Any]:
    """Return a summary of a source, computed in bounded memory: counts, shapes, bytes, labels and values.

    Keys:
        ``location``, ``kind``, ``records``, ``shape``, ``dtype``: as the source returns its records.
        ``chunk_rows``, ``chunks``, ``stored_bytes`` and others: how they are stored, see :meth:`RecordSource.storage`.
        ``block_rows``: rows that are read and shuffled together.
        ``raw_bytes``: bytes of all records and labels in memory, as they are stored.
        ``label_shape``, ``label_dtype``: of one label; None without labels.
        ``labels``: number of records, or of steps of sequences, by label or class name. None without labels, for
            floats, and for more than 1000 different labels.
        ``label_values``: for labels that are not counted: as ``sample``, of all labels.
        ``outputs``: outputs that a net needs for these labels: the largest class and one more, or the number of floats;
            K for integers (N, K) that are all 0 or 1. None without labels, or if there are negative ones.
        ``vocabulary``: its length.
        ``steps``: of sequences of codes with -1 after the end, the ``longest`` and the ``mean`` number of steps, and
            ``padding``, the share of the numbers that are -1, from the blocks of ``sample``; there for such only.
        ``sample``: ``rows`` and the ``min``, ``max``, ``mean``, ``std`` of their finite numbers, from up to 16 blocks
            spread over the source, and ``nonfinite``, how many numbers are NaN or infinite, if any.
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
    """Return the longest and mean length of sequences of codes, and the share of padding; nothing without sequences."""
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
    """Return the count of each integer label, or None for floats and for too many different labels."""
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
    """Return rows, min, max, mean and standard deviation of arrays, combined as by Chan, Golub and LeVeque (1983)."""
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
    """The result of :func:`verify_store`: the numbers of records and chunks read, and which checks were made.

    Chunks that lie side by side count once. ``has_checksums`` is False where
    changed bytes that can be decoded go unnoticed.

    Attributes:
        nonfinite: the numbers that are NaN or infinite, those that mean "missing" among them: training refuses these.
        missing_chunks: the chunks that are not stored, so that their numbers are the fill value.
    """

    records: int
    chunks: int
    has_checksums: bool
    nonfinite: int = 0
    missing_chunks: int = 0


@public
def verify_store(
    store: str | os.PathLike[str],
    *,
    data: str | None = None,
    label: str | None = None,
    progress: Callable[[int, int], None] | None = None,
) -> Verified:
    """Read all records and labels of a store, in bounded memory, and check them.

    In a record store every chunk is compared with its checksum. In zarr that dsinga did not write, and in stores of
    versions without checksums, it is checked that the chunks are there and can be decoded, and that records and labels
    are equally many.

    Args:
        store: path or URL of a record store, or of any other zarr array or group.
        data: name of the array of records in a zarr group, guessed by default.
        label: the same for the labels.
        progress: called with the number of rows that were read and that of all, of data and labels together.

    Raises:
        UserError: the store cannot be opened, or parts of it are damaged: the message lists up to 20 of them.
    """
    source = open_zarr_records(store, data, label).allowing_nonfinite()
    total, done, chunks, nonfinite, missing = len(source) * len(source.columns), 0, 0, 0, 0
    faults: list[str] = []
    for column in source.columns:
        step, read = _reader(column)
        for start in range(0, column.length, step):
            stop = min(start + step, column.length)
            try:
                rows = read(start, stop)
                nonfinite += rows.size - int(np.isfinite(rows).sum()) if rows.dtype.kind == "f" else 0
            except UserError as error:
                faults.append(str(error))
            done, chunks = done + stop - start, chunks + 1
            if progress is not None:
                progress(done, total)
        missing += column.missing_chunks.count if isinstance(column, ZarrColumn) else 0
    if faults:
        listed = "".join(f"\n  {_short(fault, source.location)}" for fault in faults[:MOST_FAULTS])
        more = f"\n  and {len(faults) - MOST_FAULTS} more" if len(faults) > MOST_FAULTS else ""
        remedy = f"import it again with {option('overwrite')}, or put back a copy of these chunks"
        raise UserError(f"{source.location}: {len(faults)} of {chunks} chunks are damaged; {remedy}:{listed}{more}")
    return Verified(len(source), chunks, isinstance(source, RecordStore) and source.has_checksums, nonfinite, missing)


def _reader(column: Column) -> tuple[int, Callable[[int, int], Any]]:
    """Return the number of rows in a chunk of ``column``, and a function that reads rows."""
    if isinstance(column, ZarrColumn):
        return (column.array.shards or column.array.chunks)[0], column.read_rows
    return column.chunk if isinstance(column, StoreColumn) else column.block, column.load


def _short(fault: str, location: str) -> str:
    """Return an error message without the location and the remedy, which the caller prints once."""
    fault = fault.removeprefix(f"{location} is damaged: ").removeprefix(f"{location}: ")
    return re.split(r"; (?:import it|write the array) again", fault)[0]
