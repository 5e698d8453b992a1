"""Types of the arguments of ``fit`` and ``predict``, and conversion of batches and texts to arrays."""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, TypedDict

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError
from dsinga.data import RecordNames
from dsinga.data.array_kinds import ArrayOrder, in_order, order_of


class JobFields(TypedDict, total=False):
    """Further keyword arguments of ``fit`` and ``job``, typed for type checkers: fields of :class:`dsinga.job.Job`."""

    disp_freq: int
    disp_after: int
    test_freq: int
    test_steps: int
    test_after: int
    validate_freq: int
    validate_steps: int
    validate_after: int
    checkpoint_after: int
    checkpoint_keep: int
    checkpoint_path: list[str | os.PathLike[str]]
    warmup_steps: int
    skip_bad_batches: bool
    reset_param_version: bool
    num_openblas_threads: int
    debug: bool
    step: int
    id: int
    train_one_batch: Any
    updater: Any
    extension: Any
    reinforcement: Any
    neuralnet: Any


class FitFields(JobFields, total=False):
    """Further keyword arguments of ``fit`` alone, typed for type checkers."""

    name: str
    cluster: Any


class PredictOptions(TypedDict, total=False):
    """The options of ``predict`` for windows of a Dataset, typed for type checkers."""

    leads: int | None


class EvaluateOptions(TypedDict, total=False):
    """The options of ``evaluate`` for windows of a Dataset, typed for type checkers."""

    by: Any
    against: Any


def listed(callbacks: Any) -> list[Any]:
    """Return the argument ``callbacks`` as a list; it may be a list, one callback or None."""
    if callbacks is None:
        return []
    return [callbacks] if isinstance(callbacks, str) or not isinstance(callbacks, Iterable) else list(callbacks)


def check_whole_numbers(**arguments: Any) -> None:
    """Raise UserError for an argument that is neither None nor a whole number above 0."""
    for name, number in arguments.items():
        if number is not None:
            check_whole(name, number, 1)


def batch_in_order(
    x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str], names: Mapping[str, RecordNames]
) -> tuple[Any, Any, Mapping[str, RecordNames]]:
    """Return a batch as numpy arrays with columns and axes in the order of the first batch, and these names."""
    if not names:
        orders, label_orders = _orders_of(x, inputs), _orders_of(y, label_inputs)
        names = {name: RecordNames((), orders.get(name, ()), label_orders.get(name, ())) for name in inputs}
        names = {name: of_input for name, of_input in names.items() if any(of_input)}
    x = _as_arrays(x, inputs, {name: of_input.order for name, of_input in names.items()})
    return x, _as_arrays(y, label_inputs, {name: of_input.label_order for name, of_input in names.items()}), names


def _orders_of(value: Any, names: Sequence[str]) -> dict[str, ArrayOrder]:
    """Return the order of dimensions (xarray) or columns (pandas) of each input's data."""
    if not isinstance(value, dict):
        several = len(names) > 1 and isinstance(value, (list, tuple))
        value = dict(zip(names, value if several else [value], strict=False))
    return {name: order_of(item) for name, item in value.items()}


def _as_arrays(value: Any, names: Sequence[str], orders: Mapping[str, ArrayOrder]) -> Any:
    """Return each input's data as numpy arrays with axes in these orders; None and sequences stay."""
    if isinstance(value, dict):
        return {name: _as_arrays(item, [name], orders) for name, item in value.items()}
    if len(names) > 1 and isinstance(value, (list, tuple)):
        more = [*names, *[""] * (len(value) - len(names))]
        return [_as_arrays(item, [name], orders) for item, name in zip(value, more, strict=False)]
    value = in_order(value, orders.get(names[0], ()))
    return value if value is None or sequences_of(value) is not None else np.asarray(value)


def as_codes(x: Any, name: str, encoders: Mapping[str, Any]) -> Any:
    """Return texts, or code sequences of several lengths, as one padded array of codes."""
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
    """Return the texts of a list, array or pandas column; None for other data."""
    if isinstance(source, (list, tuple)):
        first = source[0] if len(source) else None
        first = first[0] if isinstance(first, (list, tuple, np.ndarray)) and len(first) == 1 else first
        if not isinstance(first, (str, bytes)):
            return None
    elif getattr(getattr(source, "dtype", None), "kind", "") not in tuple("OSUT") or hasattr(source, "dask"):
        return None
    rows = np.asarray(source).tolist()
    texts = [row[0] if isinstance(row, list) and len(row) == 1 else row for row in rows]
    texts = [text.decode() if isinstance(text, bytes) else text for text in texts]
    return texts if texts and all(isinstance(text, str) for text in texts) else None


def record_without_text(source: Any) -> int | None:
    """Return the index of the first missing text (None or NaN, for instance), or None."""
    if not isinstance(source, (list, tuple)) and getattr(getattr(source, "dtype", None), "kind", "") != "O":
        return None
    are_texts = [isinstance(record, (str, bytes)) for record in source]
    return are_texts.index(False) if any(are_texts) and not all(are_texts) else None


def sequences_of(source: Any) -> np.ndarray | None:
    """Pad code sequences of several lengths with -1 to an array (n, longest) int64; None for other data."""
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
    """Pad code sequences with ``after`` to an array (n, ``steps``) int64, by default as long as the longest."""
    steps = max(1, *map(len, rows)) if steps is None and rows else steps or 1
    array = np.full((len(rows), steps), after, np.int64)
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = row[:steps]
    return array


def as_param(name: str, array: Any) -> np.ndarray:
    """Check a param that the user sets, and return a float32 copy."""
    try:
        return np.array(array, np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise UserError(f"the param {name!r} is no array of numbers: {error}") from None
