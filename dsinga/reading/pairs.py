"""Matches records, labels and sample weights with a net's inputs; splits data for validation."""

from __future__ import annotations

import math
import numbers
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.base.arguments import values_by_name
from dsinga.base.errors import UserError
from dsinga.data import RecordSource
from dsinga.data.array_kinds import is_of, is_path
from dsinga.data.column import Column
from dsinga.data.sources.arrays import ArrayColumn
from dsinga.data.sources.batch_sequences import DrawnRecords
from dsinga.data.sources.data_loaders import is_iterable, read_batches
from dsinga.data.stores.store_format import SMALL_BYTES
from dsinga.reading.given import Pair

Data = tuple[Any, Any, Any]  # records, labels and weights


class WeighedPairs(NamedTuple):
    """The records and labels of each input in one phase, and sample weights or None."""

    pairs: dict[str, Pair]
    weights: Any


ALL_IN_AN_EPOCH = "steps_per_epoch is for batches of a generator: an epoch reads all records; use train_steps"
ALL_VALIDATE = "validation_steps is for batches of a generator: validation reads all records; use validate_steps"


def read_iterable(
    data: Data, batches: int | None = None, size: int | None = None, seed: int | None = 0, otherwise: str = ""
) -> tuple[Data, int | None]:
    """Read a generator into memory: return (x, y, weights), and the first batch's rows.

    Other data are returned unchanged, with None.
    """
    x, y, weights = data
    if not is_iterable(x):
        if batches is not None:
            raise UserError(otherwise)
        return data, None
    if y is not None or weights is not None:
        raise UserError(f"the batches of the {type(x).__name__} are (x, y) or (x, y, weights); leave y and weights out")
    parts, rows = read_batches(x, batches, size or 32, seed or 0)
    x, y, weights = parts + (None,) * (3 - len(parts))
    return (x, y, weights), rows


def split_data(data: Any) -> Data:
    """Return data as (x, y, weights), given as records alone, (x, y) or (x, y, weights)."""
    if isinstance(data, tuple) and len(data) == 3:
        return data
    if isinstance(data, (tuple, list)) and len(data) > 3 and (isinstance(data, tuple) or any(x is None for x in data)):
        raise UserError(f"validation_data has {len(data)} parts; give (x, y) or (x, y, sample_weight)")
    return (data[0], data[1], None) if isinstance(data, (tuple, list)) and len(data) == 2 else (data, None, None)


def as_pair(x: Any, y: Any, inputs: Sequence[str]) -> Pair:
    """Return (x, y) as a user gave them; with one input ``x`` may be the pair."""
    if not isinstance(x, tuple) or y is not None or len(inputs) != 1:
        return x, y
    if len(x) != 2:
        weights = "; give sample_weight= for the weights of records" if len(x) == 3 else ""
        raise UserError(f"data are a pair (x, y), not {len(x)} things{weights}")
    return x


def pair_up(x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str]) -> dict[str, Pair]:
    """Match records and labels with the inputs of a net: return a pair by input layer.

    Args:
        x: a source as in :func:`dsinga.data.open_records`; for several inputs a list or dict of sources.
        y: labels, None if in ``x`` or missing; for several outputs a list in order.
        inputs: the names of the inputs.
        label_inputs: the input layers with the labels of each output.
    """
    if x is None and y is not None:
        raise UserError("labels y are given without records; give x, too")
    records = {} if x is None else by_name("x", x, inputs)
    outputs = label_inputs or inputs[:1]
    needs = f"y needs labels for each of {len(outputs)} outputs, in a list, not"
    labels = {} if y is None else listed_by_name(y, outputs, needs)
    pairs = {name: (source, labels.pop(name, None)) for name, source in records.items()}
    for name, label in labels.items():
        rows = np.asarray(label)
        pairs[name] = (rows.reshape(len(rows), -1).astype(np.float32), rows)
    return pairs


def by_name(what: str, sources: Any, names: Sequence[str]) -> dict[str, Any]:
    """Return the source of each input or output, from a dict, a list, or a single source."""
    if is_of(sources, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise UserError(
            f"{what} is a {type(sources).__name__}; give one of its datasets, as in x[{next(iter(sources), '')!r}]"
        )
    if isinstance(sources, dict):  # an xarray Dataset is a mapping, too
        return dict(zip(names, values_by_name(what, sources, names, "input"), strict=True))
    return listed_by_name(sources, names, f"{what} needs {len(names)} sources, one for each of {', '.join(names)}, not")


def listed_by_name(values: Any, names: Sequence[str], needs: str) -> dict[str, Any]:
    """Return values by name, from a list in order or a single value."""
    if len(names) == 1:
        return {names[0]: values}
    count = len(values) if isinstance(values, (list, tuple)) else 1
    if not isinstance(values, (list, tuple)) or count != len(names):
        raise UserError(f"{needs} {count}")
    return dict(zip(names, values, strict=True))


def read_label_paths(y: Any, outputs: int) -> Any:
    """Read labels at a path or in a zarr array; above 128 MiB they are read by blocks."""
    if outputs > 1 and isinstance(y, list):
        return [read_label_paths(labels, 1) for labels in y]
    if not (is_path(y) or is_of(y, "zarr", "Array")) or getattr(y, "dtype", np.dtype("i8")).kind not in "biuf":
        return y
    from dsinga.data import open_labels  # which arrays do not need

    column = open_labels(y)
    is_small = column.length * math.prod(column.shape) * column.dtype.itemsize <= SMALL_BYTES
    return column.load(0, column.length) if is_small else column


def split_off(data: WeighedPairs, share: float) -> tuple[WeighedPairs, WeighedPairs]:
    """Split records, labels and weights for validation: the second part has the last ``share`` of the records.

    Of n records the first floor(n·(1 - share)) stay.
    """
    if not isinstance(share, numbers.Real) or isinstance(share, bool) or not 0 < share < 1:
        is_percent = isinstance(share, numbers.Real) and 2 <= share < 100
        remedy = f"; for {share} % write {float(share) / 100:g}" if is_percent else ""
        raise UserError(f"validation_split is a share of the records between 0 and 1, not {share!r}{remedy}")
    sources = [_rows(records) for records, _ in data.pairs.values()]
    length = next((len(rows) if isinstance(rows, RecordSource) else rows.shape[0] for rows in sources), 0)
    first = math.floor(length * (1 - float(share)))
    if not 0 < first < length:
        raise UserError(f"validation_split={share} of {length} records leaves none to train or to validate with")
    training, validation = (
        WeighedPairs(
            {name: (_part(records, rows), _part(labels, rows)) for name, (records, labels) in data.pairs.items()},
            _part(data.weights, rows),
        )
        for rows in (slice(first), slice(first, None))
    )
    return training, validation


def _rows(data: Any) -> Any:
    """Make records sliceable: lists become arrays."""
    data = np.asarray(data) if isinstance(data, (list, tuple)) else data
    is_source = isinstance(data, RecordSource) and not isinstance(data, DrawnRecords)
    kinds = data.job_settings().values() if is_source else ()
    can_be_cut = all(by.can_be_cut for by in kinds) if is_source else hasattr(data, "__getitem__")
    if not getattr(data, "shape", ()) or not can_be_cut:
        remedy = "give validation_data=(x, y)"
        if isinstance(data, RecordSource) and hasattr(data, "split"):  # windows
            remedy = "write train, test = windows.split(time=...), and give validation_data=test"
        raise UserError(f"validation_split takes arrays and tables, not {type(data).__name__}; {remedy}")
    return data


def _part(data: Any, rows: slice) -> Any:
    if data is None:
        return None
    data = _rows(data)
    if isinstance(data, RecordSource):
        return PartOfRecords(data, *rows.indices(len(data))[:2])
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    from dsinga.data.sources.dask_arrays import in_chunks  # which few processes need

    return in_chunks(data)[rows]


class PartOfRecords(RecordSource):
    """A part of a source of records, in the order of training: ``first`` to ``stop``."""

    def __init__(self, source: RecordSource, first: int, stop: int):
        parts = [_column_part(column, first, stop) for column in source.columns]
        super().__init__(source.location, *parts, classes=source.classes, vocabulary=source.vocabulary)
        self._job_settings = source.job_settings()

    def job_settings(self) -> dict[str, Any]:
        """Return the settings of the whole source."""
        return self._job_settings


class _RowRange(Column):
    def __init__(self, column: Column, first: int, stop: int):
        block = min(column.block, stop - first)
        super().__init__(column.name, stop - first, column.shape, column.dtype, block)
        self._column, self._first = column, first
        self.order, self.remedy, self.missing_values = column.order, column.remedy, column.missing_values
        if column.ends is not None:
            self.ends = np.append(column.ends[(column.ends > first) & (column.ends < stop)], stop) - first

    @property
    def from_files(self) -> bool:  # type: ignore[override]  # one attribute of the class elsewhere
        return self._column.from_files

    def connect(self, client: Callable[[], Any]) -> None:
        self._column.connect(client)

    def load(self, start: int, stop: int) -> np.ndarray:
        return self._column.load(self._first + start, self._first + stop)


def _column_part(column: Column, first: int, stop: int) -> Column:
    if not isinstance(column, ArrayColumn):
        return _RowRange(column, first, stop)
    part = ArrayColumn(column.array[first:stop], column.name, column.labels)
    part.order = column.order
    return part
