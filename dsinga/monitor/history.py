"""The history of a run: rows in the order in which they were made, indexed by row and column."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import Any, overload

from dsinga.monitor.curve import draw_curves
from dsinga.registry import nearest

Row = dict[str, Any]
"""One object a line of ``metrics.jsonl``: "step", "phase" ("train", "val", "test"), "time" in seconds, "loss", ..."""


class History(Sequence[Row]):
    """Rows, indexed like a list or, with a second index, by column.

    ==============================  ==============================================================
    ``history[-1]``                 the last row, a dict
    ``history[-1, "loss"]``         its loss; KeyError, with the nearest column, if it has none
    ``history[10:20]``              those rows, a History
    ``history[:, "loss"]``          the losses of all rows that have one, a list
    ``history[:, ("step", "loss")]``  pairs, of all rows that have both
    ``history.phase("test")``       the rows of one phase, a History
    ==============================  ==============================================================

    In a notebook it shows itself as its curves.
    """

    def __init__(self, rows: Iterable[Row] = ()):
        self._rows = list(rows)

    def append(self, row: Row) -> None:
        """Add a row at the end; the row is not copied."""
        self._rows.append(row)

    def phase(self, name: str) -> History:
        """Return the rows of phase ``name``; an empty History if there are none."""
        return History(row for row in self._rows if row.get("phase") == name)

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
        where, column = index
        names = (column,) if isinstance(column, str) else tuple(column)
        rows = self._rows[where] if isinstance(where, slice) else [self._rows[where]]
        found = [tuple(row[name] for name in names) for row in rows if all(name in row for name in names)]
        if rows and not found:
            raise KeyError(_absent(names, History(rows).columns))
        values = [cells[0] for cells in found] if isinstance(column, str) else found
        return values if isinstance(where, slice) else values[0]

    def __len__(self) -> int:
        return len(self._rows)

    def __iter__(self) -> Iterator[Row]:
        return iter(self._rows)

    def __eq__(self, other: object) -> bool:
        return isinstance(other, History) and self._rows == other._rows

    __hash__ = None  # type: ignore[assignment]  # it changes, as a list does

    def __repr__(self) -> str:
        steps = [row["step"] for row in self._rows if "step" in row]
        span = f", steps {min(steps)} to {max(steps)}" if steps else ""
        return f"<History of {len(self)} rows{span}>"

    def _repr_html_(self) -> str:
        return draw_curves(self._rows)


def _absent(names: Sequence[str], known: Sequence[str]) -> str:
    for name in names:
        if name not in known:
            return f"no column {name!r} here{nearest(name, known)} (columns: {', '.join(known)})"
    return f"no row here has all of {', '.join(names)}"
