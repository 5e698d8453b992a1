"""Assigns the records and labels that a user passes to the inputs of a model, and reads batches and texts."""

from __future__ import annotations

import math
import numbers
import os
from collections.abc import Iterable, Mapping, Sequence, Sized
from typing import Any, NamedTuple, TypedDict

import numpy as np

from dsinga.base.arguments import check_whole, values_by_name
from dsinga.base.errors import UserError
from dsinga.data import RecordNames, RecordSource
from dsinga.data.array_kinds import ArrayOrder, in_order, is_of, is_path, order_of
from dsinga.data.sources.batch_sequences import DrawnRecords
from dsinga.data.sources.data_loaders import is_iterable, read_batches
from dsinga.data.stores.store_format import SMALL_BYTES
from dsinga.reading.given import Pair

Data = tuple[Any, Any, Any]  # records, labels and weights


class WeighedPairs(NamedTuple):
    """The records and labels of each input in one phase, and the sample weights, None if there are none."""

    pairs: dict[str, Pair]
    weights: Any


class JobFields(TypedDict, total=False):
    """Further fields of a job that ``fit`` and ``job`` take, for type checkers; see :class:`dsinga.job.Job`."""

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
    """The arguments of ``fit`` that are fields of a job, for type checkers."""

    name: str
    cluster: Any


class PredictOptions(TypedDict, total=False):
    """The options of ``predict`` that a kind of records has, for type checkers: those of windows of a Dataset."""

    leads: int | None


class EvaluateOptions(TypedDict, total=False):
    """The options of ``evaluate`` that a kind of records has, for type checkers: those of windows of a Dataset."""

    by: Any
    against: Any


def listed(callbacks: Any) -> list[Any]:
    """Return callbacks as a list, where the user may pass a list, one callback or None."""
    if callbacks is None:
        return []
    return [callbacks] if isinstance(callbacks, str) or not isinstance(callbacks, Iterable) else list(callbacks)


def check_whole_numbers(**arguments: Any) -> None:
    """Raise UserError for an argument that is not None and not a whole number above 0."""
    for name, number in arguments.items():
        if number is not None:
            check_whole(name, number, 1)


ALL_IN_AN_EPOCH = "steps_per_epoch is for batches of a generator: an epoch reads all records; use train_steps"
ALL_VALIDATE = "validation_steps is for batches of a generator: validation reads all records; use validate_steps"


def read_iterable(
    data: Data, batches: int | None = None, size: int | None = None, seed: int | None = 0, otherwise: str = ""
) -> tuple[Data, int | None]:
    """Read all batches of data that can only be iterated; return (x, y, weights) and the rows of the first batch.

    Others are returned as they are, and None for the rows. Raises UserError for labels beside an iterable, whose
    batches have them, and with the sentence ``otherwise`` where a number of ``batches`` is given for other data.
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
    """Return (x, y, weights) of data that are a pair (x, y), a triple (x, y, weights), or records alone."""
    if isinstance(data, tuple) and len(data) == 3:
        return data
    return (data[0], data[1], None) if isinstance(data, (tuple, list)) and len(data) == 2 else (data, None, None)


def as_pair(x: Any, y: Any, inputs: Sequence[str]) -> Pair:
    """Return (x, y); with one input ``x`` alone may be the pair. Raises UserError for another number of things."""
    if not isinstance(x, tuple) or y is not None or len(inputs) != 1:
        return x, y
    if len(x) != 2:
        weights = "; give sample_weight= for the weights of records" if len(x) == 3 else ""
        raise UserError(f"data are a pair (x, y), not {len(x)} things{weights}")
    return x


def pair_up(x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str]) -> dict[str, Pair]:
    """Return the records of each input layer with their labels, None for inputs without separate labels.

    Args:
        x: a source as :func:`dsinga.data.open_records` takes it; for several inputs a list, or a dict by name.
        y: labels, None where ``x`` has them or there are none; for several outputs a list in their order.
        inputs: the names of the inputs.
        label_inputs: the names of the input layers that have the labels of each output; one that is no input has the
            labels as its records, too.

    Raises:
        UserError: there are more or fewer sources than inputs, or labels than outputs.
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
    """Return the source of each of ``names`` from a dict of them, a list in their order, or a single one."""
    if is_of(sources, "datasets", "DatasetDict", "IterableDatasetDict"):
        raise UserError(
            f"{what} is a {type(sources).__name__}; give one of its datasets, as in x[{next(iter(sources), '')!r}]"
        )
    if isinstance(sources, dict):  # an xarray Dataset is a mapping, too
        return dict(zip(names, values_by_name(what, sources, names, "input"), strict=True))
    return listed_by_name(sources, names, f"{what} needs {len(names)} sources, one for each of {', '.join(names)}, not")


def listed_by_name(values: Any, names: Sequence[str], needs: str) -> dict[str, Any]:
    """Return a dict of the values of ``names``, from a list in the order of ``names`` or from a single value."""
    if len(names) == 1:
        return {names[0]: values}
    count = len(values) if isinstance(values, (list, tuple)) else 1
    if not isinstance(values, (list, tuple)) or count != len(names):
        raise UserError(f"{needs} {count}")
    return dict(zip(names, values, strict=True))


def read_label_paths(y: Any, outputs: int) -> Any:
    """Return labels given as a zarr array, or as its path, as a numpy array; above 128 MiB as a column read by blocks.

    With several outputs ``y`` may be a list of such. Labels of other kinds are returned as they are. Raises
    UserError for a path that cannot be read.
    """
    if outputs > 1 and isinstance(y, list):
        return [read_label_paths(labels, 1) for labels in y]
    if not (is_path(y) or is_of(y, "zarr", "Array")) or getattr(y, "dtype", np.dtype("i8")).kind not in "biuf":
        return y
    from dsinga.data import open_labels  # which arrays do not need

    column = open_labels(y)
    is_small = column.length * math.prod(column.shape) * column.dtype.itemsize <= SMALL_BYTES
    return column.load(0, column.length) if is_small else column


def split_off(data: WeighedPairs, share: float) -> tuple[WeighedPairs, WeighedPairs]:
    """Split records, labels and weights into a first part and a last part, which has a ``share`` of the records.

    Of n records the first floor(n·(1 - share)) stay. Raises UserError for what is no array, and where nothing is left.
    """
    if not isinstance(share, numbers.Real) or isinstance(share, bool) or not 0 < share < 1:
        raise UserError(f"validation_split is a share of the records between 0 and 1, not {share!r}")
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
    """Return records from which rows can be taken, lists as arrays. Raises UserError for anything else."""
    data = np.asarray(data) if isinstance(data, (list, tuple)) else data
    is_source = isinstance(data, RecordSource) and not isinstance(data, DrawnRecords)
    kinds = data.job_settings().values() if is_source else ()
    can_be_cut = all(by.can_be_cut for by in kinds) if is_source else hasattr(data, "__getitem__")
    if not getattr(data, "shape", ()) or not can_be_cut:
        raise UserError(
            f"validation_split takes arrays and tables, not {type(data).__name__}; give validation_data=(x, y)"
        )
    return data


def _part(data: Any, rows: slice) -> Any:
    """Return some rows of an array, or None for None."""
    if data is None:
        return None
    data = _rows(data)
    if isinstance(data, RecordSource):
        from dsinga.nn.model.given_sources import PartOfRecords  # which few processes need

        return PartOfRecords(data, *rows.indices(len(data))[:2])
    if hasattr(data, "iloc"):
        return data.iloc[rows]
    from dsinga.data.sources.dask_arrays import in_chunks  # which few processes need

    return in_chunks(data)[rows]


def batch_in_order(
    x: Any, y: Any, inputs: Sequence[str], label_inputs: Sequence[str], names: Mapping[str, RecordNames]
) -> tuple[Any, Any, Mapping[str, RecordNames]]:
    """Return the records and labels of a batch as numpy arrays in the order of ``names``, and the names.

    Where there are none, they are those of the batch. Raises UserError for records that have others.
    """
    if not names:
        orders, label_orders = _orders_of(x, inputs), _orders_of(y, label_inputs)
        names = {name: RecordNames((), orders.get(name, ()), label_orders.get(name, ())) for name in inputs}
        names = {name: of_input for name, of_input in names.items() if any(of_input)}
    x = _as_arrays(x, inputs, {name: of_input.order for name, of_input in names.items()})
    return x, _as_arrays(y, label_inputs, {name: of_input.label_order for name, of_input in names.items()}), names


def _orders_of(value: Any, names: Sequence[str]) -> dict[str, ArrayOrder]:
    """Return, for each of ``names``, the order of dimensions or columns of its value."""
    if not isinstance(value, dict):
        several = len(names) > 1 and isinstance(value, (list, tuple))
        value = dict(zip(names, value if several else [value], strict=False))
    return {name: order_of(item) for name, item in value.items()}


def _as_arrays(value: Any, names: Sequence[str], orders: Mapping[str, ArrayOrder]) -> Any:
    """Return the values of ``names`` as numpy arrays with axes in these orders; None and sequences stay unchanged."""
    if isinstance(value, dict):
        return {name: _as_arrays(item, [name], orders) for name, item in value.items()}
    if len(names) > 1 and isinstance(value, (list, tuple)):
        more = [*names, *[""] * (len(value) - len(names))]
        return [_as_arrays(item, [name], orders) for item, name in zip(value, more, strict=False)]
    value = in_order(value, orders.get(names[0], ()))
    return value if value is None or sequences_of(value) is not None else np.asarray(value)


def as_codes(x: Any, name: str, encoders: Mapping[str, Any]) -> Any:
    """Return the records of an input with texts, or sequences of codes of several lengths, as one array of codes.

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
    """Return the texts of a list, an array (n,) or (n, 1), or a column of pandas; None for data without texts."""
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
    """Return the number of the first record of texts that is missing (None or NaN, for instance), or None."""
    if not isinstance(source, (list, tuple)) and getattr(getattr(source, "dtype", None), "kind", "") != "O":
        return None
    are_texts = [isinstance(record, (str, bytes)) for record in source]
    return are_texts.index(False) if any(are_texts) and not all(are_texts) else None


def sequences_of(source: Any) -> np.ndarray | None:
    """Return sequences of codes of several lengths as an array (n, longest) int64 padded with -1; None for other data.

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
    """Return sequences of codes as an array (n, ``steps``) int64, by default of the longest, padded with ``after``."""
    steps = max(1, *map(len, rows)) if steps is None and rows else steps or 1
    array = np.full((len(rows), steps), after, np.int64)
    for target, row in zip(array, rows, strict=True):
        target[: len(row)] = row[:steps]
    return array


def as_param(name: str, array: Any) -> np.ndarray:
    """Return a copy of a param given by the user, as float32. Raises UserError for what is no array of numbers."""
    try:
        return np.array(array, np.float32, order="C")
    except (TypeError, ValueError) as error:
        raise UserError(f"the param {name!r} is no array of numbers: {error}") from None
