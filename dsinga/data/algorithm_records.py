"""AlgorithmRecords: the shapes of records that no store has, because an algorithm makes them while it trains."""

from __future__ import annotations

from typing import Any, NoReturn

import numpy as np

from dsinga.data.column import Column
from dsinga.data.conversion import label_dtype
from dsinga.data.record_source import RecordSource
from dsinga.errors import RunError


class AlgorithmRecords(RecordSource):
    """Stands for a store at an input layer that is fed by the job's algorithm, such as by experience of an agent.

    Nothing is read for such a layer: the algorithm is called without records of it.

    Args:
        rows: records of a batch.
        shape: shape of one record.
        dtype: uint8, int32 or float32.
        labels: labels (n, ...) like those of the records, None for records without; only shape and dtype matter.
    """

    def __init__(self, rows: int, shape: tuple[int, ...], dtype: Any, labels: np.ndarray | None = None):
        column = None
        if labels is not None:
            column = _NoColumn("y", rows, labels.shape[1:], label_dtype(labels.dtype), rows)
        super().__init__("records of the algorithm", _NoColumn("x", rows, shape, dtype, rows), column)


class _NoColumn(Column):
    """A column without data."""

    from_files = False

    def load(self, start: int, stop: int) -> NoReturn:
        """Raise RunError."""
        raise RunError("an algorithm makes these records while it trains; there are none to read")
