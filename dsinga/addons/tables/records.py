"""Records and labels of a data frame, for training, evaluation and prediction."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from html import escape
from typing import Any

import numpy as np

from dsinga.addons.tables.columns import RecordParts, TableColumns
from dsinga.addons.tables.definition import TableDefinition
from dsinga.addons.tables.describing import facts_of
from dsinga.addons.tables.frames import Frame
from dsinga.addons.tables.learning import DateParts, learn
from dsinga.addons.tables.open_frame import open_frame
from dsinga.addons.tables.values import as_numbers, codes_of, is_missing
from dsinga.base.arguments import checked, repeated
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import nearest_or_listed, register
from dsinga.data.array_kinds import check_columns, is_dask_collection, is_dask_frame, is_path
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.column import Column
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import ArrayColumn, Kind, Options, check_block
from dsinga.data.sources.dask_arrays import compute
from dsinga.data.sources.open_records import open_labels_of
from dsinga.data.stores.store_format import SMALL_BYTES, block_rows

Encode = Callable[..., np.ndarray]  # returns the rows of an Arrow table; of its first row the number is given


class TableRecords(RecordSource):
    """The records (width,) float32 of a data frame, and its labels; made by :func:`dsinga.table`.

    Attributes:
        frame: the data frame, in parts.
        definition: what its columns are, as a job keeps it.

    Args:
        data: a data frame, its path, or an opened :class:`.frames.Frame`.
        has_labels: whether labels are read, if the frame has their column.
    """

    kind = "table"

    def __init__(self, data: Any, definition: TableDefinition, y: Any = None, *, has_labels: bool = True):
        self.frame, self.definition, self._y = open_frame(data), definition, y
        self._encoder = TableColumns(definition)
        if not len(self.frame):
            raise UserError(f"{self.frame.location} has no records")
        needed = definition.names
        check_columns(needed, self.frame.names, self.frame.location, ", which the records of training have")
        records = _column(self.frame, needed, self._encoder.encode, (self._encoder.width,), "features")
        labels, classes = None, definition.classes
        if y is not None:
            labels, names = open_labels_of(y, "y", len(self.frame), Options(classes=classes or None))
            classes = [*(names or ())]
            self.definition = definition.replace(classes=classes)
        elif has_labels and definition.label in self.frame.names:
            labels = _label_column(self.frame, definition)
        super().__init__(self.frame.location, records, labels, classes=classes)

    def __repr__(self) -> str:
        numbers, flags, categories, _ = self.parts
        counts = f"{len(numbers)} numbers, {len(flags)} flags, {len(categories)} categories"
        labels = f"labels {self.definition.label or 'y'!r}" if self.has_labels else "no labels"
        return f"<TableRecords {redact(self.location)}: {len(self)} records {self.shape}: {counts}, {labels}>"

    def _repr_html_(self) -> str:
        rows = [f"<tr><th>{escape(name)}</th><td>{escape(str(fact))}</td></tr>" for name, fact in self.facts().items()]
        return f"<table>{''.join(rows)}</table>"

    def facts(self) -> dict[str, Any]:
        """Describe rows and columns, as ``dsinga data info`` prints them."""
        return facts_of(self.frame, self.definition, self.parts)

    @property
    def parts(self) -> RecordParts:
        """The names of a record's numbers, by part, from which a net is made."""
        return self._encoder.parts

    def bins(self, count: int = 48) -> list[list[float]]:
        """Return the edges of bins of each number, for piecewise-linear embeddings; see :meth:`.TableColumns.bins`."""
        return self._encoder.bins(count)

    def label_range(self) -> tuple[int, int] | None:
        """Return the smallest and the largest integer label; many labels are read where their parts are."""
        if not isinstance(self._labels, PartsColumn) or self.label_dtype != np.int64:
            return super().label_range()
        labels = self._labels
        encode = labels.encode
        low, high = labels.frame.reduce(labels.names, lambda part, first: _bounds([encode(part, first)]), _bounds)
        return int(low), int(high)

    def job_settings(self) -> dict[str, Any]:
        """Return the definition, to read other frames in the same way."""
        return {"table": self.definition}

    def named_fields(self) -> dict[str, Any]:
        """Return the path and the definition, if both describe the records fully."""
        return {"path": self.frame.path, **self.job_settings()} if self.frame.path and self._y is None else {}

    def in_training_order(self, settings: Mapping[str, Any]) -> RecordSource:
        """Return the frame's records by the definition of the training data."""
        training = settings.get("table")
        if training is None or training == self.definition:
            return self
        return TableRecords(self.frame, training, self._y, has_labels=self.has_labels)


@partial(checked, instead=dict.fromkeys(("target", "label_column"), 'name the column of labels: label="NAME"'))
def table(
    data: Any,
    y: Any = None,
    *,
    label: str | None = None,
    columns: Sequence[str] | TableDefinition | None = None,
    categories: Sequence[str] = (),
    dates: DateParts = (),
    scaling: str = "quantile",
    unknown: str = "missing",
) -> TableRecords:
    """Turn a data frame into records to train from, (width,) float32; learn what its columns are.

    Numbers are scaled, with a flag for missing values. Texts and categories become codes, by frequency; code 0 is
    missing or unknown, such as a category that occurs once. Dates become their parts that differ. Columns without
    anything to learn are left out and logged. A net trained on the records reads other frames by column name.
    ``.parts`` names numbers, flags and categories; ``.bins()`` has the kinks for a piecewise-linear embedding of each
    number.

    A category gets its own code if it occurs in at least 1 of 400 rows, or in 100 rows; rarer, missing and unseen ones
    share code 0. Dates are read by one clock: instants in the time zone of training, dates without a zone unchanged.
    Both in one column, and files of several zones, are refused. Infinity, lists and mixed values are refused. A column
    without gaps in training has no flag; later gaps become the median.

    A folder of parquet is learnt in one pass on the workers. Row groups of 30 MB in memory suit; larger ones are read
    in cuts, much larger ones are refused. A file that changes during a run is refused: copies on several machines need
    equal modification times (cp -p).

    Args:
        data: a data frame of pandas, Dask, Polars or Arrow, or the path of a folder or file of parquet.
        y: labels (n,) or (n, k) outside the frame.
        label: the column of labels.
        columns: the names of the columns to learn from, by default all but ``label``; or the ``definition`` of other
            records, to read this frame the same way.
        categories: columns of numbers that are categories, such as codes of places.
        dates: the parts of dates, such as ["month", "hour"], or {"departure": ["hour"]} by column. Defaults to all that
            differ of "day" (days since 1970), "year", "month", "monthday", "yearday", "weekday" (0 is Monday), "hour",
            "minute" and "second".
        scaling: the scaling of numbers: "quantile", "robust" or "standard"; see :class:`.TableDefinition`.
        unknown: how to treat a category that the training data lack: "missing", or "error".

    Raises:
        UserError: a column is missing, or has unsupported values or infinity; or all labels are the same.

    Examples:
        >>> import pandas as pd
        >>> import dsinga
        >>> frame = pd.DataFrame({"age": [20, 30, 40], "city": ["A", "B", "A"], "paid": [0, 1, 1]})
        >>> records = dsinga.table(frame, label="paid")
        >>> len(records)
        3
    """
    frame = open_frame(data)
    label = None if label is None else str(label)
    categories = _names("categories", categories)
    dates = _checked_dates(dates)
    check_columns([] if label is None else [label], frame.names, "the table")
    if isinstance(columns, TableDefinition):
        options = {"label": label, "categories": categories, "dates": dates, "scaling": scaling, "unknown": unknown}
        for name, value in options.items():
            if value and value not in (getattr(TableDefinition(), name, None), getattr(columns, name, None)):
                raise UserError(f"columns is a definition, which says how the frame is read; leave {name} out")
        return TableRecords(frame, columns, y)
    if isinstance(y, str) and y in frame.names:
        raise UserError(f"y is {y!r}, the name of a column; give label={y!r}")
    if label is not None and y is not None:
        raise UserError("labels are given by y and by label; leave one of the two out")
    names = [name for name in frame.names if name != label] if columns is None else _names("columns", columns)
    if label in names:
        raise UserError(f"columns has {label!r}, the labels, from which nothing is to be learnt; leave it out")
    for argument, chosen in (("categories", categories), ("dates", dates if isinstance(dates, dict) else ())):
        for name in chosen:
            if name in frame.names and name not in (*names, label):
                raise UserError(f"{argument} names column {name!r}, which columns lacks; add it, or leave it out")
    definition = learn(frame, names, label, categories=categories, dates=dates, scaling=scaling, unknown=unknown)
    if y is not None:
        definition = definition.replace(classes=_classes_of(y))
    records = TableRecords(frame, definition, y)
    labels = None if y is None else getattr(records.columns[1], "array", None)  # those in memory
    if labels is not None and labels.ndim == 1 and (labels == labels[0]).all():
        label = repr(records.classes[int(labels[0])]) if records.classes else labels[0]
        raise UserError(f"y has the label {label} in all {len(labels)} records, so there is nothing to learn")
    return records


def _names(argument: str, names: Any) -> list[str]:
    if isinstance(names, str) or not isinstance(names, Iterable):
        raise UserError(f"{argument} is {names!r}; give a list of names, such as [{names!r}]")
    texts = [str(name) for name in names]
    if (twice := repeated(texts)) is not None:
        raise UserError(f"{argument} has {twice!r} twice; leave one out")
    return texts


def _checked_dates(dates: Any) -> DateParts:
    if isinstance(dates, Mapping):
        return {str(name): _names(f"dates[{name!r}]", parts) for name, parts in dates.items()}
    return _names("dates", dates)


@register("definition", "TableDefinition")
def open_table(source: Any, definition: TableDefinition, has_labels: bool) -> TableRecords:
    """Open a data frame, or the one at a path, as records, alone or with labels."""
    frame, y = source if isinstance(source, tuple) and len(source) == 2 else (source, None)
    return TableRecords(frame, definition, y, has_labels=has_labels)


@register("records", "dsinga.TableRecords")
def records_without_labels(value: Any) -> Kind | None:
    """Return the kind of records that adds labels given to ``fit`` to a table; None if it has some."""
    return None if value.has_labels else Kind("a table", _with_labels)


def _with_labels(records: TableRecords, y: Any, _options: Options) -> TableRecords:
    classes = [] if y is None else records.definition.classes or _classes_of(y)
    return TableRecords(records.frame, records.definition.replace(classes=classes), y, has_labels=False)


def _classes_of(y: Any) -> list[str]:
    """Return the sorted classes of labels that are texts; [] for other labels, and categories."""
    dtype, is_lazy = getattr(y, "dtype", None), is_dask_collection(y)
    if is_path(y) or str(dtype) == "category" or (is_lazy and getattr(dtype, "kind", "i") not in "OSUT"):
        return []
    if is_lazy:
        (y,) = compute(y.unique() if is_dask_frame(y) else y)
    labels = np.asarray(y)
    if labels.dtype.kind not in "OSUT":
        return []
    texts = labels.astype(str).ravel() if labels.dtype.kind == "S" else labels.ravel()
    missing = ("None", "nan", "NaT", "<NA>")  # which are refused when the labels are opened
    return sorted({str(text) for text in texts.tolist() if isinstance(text, str) or str(text) not in missing})


def _label_column(frame: Frame, definition: TableDefinition) -> Column:
    name, encode = definition.label, partial(_encode_labels, definition)
    if frame.path is None and len(frame) * 8 <= SMALL_BYTES:
        labels = frame.reduce([name], encode, lambda parts: np.concatenate(list(parts)))
        return ArrayColumn(labels, name, labels=True)
    return _column(frame, [name], encode, (), name, labels=True)


def _bounds(parts: Iterable[np.ndarray]) -> np.ndarray:
    labels = np.concatenate(list(parts))
    return np.array([labels.min(), labels.max()] if len(labels) else [], np.int64)


def _encode_labels(definition: TableDefinition, table: Any, first: int, dtype: Any = None) -> np.ndarray:
    """Encode the labels of an Arrow table: codes of classes, whole numbers as int64, others as float32."""
    import pyarrow

    name = definition.label
    column = table.column(name)
    if (missing := is_missing(column)).any():
        raise UserError(
            f"the table has no label in record {first + int(np.argmax(missing))} of column {name!r}; leave records "
            "without a label out"
        )
    if definition.classes:
        codes, new = codes_of(column, name, definition.classes)
        if new is not None:
            known = nearest_or_listed(new[1], definition.classes, "its classes are")
            raise UserError(f"column {name!r} has the label {new[1]!r} in record {first + new[0]}{known}")
        return codes.astype(np.int64) - 1
    if pyarrow.types.is_integer(column.type) or pyarrow.types.is_boolean(column.type):
        try:
            labels = column.cast(pyarrow.int64()).to_numpy(zero_copy_only=False)
        except pyarrow.ArrowInvalid as error:
            raise UserError(f"column {name!r} has a label that no int64 holds ({error}); make texts of them") from error
    else:
        with np.errstate(over="ignore"):  # the reader of labels refuses infinity
            labels = as_numbers(column, name).astype(np.float32)
    if dtype == np.int64 and (is_cut := ~np.isfinite(labels) | (labels != np.trunc(labels))).any():
        row = int(np.argmax(is_cut))
        raise UserError(
            f"column {name!r} has the label {labels[row]:g} in record {first + row}, but whole numbers in its first "
            "part; give all parts one dtype"
        )
    return np.asarray(labels, dtype)


def _column(
    frame: Frame, names: Sequence[str], encode: Encode, shape: tuple[int, ...], name: str, labels: bool = False
) -> Column:
    """Create records or labels from columns of a frame: at once if in memory, else when read."""
    if frame.in_memory:
        return ArrayColumn(encode(frame.read(0, names), 0), name, labels)
    sample = encode(frame.read(0, names).slice(0, 1), 0) if labels else np.empty((0, *shape), np.float32)
    encode = partial(encode, dtype=sample.dtype) if labels else encode
    return PartsColumn(frame, names, encode, sample, name)


class PartsColumn(Column):
    """Records or labels of a frame that is read in parts, encoded when they are read.

    ``encode`` makes rows from an Arrow table; ``sample`` has some rows, for their shape and dtype.
    """

    def __init__(self, frame: Frame, names: Sequence[str], encode: Encode, sample: np.ndarray, name: str):
        self.frame, self.names, self.encode = getattr(frame, "only", lambda names: frame)(names), names, encode
        length, row_bytes = len(frame), sample[:1].nbytes or int(np.prod(sample.shape[1:])) * sample.itemsize
        block = block_rows(length, row_bytes, max(frame.lengths))
        super().__init__(name, length, sample.shape[1:], sample.dtype, block)
        check_block(self, "write it in smaller parts, such as df.repartition(partition_size='64MB')")
        self._ends = np.cumsum(frame.lengths)
        is_small = length * row_bytes <= SMALL_BYTES
        if block == max(frame.lengths) and not is_small:
            self.ends = self._ends
        # A part that blocks share is read once; of many rows, once for blocks that are read one after another.
        self._parts = ChunkCache(SMALL_BYTES if is_small else SMALL_BYTES // 4)

    @property
    def from_files(self) -> bool:  # type: ignore[override]
        """Whether rows are read from files, which every reading process must reach."""
        return self.frame.path is not None

    def connect(self, client: Callable[[], Any]) -> None:
        """Use the Dask client of ``client`` to fetch parts kept by a cluster; called only if needed."""
        self.frame.connect(client)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Read the rows ``start`` to ``stop`` from their parts."""
        first, last = np.searchsorted(self._ends, [start, stop - 1], side="right").tolist()
        if self.ends is not None:
            rows = [self._encode(part) for part in range(first, last + 1)]
        else:
            rows = [self._parts.get((part,), partial(self._encode, part)) for part in range(first, last + 1)]
        offset = int(self._ends[first]) - len(rows[0])
        whole = rows[0] if len(rows) == 1 else np.concatenate(rows)
        return whole[start - offset : stop - offset]

    def _encode(self, part: int) -> np.ndarray:
        before = int(self._ends[part - 1]) if part else 0
        table = self.frame.read(part, self.names)
        if table.num_rows != self.frame.lengths[part]:
            raise UserError(
                f"{self.frame.location}: part {part} has {table.num_rows} rows, but had {self.frame.lengths[part]} "
                "when it was opened; open it again"
            )
        return self.encode(table, before)
