"""What a user gives to a model, in the forms that it takes: fields of a job, batches, codes, a share for validation."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, TypedDict

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data import RecordNames
from dsinga.data.array_kinds import ArrayOrder, in_order, order_of
from dsinga.data.sources.data_loaders import is_iterable, read_batches, size_of_batches

Data = tuple[Any, Any, Any]  # records, labels and weights


class JobFields(TypedDict, total=False):
    """The further fields of a job that ``fit`` and ``job`` take, for type checkers; see :class:`dsinga.job.Job`."""

    disp_freq: int
    disp_after: int
    test_freq: int
    test_steps: int
    test_after: int
    validate_freq: int
    validate_steps: int
    validate_after: int
    checkpoint_freq: int
    checkpoint_after: int
    checkpoint_keep: int
    checkpoint_path: list[str | os.PathLike[str]]
    warmup_steps: int
    skip_bad_batches: bool
    micro_batches: int
    precision: Any
    reset_param_version: bool
    num_openblas_threads: int
    gpu: list[int]
    debug: bool
    step: int
    id: int
    train_one_batch: Any
    updater: Any
    extension: Any
    reinforcement: Any
    neuralnet: Any


class FitFields(JobFields, total=False):
    """The fields that ``fit`` takes, besides."""

    name: str
    cluster: Any


def listed(callbacks: Any) -> list[Any]:
    """Return callbacks, of which there may be a single one or None, as a list."""
    if callbacks is None:
        return []
    return [callbacks] if isinstance(callbacks, str) or not isinstance(callbacks, Iterable) else list(callbacks)


def read_iterable(
    x: Any, y: Any = None, weights: Any = None, count: int | None = None, size: int | None = None, seed: int | None = 0
) -> tuple[Data, int | None]:
    """Return (x, y, weights) of what is given as ``x``, and the rows of its first batch.

    They are arrays where it can only be iterated; for others they are as given, and the rows None.
    Raises UserError for labels beside an iterable, whose batches have them.
    """
    if not is_iterable(x):
        return (x, y, weights), None
    if y is not None or weights is not None:
        raise UserError(f"the batches of the {type(x).__name__} are (x, y) or (x, y, weights); leave y and weights out")
    parts, rows = read_batches(x, count, size or 32, seed or 0)
    x, y, weights = parts + (None,) * (3 - len(parts))
    return (x, y, weights), rows


def read_training(data: Data, steps: int | None, batch_size: int | None, seed: int | None) -> tuple[Data, int | None]:
    """Return (x, y, weights) of training, and the rows of a batch, None where neither the call nor they say any.

    Of an iterable so many ``steps`` are read, or all batches. Raises UserError for steps of other records.
    """
    if not is_iterable(data[0]):
        if steps is not None:
            raise UserError(
                "steps_per_epoch is for batches of a generator: an epoch reads all records; use train_steps"
            )
        return data, size_of_batches(data[0]) if batch_size is None else batch_size
    data, rows = read_iterable(*data, steps, batch_size, seed)
    return data, rows if batch_size is None else batch_size


def read_validation(data: Any, steps: int | None, batch_size: int | None, seed: int | None) -> Data:
    """Return (x, y, weights) of validation; of an iterable so many ``steps``, or all batches, are read.

    Raises UserError for steps of other records.
    """
    if data is not None and is_iterable(data):
        return read_iterable(data, None, None, steps, batch_size, seed)[0]
    if steps is not None:
        raise UserError(
            "validation_steps is for batches of a generator: validation reads all records; use validate_steps"
        )
    return split_data(data)


def split_data(data: Any) -> Data:
    """Return (x, y, weights) of data: a pair (x, y), three things with the weights of records, or records alone."""
    if isinstance(data, tuple) and len(data) == 3:
        return data
    return (data[0], data[1], None) if isinstance(data, (tuple, list)) and len(data) == 2 else (data, None, None)


def as_codes(x: Any, name: str, encoders: Mapping[str, Any]) -> Any:
    """Return the records of an input with codes in place of texts, or of sequences of codes of several lengths.

    Raises UserError where the input takes no such records.
    """
    if (texts := texts_of(x)) is not None:
        if encoder := encoders.get(name):
            return encoder.encode(texts)
        raise UserError(f"the input {name!r} gets texts; begin with nn.TextVectorization")
    if encoders.get(name) and (without := record_without_text(x)) is not None:
        raise UserError(f"the input {name!r} takes texts, but record {without} is none; leave it out, or give ''")
    if (codes := sequences_of(x)) is not None and name not in encoders:
        raise UserError(f"the input {name!r} gets sequences of several lengths; write nn.Input((None,))")
    return x if codes is None else codes


def texts_of(source: Any) -> list[str] | None:
    """Return the texts of a list, an array (n,) or (n, 1), or a column of pandas; None for what has no texts."""
    if isinstance(source, (list, tuple)):
        first = source[0] if len(source) else None
        first = first[0] if isinstance(first, (list, tuple, np.ndarray)) and len(first) == 1 else first
        if not isinstance(first, (str, bytes)):
            return None
    elif getattr(getattr(source, "dtype", None), "kind", "") not in tuple("OSUT") or hasattr(source, "dask"):
        return None
    texts = [each[0] if isinstance(each, list) and len(each) == 1 else each for each in np.asarray(source).tolist()]
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    return texts if texts and all(isinstance(text, str) for text in texts) else None


def record_without_text(source: Any) -> int | None:
    """Return the number of the first record that has no text, None or NaN, say, among others; None without such."""
    if not isinstance(source, (list, tuple)) and getattr(getattr(source, "dtype", None), "kind", "") != "O":
        return None
    are_texts = [isinstance(each, (str, bytes)) for each in source]
    return are_texts.index(False) if any(are_texts) and not all(are_texts) else None


def sequences_of(source: Any) -> np.ndarray | None:
    """Return sequences of codes of several lengths as an array (n, longest) int64, -1 after the ends; None for others.

    ``source`` is a list, an array of objects, or a RaggedTensor of TensorFlow.
    """
    items = source.to_list() if type(source).__name__ == "RaggedTensor" else source
    is_array = isinstance(items, np.ndarray) and items.dtype == np.object_
    if not (isinstance(items, (list, tuple)) or is_array) or not all(isinstance(row, Sized) for row in items):
        return None
    if len({len(row) for row in items}) < 2:
        return None
    rows = [np.asarray(row) for row in items if not isinstance(row, (str, bytes))]
    are_codes = len(rows) == len(items) and all(row.ndim == 1 and row.dtype.kind in "iu" for row in rows if len(row))
    return padded(rows, -1) if are_codes else None


def padded(rows: Sequence[Any], after: int, steps: int | None = None) -> np.ndarray:
    """Return sequences of codes as an array (n, ``steps``) int64, by default of the longest, ``after`` their ends."""
    steps = max(1, *map(len, rows)) if steps is None and rows else steps or 1
    array = np.full((len(rows), steps), after, np.int64)
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = row[:steps]
    return array


def batch_in_order(
    x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str], names: Mapping[str, RecordNames]
) -> tuple[Any, Any, Mapping[str, RecordNames]]:
    """Return the records and labels of a batch as numpy arrays in the order of the names of training, and these names.

    Where there are none, they are those of the batch. Raises UserError for records that have others.
    """
    if not names:
        orders, label_orders = _orders_of(x, inputs), _orders_of(y, label_inputs)
        known = {name: RecordNames((), orders.get(name, ()), label_orders.get(name, ())) for name in inputs}
        names = {name: each for name, each in known.items() if any(each)}
    x = _as_arrays(x, inputs, {name: each.order for name, each in names.items()})
    return x, _as_arrays(y, label_inputs, {name: each.label_order for name, each in names.items()}), names


def _orders_of(value: Any, names: Sequence[str]) -> dict[str, ArrayOrder]:
    """Return the order of what is given for each of ``names``."""
    if not isinstance(value, dict):
        several = len(names) > 1 and isinstance(value, (list, tuple))
        value = dict(zip(names, value if several else [value], strict=False))
    return {name: order_of(item) for name, item in value.items()}


def _as_arrays(value: Any, names: Sequence[str], orders: Mapping[str, ArrayOrder]) -> Any:
    """Return what is given for ``names`` as numpy arrays in these orders; None and sequences as they are."""
    if isinstance(value, dict):
        return {name: _as_arrays(item, [name], orders) for name, item in value.items()}
    if len(names) > 1 and isinstance(value, (list, tuple)):
        more = [*names, *[""] * (len(value) - len(names))]
        return [_as_arrays(item, [name], orders) for item, name in zip(value, more, strict=False)]
    value = in_order(value, orders.get(names[0], ()))
    return value if value is None or sequences_of(value) is not None else np.asarray(value)


def check_whole_numbers(**arguments: Any) -> None:
    """Raise UserError for an argument that is given and no whole number above 0."""
    for name, number in arguments.items():
        if number is not None:
            check_whole(name, number, 1)


def split_off(data: Data, share: float) -> tuple[Data, Data]:
    """Return the first of some records, and the last ones, a ``share`` of them; so of labels and weights.

    Of n records the first floor(n·(1 - share)) stay. Raises UserError for what is no array, and where nothing is left.
    """
    if not isinstance(share, numbers.Real) or isinstance(share, bool) or not 0 < share < 1:
        raise UserError(f"validation_split is a share of the records between 0 and 1, not {share!r}")
    if isinstance(data[0], tuple) and len(data[0]) == 2 and data[1] is None:
        data = (*data[0], data[2])
    length = _length(data[0])
    first = math.floor(length * (1 - float(share)))
    if not 0 < first < length:
        raise UserError(f"validation_split={share} of {length} records leaves none to train or to validate with")
    training, validation = (tuple(_part(each, part) for each in data) for part in (slice(first), slice(first, None)))
    return training, validation


def _length(data: Any) -> int:
    if isinstance(data, Mapping) and not hasattr(data, "iloc"):
        return _length(next(iter(data.values())))
    if isinstance(data, (list, tuple)) and len(data) and np.ndim(data[0]):
        return _length(data[0])
    if isinstance(data, (list, tuple)) or (hasattr(data, "shape") and len(data.shape)):
        return data.shape[0] if hasattr(data, "shape") else len(data)
    raise UserError(f"validation_split takes arrays, not {type(data).__name__}; give validation_data=(x, y)")


def _part(data: Any, rows: slice) -> Any:
    """Return some records of an array, or of each of several in a list or by name."""
    if data is None:
        return None
    _length(data)
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    if isinstance(data, Mapping):
        return {name: _part(each, rows) for name, each in data.items()}
    if isinstance(data, (list, tuple)) and len(data) and np.ndim(data[0]):
        return [_part(each, rows) for each in data]
    from dsinga.data.sources.dask_arrays import in_chunks  # which few processes need

    return in_chunks(data)[rows]
