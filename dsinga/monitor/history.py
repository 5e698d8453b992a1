"""Defines History, the rows of metrics that a run has reported."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from typing import Any, overload

from dsinga.base.arguments import with_types
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, lookup, nearest, nearest_or_listed
from dsinga.monitor.rows import NOT_METRICS, HistoryPlot, Row, rows_of_metrics


def picture(rows: Iterable[Mapping[str, Any]]) -> str:
    """Draw the metrics of rows as HTML curves; without the drawing add-on return a message."""
    try:
        return str(lookup("drawing", "History")(rows))
    except UserError as error:
        return f"<p>{escape(str(error))}</p>"


class _Metrics(dict[str, list[Any]]):
    """The values of metrics by name, where a missing name raises KeyError with the names that exist."""

    def __missing__(self, name: object) -> Any:
        raise KeyError(f"no metric {name!r}{nearest_or_listed(str(name), self, 'these are')}")


class History(Sequence[Row]):
    """The metrics of a run, as rows: indexed like a list or, with a second index, by column.

    | | |
    | --- | --- |
    | `history[-1]` | the last row, a dict |
    | `history[-1, "loss"]` | its loss; KeyError, with the nearest column, if it has none |
    | `history[10:20]` | these rows, a History |
    | `history[:, "loss"]` | a list of the losses of all rows that have one |
    | `history[:, ("step", "loss")]` | a list of pairs, for all rows that have both |
    | `history.phase("test")` | the rows of one phase, a History |
    | `history.epoch` | a list of the epochs that ended, from 0 |
    | `history.history["val_loss"]` | a list of the losses of all validations, by the names of Keras |
    | `history.plot()` | axes of Matplotlib for each metric, with a line for each phase |

    In a notebook it is displayed as curves. ``remarks`` are sentences about the run.
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows = list(rows)
        self.remarks: list[str] = []

    def append(self, row: Row) -> None:
        """Add a row at the end, without a copy."""
        self._rows.append(row)

    @with_types
    def phase(self, name: str) -> History:
        """Return the rows of one phase, such as "test", as a History."""
        return History(row for row in self._rows if row.get("phase") == name)

    @property
    def history(self) -> dict[str, list[Any]]:
        """The values of each metric in order, by Keras's names such as "loss" and "val_loss"."""
        values = _Metrics()
        for row in rows_of_metrics(self._rows):
            prefix = "" if row["phase"] == "train" else f"{row['phase']}_"
            for name, value in row.items():
                if name not in NOT_METRICS:
                    values.setdefault(prefix + name, []).append(value)
        return values

    @property
    def epoch(self) -> list[int]:
        """The numbers of the epochs that have ended, from 0 as in Keras."""
        ends = [row["epoch"] for row in self._rows if row.get("phase") == "train" and "epoch" in row]
        return [int(epoch) - 1 for epoch in ends if epoch == int(epoch)]

    @with_types
    def plot(
        self, metrics: str | Sequence[str] = (), *, x: str = "step", label: str = "", ax: Any = None, **line: Any
    ) -> Any:
        """Draw metrics with Matplotlib, with a line for each phase: training, validation, test.

        Args:
            metrics: one or several names of metrics; by default all, the loss first.
            x: the column along the horizontal axis, such as "step", "epoch" or "time".
            label: a name for these lines in the legend, to tell several histories on the same axes apart. Each label
                has its own colour; lines without one have their phase's colour.
            ax: the Matplotlib axes to draw on, or a sequence with axes for each metric; by default new ones.
            line: further arguments of Matplotlib's ``Axes.plot``.

        Returns the axes if ``metrics`` is a name, else an array (number of metrics,) of axes. Raises UserError if
        Matplotlib or a column is missing, or ``ax`` and the metrics differ in number.
        """
        plot: HistoryPlot = lookup("drawing", "History.plot")
        return plot(self._rows, metrics, x=x, label=label, ax=ax, line=line)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in order of first appearance."""
        return tuple(dict.fromkeys(name for row in self._rows for name in row))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    @overload
    def __getitem__(self, index: tuple[int | slice, str | tuple[str, ...]]) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
        if isinstance(index, str):
            raise KeyError(f"rows are numbered; the column is history.history[{index!r}]")
        if not isinstance(index, tuple):
            rows = self._rows[index]
            return History(rows) if isinstance(index, slice) else rows
        row_index, column = index
        names = (column,) if isinstance(column, str) else tuple(column)
        rows = self._rows[row_index] if isinstance(row_index, slice) else [self._rows[row_index]]
        tuples = [tuple(row[name] for name in names) for row in rows if all(name in row for name in names)]
        if rows and not tuples:
            raise KeyError(_missing_column(names, History(rows).columns))
        values = [cells[0] for cells in tuples] if isinstance(column, str) else tuples
        return values if isinstance(row_index, slice) else values[0]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]  # mutable, like a list

    def __repr__(self) -> str:
        steps = [row["step"] for row in self._rows if "step" in row]
        span = f", steps {min(steps)} to {max(steps)}" if steps else ""
        return f"<History of {len(self)} rows{span}>"

    def _repr_html_(self) -> str:
        return picture(self._rows)


def _missing_column(names: Sequence[str], columns: Sequence[str]) -> str:
    for name in names:
        if name not in columns:
            return f"no column {name!r}{nearest(name, columns)} (columns: {listed(columns)})"
    return f"no row has all of {', '.join(names)}"
