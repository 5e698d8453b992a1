"""Reads data frames in memory and of Dask in parts, as Arrow tables."""

from __future__ import annotations

import re
import sys
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Sequence
from itertools import accumulate
from typing import Any, TypeVar

from dsinga.addons.tables.values import kind_of, zone_of
from dsinga.base.errors import UserError
from dsinga.data.array_kinds import check_columns, distinct_names, is_a
from dsinga.data.sources.dask_arrays import DaskGraph, compute, naming_failures, with_fixed_partitions

Result = TypeVar("Result")
Summarise = Callable[[Any, int], Result]  # of an Arrow table, and the number of its first record
Merge = Callable[[Iterable[Result]], Result]
REMEDY = "see whether frame.compute() can"
UNNAMED_INDEX = re.compile(r"__index_level_\d+__|__null_dask_index__")
MERGED = 16  # parts, or results of parts, that a task on a cluster merges


class Frame(ABC):
    """A data frame that is read in parts, such as the partitions of Dask or the row groups of parquet.

    Threads may share it, and another process can read it from its pickle.

    Attributes:
        location: its path, or "the data frame", in messages.
        index: columns of an index that pandas or Dask has written; not among the names.
        lengths: the rows of each part.
        path: the path that a job can name, None for a frame in memory.
        in_memory: whether all rows are in the memory of this process, in one part.
        collection: the Dask data frame with the parts as partitions; None for others, and in other processes.
    """

    location = "the data frame"
    names: Sequence[str]
    index: Sequence[str] = ()
    lengths: Sequence[int]
    path: str | None = None
    in_memory = False
    collection: Any = None

    @abstractmethod
    def read(self, part: int, names: Sequence[str]) -> Any:
        """Read some columns of a part as an Arrow table."""

    def __len__(self) -> int:
        return sum(self.lengths)

    def reduce(self, names: Sequence[str], summarise: Summarise[Result], merge: Merge[Result]) -> Result:
        """Summarise each part by ``summarise(table, first)``, and merge the results in order.

        Each part is read once, on the workers of the current Dask client if any. ``first`` is the number of a part's
        first record.
        """
        parts = range(len(self.lengths))
        if self.in_memory or not _has_dask_client():
            return _read_and_summarise(self, parts, names, summarise, merge)
        from dask import delayed

        frame, run = delayed(self), delayed(_read_and_summarise)
        ranges = [parts[first : first + MERGED] for first in parts[::MERGED]]
        return _merged([run(frame, some, names, summarise, merge) for some in ranges], merge, self.location)

    def connect(self, client: Callable[[], Any]) -> None:  # noqa: B027  most frames need no client
        """Prepare to read in this process."""


class MemoryFrame(Frame):
    """A data frame in memory: pandas, Arrow, or a library that exports to Arrow, such as Polars."""

    in_memory = True

    def __init__(self, frame: Any):
        self._table = to_arrow(frame)
        self.index = index_columns(self._table.schema)
        self.names = [name for name in self._table.column_names if name not in self.index]
        self.lengths = [self._table.num_rows]

    def read(self, part: int, names: Sequence[str]) -> Any:
        """Return some columns of the frame."""
        return self._table.select(names)


class DaskFrame(Frame):
    """A Dask data frame; a partition's tasks run in the reading thread, without a scheduler."""

    location = "the Dask data frame"

    def __init__(self, frame: Any):
        self.names = column_names(frame.columns)
        self._given, self.collection = frame, with_fixed_partitions(frame)
        column = self._chosen(self.names[:1], self.collection.npartitions)  # which parquet reads without the rest
        with naming_failures(f"{self.location} cannot be computed", REMEDY):
            (lengths,) = compute(column.map_partitions(len, meta=("length", "i8")))
        self.lengths = [int(length) for length in lengths]
        self._graph = DaskGraph(self.collection, "the data frame")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name not in ("collection", "_given")}

    def read(self, part: int, names: Sequence[str]) -> Any:
        """Compute a partition, and return some of its columns."""
        with naming_failures(f"partition {part} of {self.location} cannot be computed", REMEDY):
            (frame,) = self._graph.compute([self._graph.keys[part]])
        return _columns_of(frame, names, part)

    def connect(self, client: Callable[[], Any]) -> None:
        """Use the Dask client that ``client`` returns to fetch partitions kept by a cluster."""
        self._graph.connect(client)

    def reduce(self, names: Sequence[str], summarise: Summarise[Result], merge: Merge[Result]) -> Result:
        """Summarise partitions on Dask's scheduler and merge the results; an unpickled frame reads its parts here."""
        from dask import delayed

        if self.collection is None:
            return _read_and_summarise(self, range(len(self.lengths)), names, summarise, merge)
        run = delayed(lambda frame, part, start: summarise(_columns_of(frame, names, part), start))
        partitions = self._chosen(names, len(self.lengths)).to_delayed()
        pairs = zip(partitions, accumulate(self.lengths, initial=0), strict=False)
        tasks = [run(frame, part, start) for part, (frame, start) in enumerate(pairs)]
        return _merged(tasks, merge, self.location)

    def only(self, names: Sequence[str]) -> DaskFrame:
        """Drop other columns of the frame, so that they are not read."""
        part, frame = object.__new__(type(self)), self._chosen(names, len(self.lengths))
        vars(part).update(vars(self), names=list(names), collection=frame, _graph=DaskGraph(frame, "the data frame"))
        return part

    def _chosen(self, names: Sequence[str], count: int) -> Any:
        columns = {str(name): name for name in self.collection.columns}
        chosen = [columns[name] for name in names]
        partitions = with_fixed_partitions(self._given[chosen])
        return partitions if partitions.npartitions == count else self.collection[chosen]


def _has_dask_client() -> bool:
    if "distributed" not in sys.modules:
        return False
    from dsinga.cluster.clients import current_client  # imports distributed

    return current_client() is not None


def _read_and_summarise(
    frame: Frame, parts: range, names: Sequence[str], summarise: Summarise[Result], merge: Merge[Result]
) -> Result:
    """Task: summarise consecutive parts of a frame, and merge the results."""
    lengths = (frame.lengths[part] for part in parts)
    starts = accumulate(lengths, initial=sum(frame.lengths[: parts.start]))
    return merge(summarise(frame.read(part, names), start) for part, start in zip(parts, starts, strict=False))


def _merged(tasks: list[Any], merge: Merge[Any], location: str) -> Any:
    """Merge the results of Dask's tasks in order; each task merges at most MERGED results."""
    from dask import delayed

    run = delayed(merge)
    while len(tasks) > 1:
        tasks = [run(tasks[first : first + MERGED]) for first in range(0, len(tasks), MERGED)]
    with naming_failures(f"{location} cannot be computed", REMEDY):
        return compute(run(tasks))[0]


def _columns_of(frame: Any, names: Sequence[str], part: int) -> Any:
    try:
        table = to_arrow(frame)
    except UserError as error:
        raise UserError(f"partition {part}: {error}") from error
    check_columns(names, table.column_names, f"partition {part}")
    return table.select(names)


def to_arrow(frame: Any) -> Any:
    """Convert a data frame in memory to an Arrow table, without its index."""
    import pyarrow

    if not is_a(frame, "pandas", "DataFrame"):
        try:
            table = pyarrow.table(frame)
        except (pyarrow.ArrowException, TypeError) as error:
            raise UserError(f"Arrow cannot read the {type(frame).__name__} ({error}); convert its columns") from error
        column_names(table.column_names)
        return table
    columns = {}
    for number, name in enumerate(column_names(frame.columns)):
        try:
            columns[name] = pyarrow.array(_plain(frame.iloc[:, number]), from_pandas=True)
            _check_zones(frame.iloc[:, number], name, columns[name].type)
        except (pyarrow.ArrowException, OverflowError, UnicodeError) as error:
            raise UserError(
                f"column {name!r} of the data frame has values of several kinds, or of none that a table has: "
                f"{error}; make numbers or texts of them, or leave the column out"
            ) from error
    return pyarrow.table(columns)


def _check_zones(series: Any, name: str, arrow_type: Any) -> None:
    """Raise UserError for Python dates with and without a time zone in one column."""
    values = series.cat.categories if is_a(series.dtype, "pandas", "CategoricalDtype") else series
    if zone_of(arrow_type) is not None and values.dtype == object:
        if len({getattr(value, "tzinfo", None) is None for value in values.dropna()}) > 1:
            raise UserError(
                f"column {name!r} of the data frame has dates with and without a time zone; give all one, as by "
                f"[date.replace(tzinfo=date.tzinfo or datetime.UTC) for date in frame[{name!r}]]"
            )


def _plain(series: Any) -> Any:
    """Convert a pandas column so that Arrow accepts it: dense, and categories such as intervals as texts."""
    import pyarrow

    if is_a(series.dtype, "pandas", "SparseDtype"):
        return series.sparse.to_dense()
    if is_a(series.dtype, "pandas", "CategoricalDtype"):
        categories = series.cat.categories
        try:
            is_known = kind_of(pyarrow.array(categories, from_pandas=True).type) is not None
        except pyarrow.ArrowException:  # of several kinds
            is_known = False
        return series if is_known else series.cat.rename_categories([str(category) for category in categories])
    return series


def column_names(columns: Any) -> list[str]:
    """Return the names of columns as texts."""
    if getattr(columns, "nlevels", 1) > 1:
        raise UserError(
            f"the data frame has columns of {columns.nlevels} levels; give each one name, as by "
            "frame.columns = ['_'.join(map(str, name)) for name in frame.columns]"
        )
    if not (names := distinct_names(columns)):
        raise UserError("the data frame has no columns")
    return names


def index_columns(schema: Any, location: str = "the data frame") -> list[str]:
    """Return the columns of an Arrow schema that are an index written by pandas or Dask."""
    try:
        written = schema.pandas_metadata
        stored = [] if written is None else written.get("index_columns", [])
        if not isinstance(stored, list):
            raise TypeError(f"its index_columns are {str(stored)[:40]}")
    except (ValueError, TypeError, AttributeError, RecursionError) as error:
        raise UserError(
            f"{location} has a damaged entry 'pandas' in the metadata of its schema ({str(error)[:100]}); take it "
            "away, as by table.replace_schema_metadata(None)"
        ) from error
    return [name for name in schema.names if name in stored or UNNAMED_INDEX.fullmatch(name)]


def import_arrow() -> None:
    """Raise UserError if pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UserError("tables need pyarrow: pip install 'dsinga[dataframe]'") from error
