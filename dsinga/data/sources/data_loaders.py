"""Reads records from datasets of PyTorch and Hugging Face, and from streams and generators."""

from __future__ import annotations

import itertools
import logging
import time
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import nullcontext
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.array_kinds import is_of
from dsinga.data.sources.arrays import Kind, Options
from dsinga.data.sources.batch_sequences import (
    Batches,
    DrawnRecords,
    Parts,
    are_codes,
    batch_parts,
    drawing,
    is_sequence,
    naming_errors,
    padded_steps,
    say_once,
)

BLOCK = 256  # records that are shuffled together
LABELS = ("label", "labels", "y", "target", "targets")
ARRAYS = ("shape", "__array__", "dtypes", "toarray", "columns")  # attributes of what is read otherwise
WRITE = "write its batches to a store by dsinga.data.write_store(path, batches), and give the path"
NO_ITERABLES = ("shape", "__array__", "dtypes", "toarray", "backend", "fspath", "__fspath__")
_log = logging.getLogger(__name__)


class ItemBatches(Batches):
    """Reads a dataset of single records (x, (x, y), (x, y, sample_weight) or a dict), in batches of one.

    If a library has the records in arrays, unchanged by user code, batches have 256 records.
    """

    def __init__(self, dataset: Any, indices: Sequence[int] | None = None, names: Sequence[str | None] = (None, None)):
        self.numbers, self.names = range(len(dataset)) if indices is None else indices, names
        self.in_columns = is_of(dataset, "datasets", "Dataset") and dataset.format["type"] != "custom"
        self.in_tensors = type(dataset).__module__.startswith("torch.") and type(dataset).__name__ == "TensorDataset"
        if self.in_columns:  # the columns that its format shows
            dataset = dataset.with_format("numpy", columns=dataset.format["columns"])
        # Records of grain go on after the last one, with other random numbers.
        self.later = len(dataset) if is_of(dataset, "grain", "MapDataset") else 0
        self.step = BLOCK if self.in_columns or self.in_tensors else 1
        super().__init__(dataset, -(-len(self.numbers) // self.step), BLOCK)

    def named(self, number: int) -> str:
        """Return the name of a batch for messages."""
        numbers = self.numbers[number * self.step : (number + 1) * self.step]
        last = f" to {numbers[-1]}" if len(numbers) > 1 else ""
        return f"record {numbers[0]}{last} of the {type(self.sequence).__name__}"

    def make(self, number: int, seed: int, epoch: int) -> Parts:
        """Read a batch from the dataset: its arrays (n, ...)."""
        numbers = list(self.numbers[number * self.step : (number + 1) * self.step])
        if self.in_tensors:
            return tuple(np.asarray(tensor)[numbers] for tensor in self.sequence.tensors)
        item = self.sequence[numbers if self.in_columns else numbers[0] + self.later * epoch]
        if isinstance(item, Mapping):
            item = columns(item, f"the {type(self.sequence).__name__}", *self.names)
        parts = item if isinstance(item, (tuple, list)) else (item,)
        return tuple(np.asarray(part) if self.in_columns else np.asarray(part)[None] for part in parts)


def columns(batch: Mapping[str, Any], owner: str, data: str | None = None, label: str | None = None) -> tuple[Any, ...]:
    """Split a batch with named columns into (x, y): the labels, and the one other column."""
    labels = [name for name in batch if (name in LABELS if label is None else name == label)]
    features = [name for name in batch if name not in labels and data in (None, name)]
    if len(features) != 1 or len(labels) > 1 or (label and not labels):
        raise UserError(
            f"the records of {owner} have {', '.join(map(str, batch))}; leave one column of records, and one of labels "
            f"that is called {' or '.join(LABELS[:2])}, or name both, as in dsinga.data.open_records(dataset, "
            f"data={(features or ['x'])[0]!r}, label={(labels or ['label'])[0]!r})"
        )
    return tuple(batch[name] for name in [*features, *labels])


class ByNumber(NamedTuple):
    """A dataset with records that can be read by number, and how to read it.

    Attributes:
        indices: the numbers of the records to read; None for all.
    """

    dataset: Any
    indices: Sequence[int] | None = None
    keeps_order: bool = False
    loader: Any = None


class LoaderBatches(Batches):
    """Makes the batches of a DataLoader with its own sampler and collate function."""

    def __init__(self, loader: Any, names: Sequence[str | None]):
        self.names, self._order = names, ((-1, -1), [[0]])
        super().__init__(loader, len(loader.batch_sampler))

    def named(self, number: int) -> str:
        """Return the name of a batch for messages."""
        return f"batch {number} of the DataLoader"

    def make(self, number: int, seed: int, epoch: int) -> Any:
        """Return a batch of the DataLoader; its sampler chooses the records again in each epoch."""
        if self._order[0] != (seed, epoch):
            with drawing() as seed_by:
                seed_by(seed, epoch)
                self._order = (seed, epoch), [list(rows) for rows in self.sequence.batch_sampler]
        dataset, items = self.sequence.dataset, []
        for row in self._order[1][number]:
            with naming_errors(f"record {row} of the {type(dataset).__name__}"):
                items.append(dataset[row])
        batch = self.sequence.collate_fn(items)
        return columns(batch, "the DataLoader", *self.names) if isinstance(batch, Mapping) else batch


def by_number(source: Any) -> ByNumber | None:
    """Recognise a dataset, or a DataLoader of one, with records that can be read by number."""
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or is_sequence(source) or is_stream(source):
        return None
    if is_of(source, "torch", "DataLoader"):
        return _of_loader(source)
    kind, is_dataset = type(source), is_of(source, "torch", "Dataset") or is_of(source, "datasets", "Dataset")
    if not is_dataset and (is_of(source, "zarr", "Group") or any(hasattr(kind, name) for name in ARRAYS)):
        return None
    return ByNumber(source) if hasattr(kind, "__getitem__") and hasattr(kind, "__len__") else None


def is_stream(source: Any) -> bool:
    """Whether a source is a library's dataset without numbers, which can only be iterated."""
    return is_of(source, "torch", "IterableDataset") or is_of(source, "datasets", "IterableDataset")


def _of_loader(loader: Any) -> ByNumber | None:
    """Recognise a DataLoader of a dataset that can be read by number."""
    batches, joins = loader.batch_sampler, loader.collate_fn
    base: Any = next(cls for cls in type(loader).__mro__ if _is_torchs(cls))
    if batches is None or is_stream(loader.dataset) or type(loader).__iter__ is not base.__iter__:
        return None
    if loader.num_workers:
        say_once(f"num_workers={loader.num_workers} of the DataLoader is not used: a thread reads records ahead")
    is_plain = getattr(joins, "__name__", "") == "default_collate" and _is_torchs(joins)
    is_plain = is_plain and _is_exactly(batches, "BatchSampler") and not batches.drop_last
    sampler: Any = batches.sampler if is_plain else None
    if _is_exactly(sampler, "SequentialSampler"):
        return ByNumber(loader.dataset, keeps_order=True)
    if _is_exactly(sampler, "RandomSampler") and not sampler.replacement and sampler.num_samples == len(loader.dataset):
        return ByNumber(loader.dataset)
    if _is_exactly(sampler, "SubsetRandomSampler"):
        return ByNumber(loader.dataset, [int(index) for index in sampler.indices])
    try:
        len(batches)
    except TypeError:  # of a sampler that can only be iterated
        return None
    return ByNumber(loader.dataset, keeps_order=True, loader=loader)


def _is_exactly(value: Any, name: str) -> bool:
    return type(value).__name__ == name and _is_torchs(type(value))


def _is_torchs(value: Any) -> bool:
    return value.__module__.split(".")[0] == "torch"


def size_of_batches(loader: Any) -> int | None:
    """Return the batch size of a DataLoader, or of another object with a ``batch_size``; else None."""
    size, batches = getattr(loader, "batch_size", None), getattr(loader, "batch_sampler", None)
    if size is None and batches is not None:
        with drawing():
            size = getattr(batches, "batch_size", None) or len(list(next(iter(batches), [0])))
    return size if isinstance(size, int) else None


@register("records", "torch.DataLoader", "torch.Dataset", "datasets.Dataset")
def drawn_kind(value: Any) -> Kind | None:
    """Say how a sequence of batches, or a dataset read by number, is opened as records."""
    if is_sequence(value):
        return Kind("a sequence of batches", drawn_records)
    return None if by_number(value) is None else Kind("records by number", drawn_records, ("data", "label", "classes"))


def drawn_records(source: Any, y: Any, options: Options) -> DrawnRecords:
    """Open a sequence of batches or a dataset as records, with the caller's columns and classes."""
    if y is not None:
        raise UserError(f"the records of the {type(source).__name__} have their labels; leave y out")
    records = by_number(source)
    if records is None:
        batches = Batches(source, len(source))
        return DrawnRecords(f"batches of {type(source).__name__}", batches, options.classes or ())
    data, label, classes = options.data, options.label, options.classes
    if records.loader is not None:
        loaded = LoaderBatches(records.loader, (data, label))
        return DrawnRecords("batches of the DataLoader", loaded, classes or (), keeps_order=True)
    batches = ItemBatches(records.dataset, records.indices, (data, label))
    features = records.dataset.features if batches.in_columns else {}
    name = label or next((name for name in features if name in LABELS), "")
    classes = classes or getattr(features.get(name), "names", None) or ()
    return DrawnRecords(f"records of the {type(records.dataset).__name__}", batches, classes, records.keeps_order)


def is_iterable(source: Any) -> bool:
    """Whether a source can only be iterated: a generator, or batches without length and index."""
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or is_sequence(source) or not hasattr(source, "__iter__"):
        return False
    is_known = _draws_again(source) or not any(hasattr(source, name) for name in NO_ITERABLES)
    return is_known and by_number(source) is None


def _draws_again(source: Any) -> bool:
    """Whether iterating again, as over a DataLoader, may give other records."""
    return is_of(source, "torch", "DataLoader") or is_stream(source)


def _batches_of(source: Any, size: int) -> Iterator[Any]:
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
    """Read an iterable, such as a generator, into memory: return its records, and the first batch's rows.

    The arrays are (x, y), (x, y, weights) or (x,), like the batches.

    Args:
        source: a generator, a tf.data.Dataset's ``as_numpy_iterator()``, a DataLoader, or another iterable.
        count: the number of batches to read; all by default.
        size: the batch size for a stream of single records.
        seed: the random seed for a DataLoader or a library's stream.
        silent_seconds: the seconds between log lines.

    Raises:
        UserError: there are no or too few batches, a batch has other shapes than the first, or they exceed half of the
            free memory.
    """
    from psutil import virtual_memory  # which arrays do not need

    what, nbytes, said = f"the {type(source).__name__}", 0, time.monotonic()
    parts: list[tuple[np.ndarray, ...]] = []
    free = virtual_memory().available
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
    steps = max(batch[0].shape[1] for batch in parts) if all(are_codes(batch[0]) for batch in parts) else 0
    parts = [padded_steps(batch, steps) for batch in parts]
    return tuple(np.concatenate(arrays) for arrays in zip(*parts, strict=True)), len(parts[0][0])


def _arrays(batch: Any, what: str, before: list[tuple[np.ndarray, ...]]) -> tuple[np.ndarray, ...]:
    arrays = batch_parts(columns(batch, what) if isinstance(batch, Mapping) else batch, what)
    shapes = _shapes_of_records(arrays)
    expected = _shapes_of_records(before[0]) if before else shapes
    if shapes != expected:
        raise UserError(
            f"{what} has records of the shapes {shapes}, the first one of {expected}; give all batches one shape"
        )
    return arrays


def _shapes_of_records(parts: Parts) -> list[Any]:
    """Return the shapes that all batches must share; None for the steps of sequences of codes."""
    steps = parts[0].shape[1:2] if are_codes(parts[0]) else ()
    return [(None,) if are_codes(part) and part.shape[1:2] == steps else part.shape[1:] for part in parts]
