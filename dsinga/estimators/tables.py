"""Data frames in estimators: ``fit`` learns their columns, and all other calls encode them by name."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import (
    distinct_names,
    frame_columns,
    is_a,
    is_arrow_table,
    is_dask_collection,
    is_dask_frame,
    is_frame,
)
from dsinga.estimators.lazy import compute, computing_on
from dsinga.job import Job
from dsinga.net.layer_classes import layer_class

if TYPE_CHECKING:  # an add-on, which arrays and frames of numbers do not need
    from dsinga.addons.tables.columns import TableColumns
    from dsinga.addons.tables.definition import TableDefinition
    from dsinga.addons.tables.frames import Frame


def needs_columns(X: Any, client: Any) -> bool:
    """Whether a data frame must be encoded: it has more than numbers and booleans without gaps."""
    if is_frame(X):
        from pandas.api.types import is_numeric_dtype  # type: ignore[import-untyped]

        if not all(map(is_numeric_dtype, X.dtypes)):
            return True
        gaps = X.isna().any()  # for each column
        return bool(np.any(compute(gaps, client)))
    return any(column.dtype.kind not in "biuf" or np.isnan(column).any() for _, column in _arrays(X))


def _arrays(X: Any) -> Iterator[tuple[str, np.ndarray]]:
    """Yield the columns of Polars or Arrow one by one, because Polars would turn dates into numbers."""
    for name in distinct_names(frame_columns(X), "X"):
        try:
            array = np.asarray(X[name])
        except Exception:  # each library has its own errors
            array = np.empty((0, 0))
        yield name, array if array.ndim == 1 else np.empty(0, object)


def learn_columns(X: Any, names: Sequence[str], client: Any, number_codes: bool) -> tuple[TableDefinition, Frame]:
    """Learn how to encode the columns of a data frame or an array (n, d); return them and the frame.

    With ``number_codes`` whole numbers are categories, too, unless all columns are numbers or booleans without gaps.
    Dask collections are summarised on the cluster of ``client``. Raises UserError for unsupported values, and if
    pyarrow or the add-on of tables is missing.
    """
    lookup("definition", "TableDefinition")  # raises UserError with the add-on's name if that is missing
    from dsinga.addons.tables.frames import import_arrow
    from dsinga.addons.tables.learning import learn
    from dsinga.addons.tables.open_frame import open_frame

    import_arrow()
    if not is_dask_collection(X):
        X = _to_arrow(X, names)
    elif not is_dask_frame(X):
        from dask.dataframe import from_dask_array

        X = from_dask_array(X.rechunk({1: -1}), columns=list(names))
    running = computing_on(client) if is_dask_collection(X) else contextlib.nullcontext()
    with running as on, contextlib.nullcontext() if on is None else on.as_current():
        frame = open_frame(X)
        definition = learn(frame, frame.names)
    if not number_codes or _has_numbers_alone(definition):
        definition = _without_number_codes(definition)
    return definition, frame


def encode(definition: TableDefinition, X: Any, names: Sequence[str]) -> Any:
    """Encode a data frame, or an array with columns called ``names``, as records (n, width) float32.

    Dask collections are encoded lazily. Raises UserError for a missing column, or one with values of another kind.
    """
    columns = columns_of_table(definition)
    if not is_dask_collection(X):
        return columns.encode(_to_arrow(X, names))
    from dask import delayed

    shared = delayed(columns, pure=False, traverse=False)
    if is_dask_frame(X):
        used = X[[name for name in X.columns if str(name) in definition.names]]
        return used.map_partitions(_encode_part, shared, meta=_encode_part(used._meta, columns))
    meta = np.empty((0, 0), np.float32)
    chunks = (X.chunks[0], (columns.width,))
    return X.rechunk({1: -1}).map_blocks(_encode_block, shared, names, chunks=chunks, dtype=np.float32, meta=meta)


def _encode_part(part: Any, columns: TableColumns) -> Any:
    """Task: encode a partition; return the records as a data frame with its index."""
    import pandas  # type: ignore[import-untyped]

    return pandas.DataFrame(columns.encode(_to_arrow(part, ())), index=part.index)


def _encode_block(block: np.ndarray, columns: TableColumns, names: Sequence[str]) -> np.ndarray:
    return columns.encode(_to_arrow(block, names))


def _to_arrow(X: Any, names: Sequence[str]) -> Any:
    """Convert a data frame in memory, or an array with columns ``names``, to an Arrow table."""
    import pyarrow

    from dsinga.addons.tables.frames import to_arrow

    if not isinstance(X, np.ndarray):
        return to_arrow(X)
    return pyarrow.table({name: X[:, number] for number, name in enumerate(names)})


def check_numbers(data: Any, name: str) -> None:
    """Raise UserError for dates, durations, periods or texts in a data frame or a series."""
    is_series = len(getattr(data, "shape", ())) == 1
    frame = data.to_frame() if is_series and hasattr(data, "to_frame") else data
    if is_frame(frame):
        dtypes = frame.dtypes.items()
    elif is_arrow_table(frame):
        dtypes = ((name, "str" if array.dtype.kind in "OSUT" else array.dtype) for name, array in _arrays(frame))
    else:
        return
    for column, dtype in dtypes:
        if getattr(dtype, "kind", "") in ("m", "M") or str(dtype).startswith("period"):
            raise UserError(
                f"column {str(column)!r} of {name} has dtype {dtype}, not numbers; make numbers of it, such as the "
                "hour or the day of the year, or leave the column out"
            )
        if str(dtype).startswith("str"):
            what = name if is_series else f"column {str(column)!r} of {name}"
            raise UserError(
                f"{what} has texts, not numbers; give numbers (those with a decimal comma are read by "
                "pandas.read_csv(path, decimal=','))"
            )


def check_no_gaps(X: Any) -> None:
    """Raise UserError for missing values in a data frame in memory, if ``fit`` saw none."""
    if is_a(X, "pandas", "DataFrame"):
        gaps = X.columns[X.isna().any()]
    else:
        gaps = [name for name, array in _arrays(X) if np.isnan(array).any()] if is_arrow_table(X) else ()
    if len(gaps):
        raise UserError(
            f"column {str(gaps[0])!r} of X has missing values, but no column had any in fit; fill them, or fit on "
            "records of which some have gaps"
        )


def columns_of_table(definition: TableDefinition) -> TableColumns:
    """Return the columns that encode a table's rows as records."""
    from dsinga.addons.tables.columns import TableColumns

    return TableColumns(definition)


def _has_numbers_alone(definition: TableDefinition) -> bool:
    """Whether all columns are numbers or booleans without gaps; codes worsened their predictions."""
    numbers = {column.name for column in definition.column if column.kind in ("number", "boolean")}
    return all(column.name in numbers and not column.missing for column in definition.column)


def _without_number_codes(definition: TableDefinition) -> TableDefinition:
    numbers = {column.name for column in definition.column if column.kind == "number"}
    columns = [column for column in definition.column if column.kind != "category" or column.name not in numbers]
    return definition.replace(column=columns)


def with_store(job: Job, **fields: Any) -> Job:
    """Change fields of the store of a job's input layer, such as ``table`` for data frames."""
    layers = [
        layer.replace(store_conf=layer.store_conf.replace(**fields))
        if layer.store_conf is not None and layer_class(layer).is_input
        else layer
        for layer in job.neuralnet.layer
    ]
    return job.replace(neuralnet=job.neuralnet.replace(layer=layers))


def definition_of(job: Job) -> TableDefinition | None:
    """Return the table definition of a job's input layer, or None."""
    stores = (layer.store_conf for layer in job.neuralnet.layer if layer_class(layer).is_input)
    definitions = (store.definition.get("table") for store in stores if store is not None)
    return next(filter(None, definitions), None)
