"""Knows the columns of a history's rows: their metrics and phases."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from numbers import Real
from typing import Any, Protocol

# The columns of a row that are no metrics.
NOT_METRICS = frozenset({"step", "epoch", "phase", "time"})

# The phase of rows about Dask workers that were lost.
RECOVERY = "recovery"

# The beginning of the names of validations' metrics in rows of several phases, as in Keras.
VALIDATION_PREFIX = "val_"

Row = dict[str, Any]
"""One line of ``metrics.jsonl``: "step", "phase" ("train", "val", "test"), "time" in seconds, "loss", ...

Rows of a job with ``epochs`` also have "epoch", the number of completed epochs.

A row of the phase "recovery" has no metrics. "lost" names the lost Dask worker, "noticed" is when, on the clock of
"time". "steps_again" is how many steps were computed again, "seconds" the time until the next new step. "generation"
counts how often the run was placed. "group" is the restarted worker group, if the others continued.
"""


class HistoryPlot(Protocol):
    """The type of the function that draws :meth:`History.plot`."""

    def __call__(
        self, rows: Sequence[Row], metrics: str | Sequence[str], *, x: str, label: str, ax: Any, line: Mapping[str, Any]
    ) -> Any:
        """Draw metrics of rows with Matplotlib, and return the axes."""


def rows_of_metrics(rows: Iterable[Mapping[str, Any]]) -> Iterator[Mapping[str, Any]]:
    """Yield the rows that have metrics, one for each phase.

    An estimator's row without "phase" becomes two: columns "val_loss", ... become "loss", ... of phase "val".
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
    """Return the names of all numeric metrics, in order of first appearance."""
    columns = ((name, value) for row in rows_of_metrics(rows) for name, value in row.items())
    return list(dict.fromkeys(k for k, v in columns if k not in NOT_METRICS and isinstance(v, Real)))
