"""Epochs of a run, counted in records: at which steps they end, and how many are done after a step."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epochs:
    """Converts steps to epochs, and epochs to steps.

    An epoch is done when all worker groups together have read as many rows as there are records.

    Attributes:
        records: the number of training records.
        rows: the rows that all worker groups together read in a step.
        offset: how many rows were read before step 0 if all steps read ``rows``: not 0, and perhaps negative, in a run
            that has gone on with batches of another size.
    """

    records: int
    rows: int
    offset: int = 0

    def done(self, step: int) -> int:
        """Return the number of epochs that are done after ``step`` steps."""
        return (self.offset + step * self.rows) // self.records

    def end(self, epoch: int) -> int:
        """Return the step with which the given number of epochs is done."""
        return -((self.offset - epoch * self.records) // self.rows)

    def at(self, step: int) -> float:
        """Return the number of epochs that are done, for people to read: 3 at the end of the third.

        Between ends it has two decimals.
        """
        done = self.done(step)
        return done if self.end(done) == step else round((self.offset + step * self.rows) / self.records, 2)


def offset_of(step: int, rows: int, offset: int, new_rows: int) -> int:
    """Return the offset with which a run goes on at the same record with ``new_rows`` rows a step from ``step`` on.

    ``rows`` and ``offset`` are those of the steps before.
    """
    return offset + step * (rows - new_rows)
