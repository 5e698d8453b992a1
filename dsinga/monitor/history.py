"""The history of a run: a list of rows, indexed by row and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from dsinga.monitor.curve import draw_curves
from dsinga.registry import nearest

# The columns of a row that are no metrics.
NOT_METRICS = frozenset({"step", "epoch", "phase", "time"})

# The phase of rows about Dask workers that were lost.
RECOVERY = "recovery"

Row = dict[str, Any]
"""One line of ``metrics.jsonl``: "step", "phase" ("train", "val", "test"), "time" in seconds, "loss", ...

Rows of a job with ``epochs`` also have "epoch", the number of epochs that are done.

A row of the phase "recovery" has no metrics: "lost" says which Dask worker was lost, "noticed" when, on the clock of
"time"; "steps_again" is how many steps were computed again, "seconds" how long it took until the next new step, and
"generation" how often the run has been placed since it began. "group" is the worker group that has started again, where
the others went on."""


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
    | `history.history["val_loss"]` | a list of the losses of all validations, by the names of Keras |

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
        for row in self._rows:
            if row.get("phase") == RECOVERY:
                continue
            prefix = "" if row.get("phase") == "train" else f"{row.get('phase')}_"
            for name, value in row.items():
                if name not in NOT_METRICS:
                    values.setdefault(prefix + name, []).append(value)
        return values

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
        return draw_curves(self._rows)


def _missing_column(names: Sequence[str], columns: Sequence[str]) -> str:
    """Return the message of the KeyError for ``names`` that no row has."""
    for name in names:
        if name not in columns:
            return f"no column {name!r}{nearest(name, columns)} (columns: {', '.join(columns)})"
    return f"no row has all of {', '.join(names)}"
