"""Records that libraries give by number, or batch by batch: datasets of PyTorch and Hugging Face, generators.

Where a length and an index are known, records are read by number, without a copy, and shuffled as those of a store.
What can only be iterated is read once, into memory, in its own order.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np
import psutil

from dsinga.base.errors import UserError
from dsinga.data.sources.arrays import as_numpy

BLOCK = 256  # records that are read, and shuffled, together
LABELS = ("label", "labels", "y", "target", "targets")
WRITE = "write its batches to a store by dsinga.data.write_store(path, batches), and give the path"


class ItemBatches:
    """The records of a dataset by number, (x, y) or x or a dict of both, as a sequence of batches."""

    def __init__(self, dataset: Any):
        self.dataset = dataset
        self.length = len(dataset)
        if not self.length:
            raise UserError(f"the {type(dataset).__name__} has no records")

    def __len__(self) -> int:
        return -(-self.length // BLOCK)

    def __getitem__(self, number: int) -> tuple[Any, ...]:
        start, stop = number * BLOCK, min((number + 1) * BLOCK, self.length)
        if hasattr(self.dataset, "with_format"):  # of Hugging Face, which reads many records at once
            return columns(self.dataset.with_format("numpy")[start:stop], self.dataset)
        if hasattr(self.dataset, "tensors"):  # PyTorch's TensorDataset
            return tuple(np.asarray(tensor[start:stop]) for tensor in self.dataset.tensors)
        items = [self.dataset[index] for index in range(start, stop)]
        first = items[0]
        if isinstance(first, Mapping):
            return columns({name: stack([item[name] for item in items], name) for name in first}, self.dataset)
        if isinstance(first, (tuple, list)):
            return tuple(stack(list(parts), "xy"[k : k + 1] or "x") for k, parts in enumerate(zip(*items, strict=True)))
        return (stack(items, "x"),)

    def on_epoch_end(self) -> None:
        """Do nothing: the records stay."""


def stack(items: list[Any], name: str) -> np.ndarray:
    """Return records of one shape as an array. Raises UserError for records of several shapes."""
    arrays = [np.asarray(item) for item in items]
    shapes = {array.shape for array in arrays}
    if len(shapes) > 1:
        raise UserError(
            f"the records {name!r} have different shapes, such as {' and '.join(map(str, sorted(shapes)[:2]))}"
        )
    return np.stack(arrays)


def columns(batch: Mapping[str, Any], owner: Any) -> tuple[Any, ...]:
    """Return (x, y) of a batch by names: the labels, and the one other column. Raises UserError for more columns."""
    labels = [name for name in batch if name in LABELS]
    others = [name for name in batch if name not in labels]
    if len(others) != 1 or len(labels) > 1:
        raise UserError(
            f"the records of the {type(owner).__name__} have {', '.join(batch)}; leave one column of records, and one "
            f"of labels that is called {' or '.join(LABELS[:2])}"
        )
    return tuple(batch[name] for name in [*others, *labels])


def by_number(source: Any) -> Any:
    """Return the records of a dataset by number, as a sequence of batches; None for what has no such records.

    A DataLoader of PyTorch stands for its dataset, unless it joins records in a way of its own.
    """
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or hasattr(type(source), "on_epoch_end"):
        return None
    dataset = getattr(source, "dataset", None)
    if dataset is not None and hasattr(source, "collate_fn"):
        if getattr(source.collate_fn, "__name__", "") not in ("default_collate", "default_convert"):
            return None
        return by_number(dataset)
    kind = type(source)
    if any(hasattr(kind, name) for name in ("shape", "__array__", "dtypes", "toarray", "columns")):
        return None
    return ItemBatches(source) if hasattr(kind, "__getitem__") and hasattr(kind, "__len__") else None


def is_iterable(source: Any) -> bool:
    """Whether a source can only be iterated: a generator, or an object of batches without length and index."""
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or hasattr(type(source), "on_epoch_end"):
        return False
    known = ("shape", "__array__", "dtypes", "toarray", "backend", "fspath", "__fspath__")
    return (
        hasattr(source, "__iter__") and not any(hasattr(source, name) for name in known) and by_number(source) is None
    )


def read_batches(batches: Iterable[Any], count: int | None = None) -> tuple[tuple[Any, ...], int]:
    """Return the batches of an iterable as arrays of all records in their order, and the rows of the first batch.

    The arrays are (x, y), (x, y, weights) or (x,), as those of each batch.

    Args:
        batches: a generator, a tf.data.Dataset's ``as_numpy_iterator()``, a DataLoader, or another iterable.
        count: how many batches are read; all by default.

    Raises:
        UserError: there are none or fewer, a batch has other shapes than the first, or they exceed the free memory.
    """
    what, nbytes = f"the {type(batches).__name__}", 0
    parts: list[list[np.ndarray]] = []
    free = psutil.virtual_memory().available
    for number, batch in enumerate(itertools.islice(batches, count)):
        if isinstance(batch, Mapping):
            batch = columns(batch, batches)
        arrays = [as_numpy(part, "x") for part in (batch if isinstance(batch, (tuple, list)) else (batch,))]
        if not arrays or len(arrays) > 3 or any(not array.ndim or len(array) != len(arrays[0]) for array in arrays):
            raise UserError(f"batch {number} of {what} must be arrays x, (x, y) or (x, y, weights), of as many rows")
        expected = [array.shape[1:] for array in parts[0]] if parts else []
        if parts and [array.shape[1:] for array in arrays] != expected:
            raise UserError(
                f"batch {number} of {what} has records of the shapes {[array.shape[1:] for array in arrays]}, the "
                f"first one of {expected}; give all batches one shape"
            )
        parts.append(arrays)
        nbytes += sum(array.nbytes for array in arrays)
        if nbytes > free // 2:
            raise UserError(
                f"{what} has more than half of the free memory, {free >> 21:,} MiB; {WRITE}, or read fewer of them in "
                "fit by steps_per_epoch"
            )
    if not parts or (count is not None and len(parts) < count):
        remedy = f"; give steps_per_epoch={len(parts)}" if parts else "; what gives its batches once is made anew"
        raise UserError(f"{what} ended after {len(parts)} batches{'' if count is None else f' of {count}'}{remedy}")
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)), len(parts[0][0])
