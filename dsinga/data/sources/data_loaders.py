"""Records that libraries give by number: datasets of PyTorch, Hugging Face and grain, and DataLoaders of PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.sources.batch_sequences import Batches, DrawnRecords, Parts, is_sequence, say_once
from dsinga.data.sources.random_draws import drawing, naming_errors

BLOCK = 256  # records that are shuffled together
LABELS = ("label", "labels", "y", "target", "targets")
ARRAYS = ("shape", "__array__", "dtypes", "toarray", "columns")  # attributes of what is read otherwise


class ItemBatches(Batches):
    """The records of a dataset, x, (x, y), (x, y, sample_weight) or a dict, as batches of one record.

    Records that a library has in arrays, where no code of the user changes them, are in batches of 256.
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
        """Return what messages call a batch."""
        numbers = self.numbers[number * self.step : (number + 1) * self.step]
        last = f" to {numbers[-1]}" if len(numbers) > 1 else ""
        return f"record {numbers[0]}{last} of the {type(self.sequence).__name__}"

    def make(self, number: int, seed: int, epoch: int) -> Parts:
        """Return the parts of records, (n, ...)."""
        numbers = list(self.numbers[number * self.step : (number + 1) * self.step])
        if self.in_tensors:
            return tuple(np.asarray(tensor)[numbers] for tensor in self.sequence.tensors)
        item = self.sequence[numbers if self.in_columns else numbers[0] + self.later * epoch]
        if isinstance(item, Mapping):
            item = columns(item, f"the {type(self.sequence).__name__}", *self.names)
        parts = item if isinstance(item, (tuple, list)) else (item,)
        return tuple(np.asarray(part) if self.in_columns else np.asarray(part)[None] for part in parts)


def columns(batch: Mapping[str, Any], owner: str, data: str | None = None, label: str | None = None) -> tuple[Any, ...]:
    """Return (x, y) of a batch by names: the labels, and the one other column. Raises UserError for more columns."""
    labels = [name for name in batch if (name in LABELS if label is None else name == label)]
    others = [name for name in batch if name not in labels and data in (None, name)]
    if len(others) != 1 or len(labels) > 1 or (label and not labels):
        raise UserError(
            f"the records of {owner} have {', '.join(map(str, batch))}; leave one column of records, and one of labels "
            f"that is called {' or '.join(LABELS[:2])}, or name both, as in dsinga.data.open_records(dataset, "
            f"data={(others or ['x'])[0]!r}, label={(labels or ['label'])[0]!r})"
        )
    return tuple(batch[name] for name in [*others, *labels])


class ByNumber(NamedTuple):
    """Records that are read by number.

    Attributes:
        dataset: what has them.
        indices: the numbers of those that are read; None for all.
        keeps_order: whether training keeps their order.
        loader: the DataLoader that makes batches of them in its own way, if one does.
    """

    dataset: Any
    indices: Sequence[int] | None = None
    keeps_order: bool = False
    loader: Any = None


class LoaderBatches(Batches):
    """The batches of a DataLoader as it makes them: by its sampler, and by the function that joins records."""

    def __init__(self, loader: Any, names: Sequence[str | None]):
        self.names, self._order = names, ((-1, -1), [[0]])
        super().__init__(loader, len(loader.batch_sampler))

    def named(self, number: int) -> str:
        """Return what messages call a batch."""
        return f"batch {number} of the DataLoader"

    def make(self, number: int, seed: int, epoch: int) -> Any:
        """Return a batch, whose records the sampler chooses anew in each epoch."""
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
    """Return the dataset whose records are read by number, that of a DataLoader, too; None for what has no such ones.

    What a type is counts before what attributes it has.
    """
    if isinstance(source, (str, bytes, Mapping, list, tuple)) or is_sequence(source) or is_stream(source):
        return None
    if is_of(source, "torch", "DataLoader"):
        return _of_loader(source)
    kind, is_dataset = type(source), is_of(source, "torch", "Dataset") or is_of(source, "datasets", "Dataset")
    if not is_dataset and (is_of(source, "zarr", "Group") or any(hasattr(kind, name) for name in ARRAYS)):
        return None
    return ByNumber(source) if hasattr(kind, "__getitem__") and hasattr(kind, "__len__") else None


def is_stream(source: Any) -> bool:
    """Whether a source is a library's dataset of single records that can only be iterated."""
    return is_of(source, "torch", "IterableDataset") or is_of(source, "datasets", "IterableDataset")


def _of_loader(loader: Any) -> ByNumber | None:
    """Return the records of a DataLoader; None where they can only be iterated, or are batches already."""
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
    """Whether ``value`` is of torch's class of this name, and of no subclass of a user's."""
    return type(value).__name__ == name and _is_torchs(type(value))


def _is_torchs(value: Any) -> bool:
    return value.__module__.split(".")[0] == "torch"


def size_of_batches(loader: Any) -> int | None:
    """Return how many rows a batch of a DataLoader has, or of another object with a ``batch_size``; None for others."""
    size, batches = getattr(loader, "batch_size", None), getattr(loader, "batch_sampler", None)
    if size is None and batches is not None:
        with drawing():
            size = getattr(batches, "batch_size", None) or len(list(next(iter(batches), [0])))
    return size if isinstance(size, int) else None


def item_records(records: ByNumber, data: str | None, label: str | None, classes: Sequence[str] | None) -> DrawnRecords:
    """Return the records of a dataset, with the columns and the names of classes that are given, or are its own."""
    if records.loader is not None:
        loaded = LoaderBatches(records.loader, (data, label))
        return DrawnRecords("batches of the DataLoader", loaded, classes or (), keeps_order=True)
    batches = ItemBatches(records.dataset, records.indices, (data, label))
    features = records.dataset.features if batches.in_columns else {}
    name = label or next((name for name in features if name in LABELS), "")
    classes = classes or getattr(features.get(name), "names", None) or ()
    return DrawnRecords(f"records of the {type(records.dataset).__name__}", batches, classes, records.keeps_order)
