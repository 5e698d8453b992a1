"""Converts between training steps and epochs."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Epochs:
    """Tells at which step each epoch ends, and how many epochs are done.

    An epoch ends when all worker groups together have read as many rows as there are records.

    Attributes:
        rows: the rows that all worker groups read in a step.
        offset: the rows read before step 0 if all steps read ``rows``; not 0 if a run continued with another batch
            size.
    """

    records: int
    rows: int
    offset: int = 0

    def done(self, step: int) -> int:
        """Return the number of epochs done after ``step`` steps."""
        return (self.offset + step * self.rows) // self.records

    def end(self, epoch: int) -> int:
        """Return the step at which ``epoch`` epochs are done."""
        return -((self.offset - epoch * self.records) // self.rows)

    def at(self, step: int) -> float:
        """Return how many epochs are done, for display: 3 after the third, two decimals in between."""
        done = self.done(step)
        return done if self.end(done) == step else round((self.offset + step * self.rows) / self.records, 2)


def offset_of(step: int, rows: int, offset: int, new_rows: int) -> int:
    """Return the offset that lets a run continue at the same record with another batch size."""
    return offset + step * (rows - new_rows)
