"""What can be read by number: datasets, and DataLoaders of PyTorch, in the order of their samplers."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.data.array_kinds import is_of
from dsinga.data.sources.batch_sequences import Batches, is_sequence, say_once
from dsinga.data.sources.drawn_records import DrawnRecords
from dsinga.data.sources.items import LABELS, ItemBatches, columns
from dsinga.data.sources.random_draws import drawing, naming_errors

ARRAYS = ("shape", "__array__", "dtypes", "toarray", "columns")  # attributes of what is read otherwise


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
