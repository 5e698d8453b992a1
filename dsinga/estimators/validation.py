"""Splits records for training and validation: at random, by class, by group or by a splitter."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any, NamedTuple

import numpy as np
from sklearn.utils.validation import column_or_1d

from dsinga.base.errors import UserError
from dsinga.data.array_kinds import is_dask_collection
from dsinga.estimators import jobs
from dsinga.estimators.lazy import compute
from dsinga.estimators.records import TrainingSet
from dsinga.estimators.sparse_records import SparseRecords
from dsinga.extensions import EarlyStopping
from dsinga.job import Job


class ChunkMask(NamedTuple):
    """Selects records of a dask array: a mask as a dask array of bool (n,), and each chunk's number of them."""

    mask: Any
    counts: Sequence[int]


def split_records(
    records: TrainingSet,
    fraction: float,
    seed: int,
    *,
    by_class: bool = False,
    groups: Any = None,
    splitter: Any = None,
    client: Any = None,
) -> tuple[TrainingSet, TrainingSet]:
    """Split records into those for training and those for validation, in order.

    ``fraction`` is the share of the records, or of ``groups`` (n,), for validation, in (0, 1). With ``by_class`` each
    class gives this share and keeps at least one record to train on. The last split of ``splitter``, a scikit-learn
    splitter, replaces the share.

    Each chunk of a dask array gives its share at random, whatever its classes, without computing. With ``groups`` or
    ``splitter``, the groups, or the targets too, are computed.

    Raises:
        UserError: a wrong ``splitter``, or no records to train on or to validate.
    """
    length, is_lazy = len(records.x), is_dask_collection(records.x)
    if groups is not None:
        groups = _opened_groups(compute(groups, client), length)
    if splitter is not None:
        masks = _masks_by_splitter(splitter, length, compute(records.y, client), groups)
    elif groups is not None:
        masks = _masks_by_group(groups, fraction, seed)
    elif is_lazy:
        masks = _masks_by_chunk(records.x.chunks[0], fraction, seed)
    else:
        masks = _masks_at_random(length, fraction, seed, records.y if by_class else None)
    trained, held_out = (
        TrainingSet(*(None if array is None else _chosen(array, mask, records.x) for array in records))
        for mask in masks
    )
    if not len(trained.x) or not len(held_out.x):
        raise UserError(
            f"of {length} records {len(trained.x)} would be to train on and {len(held_out.x)} for validation; give "
            "more records, another validation_fraction, validation_data, or early_stopping=False"
        )
    return trained, held_out


def create_stopping(job: Job, n_iter_no_change: int, tol: float) -> EarlyStopping:
    """Return the extension that stops if the validation loss no longer falls, and keeps the best params."""
    metric = "loss" if jobs.losses(job) else "reconstruction_error"
    return EarlyStopping(f"test/{metric}", int(n_iter_no_change), float(tol), "min", restore_best_weights=True)


def _opened_groups(groups: Any, length: int) -> np.ndarray:
    """Return the group of each record; raise UserError for a wrong number or a missing group."""
    if np.ndim(groups) == 0:
        raise UserError(f"groups is {groups!r}; give the group of each record, such as frame['patient']")
    if len(groups := column_or_1d(groups)) != length:
        raise UserError(f"X has {length} records, but groups has {len(groups)}; give both as many")
    try:
        np.unique(groups)
    except TypeError as error:
        raise UserError(f"groups has missing or mixed names ({error}); give each record a group of one kind") from error
    return np.asarray(groups)


def _masks_at_random(length: int, fraction: float, seed: int, codes: Any) -> tuple[Any, Any]:
    """Select random records for validation, with masks; each class of ``codes`` (n,) gives its share."""
    rng = np.random.default_rng(seed)
    order, mask = rng.permutation(length), np.zeros(length, bool)
    if codes is None:
        mask[order[: math.ceil(length * fraction)]] = True
        return ~mask, mask
    order = order[np.argsort(codes[order], kind="stable")]
    steps = np.floor(np.arange(length + 1) * fraction + rng.random())  # grows by 1 at each record for validation
    mask[order[np.diff(steps) > 0]] = True
    _, firsts = np.unique(codes[order], return_index=True)
    mask[order[firsts]] = False
    return ~mask, mask


def _masks_by_group(groups: np.ndarray, fraction: float, seed: int) -> tuple[Any, Any]:
    """Select the records of random groups for validation; return masks for training and validation."""
    names = np.unique(groups)
    count = math.ceil(len(names) * fraction)
    mask = np.isin(groups, np.random.default_rng(seed).permutation(names)[:count])
    return ~mask, mask


def _masks_by_splitter(splitter: Any, length: int, y: Any, groups: Any) -> tuple[Any, Any]:
    """Select records by the last split of a scikit-learn splitter; return masks for training and validation."""
    if not hasattr(splitter, "split"):
        raise UserError(
            f"validation_split is {splitter!r}; give a splitter of scikit-learn, such as TimeSeriesSplit(), or the "
            "share of records as validation_fraction"
        )
    *_, rows = splitter.split(np.zeros((length, 1)), y, groups)
    masks = np.zeros((2, length), bool)
    for mask, chosen in zip(masks, rows, strict=True):
        mask[chosen] = True
    return masks[0], masks[1]


def _masks_by_chunk(sizes: Sequence[int], fraction: float, seed: int) -> tuple[Any, Any]:
    """Select a share of each chunk of a dask array; return lazy masks for training and validation."""
    import dask.array as da

    offset = np.random.default_rng(seed).random()
    mask = da.map_blocks(_draw, fraction, seed, offset, chunks=(sizes,), dtype=bool, meta=np.empty(0, bool))
    counts = np.diff(np.floor(np.cumsum([0, *sizes]) * fraction + offset)).astype(int).tolist()
    return ChunkMask(~mask, np.subtract(sizes, counts).tolist()), ChunkMask(mask, counts)


def _draw(fraction: float, seed: int, offset: float, block_info: Any = None) -> np.ndarray:
    """Task: select a chunk's records for validation, from the seed and the chunk's position."""
    ((start, stop),) = block_info[None]["array-location"]
    before, after = np.floor(np.array([start, stop]) * fraction + offset).astype(int)
    return np.random.default_rng((seed, start)).permutation(stop - start) < after - before


def _chosen(array: Any, mask: Any, records: Any) -> Any:
    """Return the rows that a mask selects; rows of a dask array have the chunks of ``records``."""
    if isinstance(array, SparseRecords):
        return array.chosen(mask)
    if not is_dask_collection(records):
        return array[mask]
    import dask.array as da

    sizes = records.chunks[0]
    if not isinstance(mask, ChunkMask):
        counts = [int(part.sum()) for part in np.split(mask, np.cumsum(sizes)[:-1])]
        mask = ChunkMask(da.from_array(mask, chunks=(sizes,)), counts)
    axes, array = tuple(range(array.ndim)), array.rechunk({0: sizes})
    lengths = {0: tuple(mask.counts)}
    return da.blockwise(_rows, axes, array, axes, mask.mask, (0,), adjust_chunks=lengths, meta=array._meta)


def _rows(block: np.ndarray, mask: np.ndarray) -> np.ndarray:
    return block[mask]
