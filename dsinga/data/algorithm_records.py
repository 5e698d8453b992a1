"""AlgorithmRecords: the shapes of records that no store has, because an algorithm makes them while it trains."""

from __future__ import annotations

from typing import Any, NoReturn

from dsinga.data.column import Column
from dsinga.data.record_source import RecordSource
from dsinga.errors import RunError


class AlgorithmRecords(RecordSource):
    """Stands for a store at an input layer that is fed by the job's algorithm, such as by experience of an agent.

    Nothing is read for such a layer: the algorithm is called without records of it.

    Args:
        rows: records of a batch.
        shape: shape of one record.
        dtype: uint8, int32 or float32.
    """

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: Any):
        super().__init__("records of the algorithm", _NoColumn("x", rows, shape, dtype, rows))


class _NoColumn(Column):
    """A column without data."""

    from_files = False

    def load(self, start: int, stop: int) -> NoReturn:
        """Raise RunError."""
        raise RunError("an algorithm makes these records while it trains; there are none to read")
