"""What can be read by number: datasets, and DataLoaders of PyTorch, whose sampler says which records in which order."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_of
from dsinga.data.sources.batch_sequences import is_sequence, say_once
from dsinga.data.sources.drawn_records import DrawnRecords
from dsinga.data.sources.items import LABELS, ItemBatches

ARRAYS = ("shape", "__array__", "dtypes", "toarray", "columns")  # attributes of what is read otherwise
REMEDIES = {
    "WeightedRandomSampler": "leave it out, and give the weights of the records as fit(sample_weight=...)",
    "RandomSampler": "write shuffle=True in place of a sampler with replacement or num_samples",
    "DistributedSampler": "leave it out: workers share the records of each batch",
}


class ByNumber(NamedTuple):
    """Records that are read by number: those of a dataset, by default all, and whether training keeps their order."""

    dataset: Any
    indices: Sequence[int] | None = None
    keeps_order: bool = False


def by_number(source: Any) -> ByNumber | None:
    """Return the dataset whose records are read by number, that of a DataLoader, too; None for what has no such ones.

    What a type is counts before what attributes it has. Raises UserError for a sampler that training does not follow.
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
    """Return the records of a DataLoader; None where only its batches are what it makes of them.

    These are joined by a function of the user's, or come from a dataset that is iterated, or gives whole batches.
    """
    batches, joins = loader.batch_sampler, loader.collate_fn
    is_plain = getattr(joins, "__name__", "") == "default_collate" and _is_torchs(joins)
    base: Any = next(cls for cls in type(loader).__mro__ if _is_torchs(cls))
    if batches is None or not is_plain or is_stream(loader.dataset) or type(loader).__iter__ is not base.__iter__:
        return None
    if loader.num_workers:
        say_once(f"num_workers={loader.num_workers} of the DataLoader is not used: a thread reads records ahead")
    if getattr(batches, "drop_last", False):
        say_once("drop_last of the DataLoader is not used: batches go on over the end of an epoch, all of one size")
    return _in_order_of(batches.sampler if _is_exactly(batches, "BatchSampler") else batches, loader.dataset)


def _in_order_of(sampler: Any, dataset: Any) -> ByNumber:
    """Return the records of a dataset in the order of a sampler. Raises UserError for those of no known order."""
    if _is_exactly(sampler, "SequentialSampler"):
        return ByNumber(dataset, keeps_order=True)
    if _is_exactly(sampler, "RandomSampler") and not sampler.replacement and sampler.num_samples == len(dataset):
        return ByNumber(dataset)
    if _is_exactly(sampler, "SubsetRandomSampler"):
        return ByNumber(dataset, [int(index) for index in sampler.indices])
    name = type(sampler).__name__
    remedy = REMEDIES.get(name, "for some of the records give torch.utils.data.Subset(dataset, indices)")
    raise UserError(
        f"the DataLoader has an order of its own, by a {name}, which is not followed; {remedy}, or give iter(loader), "
        "whose batches are read once, into memory, in their order"
    )


def _is_exactly(value: Any, name: str) -> bool:
    """Whether ``value`` is of torch's class of this name, and of no subclass of a user's."""
    return type(value).__name__ == name and _is_torchs(type(value))


def _is_torchs(value: Any) -> bool:
    return value.__module__.split(".")[0] == "torch"


def size_of_batches(loader: Any) -> int | None:
    """Return how many rows a batch of a DataLoader has, or of another object with a ``batch_size``; None for others."""
    size = getattr(loader, "batch_size", None) or getattr(getattr(loader, "batch_sampler", None), "batch_size", None)
    return size if isinstance(size, int) else None


def item_records(records: ByNumber, data: str | None, label: str | None, classes: Sequence[str] | None) -> DrawnRecords:
    """Return the records of a dataset, with the columns and the names of classes that are given, or are its own."""
    batches = ItemBatches(records.dataset, records.indices, (data, label))
    features = records.dataset.features if batches.in_columns else {}
    name = label or next((name for name in features if name in LABELS), "")
    classes = classes or getattr(features.get(name), "names", None) or ()
    return DrawnRecords(f"records of the {type(records.dataset).__name__}", batches, classes, records.keeps_order)
