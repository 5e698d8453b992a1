"""The history of a run: its rows, indexed by row and column, their metrics and phases, and their picture."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from html import escape
from numbers import Real
from typing import Any, overload

from dsinga.base.errors import UserError
from dsinga.base.registry import listed, lookup, nearest

# The columns of a row that are no metrics.
NOT_METRICS = frozenset({"step", "epoch", "phase", "time"})

# The phase of rows about Dask workers that were lost.
RECOVERY = "recovery"

# The beginning of the names of validations' metrics in rows of several phases, as in Keras.
VALIDATION_PREFIX = "val_"

Row = dict[str, Any]
"""One line of ``metrics.jsonl``: "step", "phase" ("train", "val", "test"), "time" in seconds, "loss", ...

Rows of a job with ``epochs`` also have "epoch", the number of epochs that are done.

A row of the phase "recovery" has no metrics: "lost" says which Dask worker was lost, "noticed" when, on the clock of
"time"; "steps_again" is how many steps were computed again, "seconds" how long it took until the next new step, and
"generation" how often the run has been placed since it began. "group" is the worker group that has started again, where
the others went on."""


def rows_of_metrics(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that have metrics, each of one phase.

    A row without "phase", as estimators have, becomes two: its columns "val_loss", ... are the "loss", ... of a row of
    the phase "val", the others are of the phase "train".
    """
    for row in rows:
        if "phase" in row:
            if row["phase"] != RECOVERY:
                yield row
            continue
        place = {name: row[name] for name in row if name in NOT_METRICS}
        metrics = {name: row[name] for name in row if name not in NOT_METRICS}
        validated = {name: value for name, value in metrics.items() if name.startswith(VALIDATION_PREFIX)}
        yield place | {"phase": "train"} | {name: metrics[name] for name in metrics if name not in validated}
        if validated:
            yield place | {"phase": "val"} | {k.removeprefix(VALIDATION_PREFIX): v for k, v in validated.items()}


def metric_names(rows: Iterable[Mapping[str, Any]]) -> list[str]:
    """Return the names of all metrics of rows that are numbers, in the order in which they first appear."""
    columns = ((name, value) for row in rows_of_metrics(rows) for name, value in row.items())
    return list(dict.fromkeys(k for k, v in columns if k not in NOT_METRICS and isinstance(v, Real)))


def picture(rows: Iterable[Mapping[str, Any]]) -> str:
    """Return the curves of rows as HTML; where the add-on that draws them is missing, a sentence that says so."""
    try:
        return str(lookup("hook", "draw_curves")(rows))
    except UserError as error:
        return f"<p>{escape(str(error))}</p>"


class History(Sequence[Row]):
    """A sequence of rows, indexed like a list or, with a second index, by column.

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

    In a notebook it is displayed as curves. ``remarks`` are sentences about the run, such as why it stopped early.
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows = list(rows)
        self.remarks: list[str] = []

    def append(self, row: Row) -> None:
        """Add a row at the end; the row is not copied."""
        self._rows.append(row)

    def phase(self, name: str) -> History:
        """Return the rows of the phase ``name``, a History."""
        return History(row for row in self._rows if row.get("phase") == name)

    @property
    def history(self) -> dict[str, list[Any]]:
        """The values of each metric in the order of the rows, by the names of Keras, such as "loss" and "val_loss"."""
        values: dict[str, list[Any]] = {}
        for row in rows_of_metrics(self._rows):
            prefix = "" if row["phase"] == "train" else f"{row['phase']}_"
            for name, value in row.items():
                if name not in NOT_METRICS:
                    values.setdefault(prefix + name, []).append(value)
        return values

    @property
    def epoch(self) -> list[int]:
        """The numbers of the epochs that rows of training end, counted from 0, as in Keras."""
        ends = [row["epoch"] for row in self._rows if row.get("phase") == "train" and "epoch" in row]
        return [int(epoch) - 1 for epoch in ends if epoch == int(epoch)]

    def plot(
        self, metrics: str | Sequence[str] = (), *, x: str = "step", label: str = "", ax: Any = None, **line: Any
    ) -> Any:
        """Draw metrics by Matplotlib, with a line for each phase: training, validation, test.

        Args:
            metrics: the name of a metric, or several names; by default all metrics, the loss first.
            x: the column along the horizontal axis, such as "step", "epoch" or "time".
            label: a name for these lines in the legend. Several histories on the same axes need it; they have a colour
                each, while lines without a label have that of their phase.
            ax: the Matplotlib axes to draw on, or a sequence with axes for each metric. By default they are new.
            line: further arguments of Matplotlib's ``Axes.plot``.

        Returns the axes if ``metrics`` is a name, else an array (number of metrics,) of axes. Raises UserError where
        Matplotlib is missing, a column does not exist, there is no metric, or ``ax`` has not as many axes as metrics.
        """
        return lookup("hook", "plot_history")(self._rows, metrics, x=x, label=label, ax=ax, line=line)

    @property
    def columns(self) -> tuple[str, ...]:
        """The names of all columns, in the order in which they first appeared."""
        return tuple(dict.fromkeys(name for row in self._rows for name in row))

    @overload
    def __getitem__(self, index: int) -> Row: ...
    @overload
    def __getitem__(self, index: slice) -> History: ...
    @overload
    def __getitem__(self, index: tuple[int | slice, str | tuple[str, ...]]) -> Any: ...
    def __getitem__(self, index: Any) -> Any:
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
    """Return the message of the KeyError for ``names`` that no row has."""
    for name in names:
        if name not in columns:
            return f"no column {name!r}{nearest(name, columns)} (columns: {listed(columns)})"
    return f"no row has all of {', '.join(names)}"
