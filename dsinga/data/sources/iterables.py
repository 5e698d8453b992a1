"""Batches, or records, that can only be iterated: generators, streams. They are read once, into memory."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import nullcontext
from typing import Any

import numpy as np
import psutil

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.sources.arrays import as_numpy
from dsinga.data.sources.batch_sequences import is_sequence, say_once
from dsinga.data.sources.data_loaders import by_number, columns, is_stream
from dsinga.data.sources.random_draws import drawing, naming_errors

WRITE = "write its batches to a store by dsinga.data.write_store(path, batches), and give the path"
NO_ITERABLES = ("shape", "__array__", "dtypes", "toarray", "backend", "fspath", "__fspath__")
_log = logging.getLogger(__name__)


def is_iterable(source: Any) -> bool:
    """Whether a source can only be iterated: a generator, or an object of batches without length and index."""
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or is_sequence(source) or not hasattr(source, "__iter__"):
        return False
    is_known = _draws_again(source) or not any(hasattr(source, name) for name in NO_ITERABLES)
    return is_known and by_number(source) is None


def _draws_again(source: Any) -> bool:
    """Whether a source may have other records when it is iterated again: a DataLoader, or a stream of a library."""
    return is_of(source, "torch", "DataLoader") or is_stream(source)


def _batches_of(source: Any, size: int) -> Iterator[Any]:
    """Yield the batches of an iterable; of a stream of records ``size`` of these at a time."""
    records = iter(source)
    if not is_stream(source):
        yield from records
    while rows := list(itertools.islice(records, size)):
        if isinstance(rows[0], Mapping):
            yield {name: np.stack([np.asarray(row[name]) for row in rows]) for name in rows[0]}
        elif isinstance(rows[0], (tuple, list)):
            yield tuple(np.stack(list(map(np.asarray, part))) for part in zip(*rows, strict=True))
        else:
            yield np.stack(list(map(np.asarray, rows)))


def read_batches(
    source: Iterable[Any], count: int | None = None, size: int = 32, seed: int = 0, silent_seconds: float = 3.0
) -> tuple[tuple[np.ndarray, ...], int]:
    """Return the batches of an iterable as arrays of all records in their order, and the rows of the first batch.

    The arrays are (x, y), (x, y, weights) or (x,), as those of each batch.

    Args:
        source: a generator, a tf.data.Dataset's ``as_numpy_iterator()``, a DataLoader, or another iterable.
        count: how many batches are read; all by default.
        size: the records of a batch of a stream of single records.
        seed: determines the random numbers of a DataLoader and of a stream of a library.
        silent_seconds: after how long the log has a line of what is being read, then and again.

    Raises:
        UserError: there are none or fewer, a batch has other shapes than the first, or they exceed the free memory.
    """
    what, nbytes, said = f"the {type(source).__name__}", 0, time.monotonic()
    parts: list[tuple[np.ndarray, ...]] = []
    free = psutil.virtual_memory().available
    if _draws_again(source):
        say_once(f"{what} is read once, into memory: what it draws at random stays the same in all epochs")
    context: Any = drawing() if _draws_again(source) else nullcontext(lambda seed: None)
    with context as seed_by:
        seed_by(seed)
        with naming_errors(what):
            batches = iter(_batches_of(source, size))
        for number in itertools.count() if count is None else range(count):
            with naming_errors(f"batch {number} of {what}"):
                batch = next(batches, batches)
            if batch is batches:
                break
            parts.append(_arrays(batch, f"batch {number} of {what}", parts))
            nbytes += sum(array.nbytes for array in parts[-1])
            if nbytes > free // 2:
                raise UserError(
                    f"{what} has more than half of the free memory, {free >> 21:,} MiB; {WRITE}, or read fewer of them "
                    "in fit by steps_per_epoch"
                )
            if time.monotonic() - said >= silent_seconds:
                end = "to its end; fit(steps_per_epoch=...) reads fewer" if count is None else f"of {count}"
                _log.warning("%s is read into memory: %d batches, %d MiB, %s", what, number + 1, nbytes >> 20, end)
                said = time.monotonic()
    if not parts or (count is not None and len(parts) < count):
        remedy = f"; give steps_per_epoch={len(parts)}" if parts else "; what gives its batches once is made anew"
        raise UserError(f"{what} ended after {len(parts)} batches{'' if count is None else f' of {count}'}{remedy}")
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)), len(parts[0][0])


def _arrays(batch: Any, what: str, before: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    """Return the parts of a batch. Raises UserError for those that are none, or unlike those of the batches before."""
    if isinstance(batch, Mapping):
        batch = columns(batch, what)
    arrays = tuple(as_numpy(part, "x") for part in (batch if isinstance(batch, (tuple, list)) else (batch,)))
    if not arrays or len(arrays) > 3 or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
        raise UserError(f"{what} must be arrays x, (x, y) or (x, y, weights), of as many rows")
    shapes = [array.shape[1:] for array in arrays]
    expected = [array.shape[1:] for array in before[0]] if before else shapes
    if shapes != expected:
        raise UserError(
            f"{what} has records of the shapes {shapes}, the first one of {expected}; give all batches one shape"
        )
    return arrays
