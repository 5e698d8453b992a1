"""Opens data frames of any library as parts, each read as an Arrow table; Frame is the interface of all of them."""

from __future__ import annotations

import os
from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from typing import Any

from dsinga.base.errors import UserError
from dsinga.base.locations import absolute
from dsinga.base.registry import lookup
from dsinga.data.array_kinds import is_a, is_dask_frame, is_path
from dsinga.data.filesystem import resolve
from dsinga.data.sources.dask_arrays import DaskGraph, compute


class Frame(ABC):
    """A data frame that is read in parts, such as the partitions of Dask or the row groups of parquet.

    Threads may share it, and its pickle has what another process needs to read it.

    Attributes:
        location: what messages call it: its path, or "the data frame".
        names: the names of its columns.
        lengths: the rows of each part.
        path: the path that a job can name, None for a frame in memory.
        in_memory: whether all rows are in the memory of this process, in one part.
    """

    location = "the data frame"
    names: Sequence[str]
    lengths: Sequence[int]
    path: str | None = None
    in_memory = False

    @abstractmethod
    def read(self, part: int, names: Sequence[str]) -> Any:
        """Return some columns of a part as an Arrow table. Raises UserError where they cannot be read."""

    def __len__(self) -> int:
        return sum(self.lengths)

    def connect(self, client: Callable[[], Any]) -> None:  # noqa: B027  most frames need no client
        """Prepare to read in this process. ``client`` returns the Dask client for data that a cluster keeps."""


class MemoryFrame(Frame):
    """A data frame in memory: of pandas, of Arrow, or of a library that gives its columns to Arrow, such as Polars."""

    in_memory = True

    def __init__(self, frame: Any):
        self._table = to_arrow(frame)
        self.names, self.lengths = self._table.column_names, [self._table.num_rows]

    def read(self, part: int, names: Sequence[str]) -> Any:
        """Return some columns."""
        return self._table.select(names)


class DaskFrame(Frame):
    """A Dask data frame: the tasks of a partition run in the thread that reads it, without a scheduler."""

    location = "the Dask data frame"

    def __init__(self, frame: Any):
        self.names = _names(frame.columns)
        self.lengths = [int(length) for length in compute(frame.map_partitions(len, meta=("length", "i8")))[0]]
        self._frame, self._graph = frame, DaskGraph(frame, "the data frame")

    def __getstate__(self) -> dict[str, Any]:
        return {name: value for name, value in vars(self).items() if name != "_frame"}

    def read(self, part: int, names: Sequence[str]) -> Any:
        """Compute a partition, and return some of its columns."""
        (frame,) = self._graph.compute([self._graph.keys[part]])
        try:
            return to_arrow(frame).select(names)
        except UserError as error:
            raise UserError(f"partition {part}: {error}") from error

    def connect(self, client: Callable[[], Any]) -> None:
        """Use the Dask client that ``client`` returns to fetch partitions kept by a cluster."""
        self._graph.connect(client)

    def only(self, names: Sequence[str]) -> DaskFrame:
        """Return the frame with some columns, so that a partition is read without the others."""
        columns = {str(name): name for name in self._frame.columns}
        part = object.__new__(type(self))
        frame = self._frame[[columns[name] for name in names]]
        vars(part).update(vars(self), names=list(names), _frame=frame, _graph=DaskGraph(frame, "the data frame"))
        return part


def open_frame(value: Any, roots: Sequence[str] = ()) -> Frame:
    """Return a data frame, or the one at a path, as parts. Raises UserError for other objects."""
    import_arrow()
    if isinstance(value, Frame):
        return value
    if is_path(value):
        path = absolute(value) if "*" in os.fspath(value) else resolve(value, roots)
        opened: Frame = lookup("hook", "parquet_frame")(path)
        return opened
    if is_dask_frame(value) and value.ndim == 2:
        return DaskFrame(value)
    if is_a(value, "pandas", "DataFrame") or hasattr(value, "__arrow_c_stream__") and hasattr(value, "shape"):
        return MemoryFrame(value)
    raise UserError(
        f"a table is a data frame of pandas, Dask, Polars or Arrow, or the path of a folder of parquet, not a "
        f"{type(value).__name__}"
    )


def to_arrow(frame: Any) -> Any:
    """Return a data frame in memory as an Arrow table, without its index. Raises UserError for mixed values."""
    import pyarrow

    if not is_a(frame, "pandas", "DataFrame"):
        return pyarrow.table(frame)
    _names(frame.columns)
    columns = {}
    for number, name in enumerate(frame.columns):
        try:
            columns[str(name)] = pyarrow.array(frame.iloc[:, number], from_pandas=True)
        except (pyarrow.ArrowInvalid, pyarrow.ArrowTypeError, pyarrow.ArrowNotImplementedError) as error:
            raise UserError(
                f"column {str(name)!r} of the data frame has values of several kinds, or of none that a table has: "
                f"{error}; make numbers or texts of them, or leave the column out"
            ) from error
    return pyarrow.table(columns)


def _names(columns: Any) -> list[str]:
    """Return the names of columns as texts. Raises UserError where two are equal."""
    names = [str(name) for name in columns]
    if len(set(names)) < len(names):
        name = next(name for name in names if names.count(name) > 1)
        raise UserError(f"the data frame has several columns named {name!r}; give each its own name")
    return names


def import_arrow() -> None:
    """Raise UserError where pyarrow is not installed."""
    try:
        import pyarrow  # noqa: F401
    except ImportError as error:
        raise UserError("tables need pyarrow: pip install 'dsinga[dataframe]'") from error
