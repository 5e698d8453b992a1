"""Reads a large scipy.sparse matrix block by block as dense records."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from scipy.sparse import issparse

from dsinga.base.registry import register
from dsinga.data.column import Column
from dsinga.data.conversion import record_dtype
from dsinga.data.sources.arrays import DataAndLabels, Kind, Options, convert
from dsinga.data.stores.store_format import SMALL_BYTES, block_rows


class SparseRecords:
    """The rows of a CSR matrix (n, d) as records; a slice is a dense array, scaled if there is a scaling."""

    ndim = 2

    def __init__(self, matrix: Any, scaling: Any = None):
        self.matrix, self.scaling = matrix, scaling
        self.shape, self.dtype = matrix.shape, np.dtype(matrix.dtype if scaling is None else np.float32)

    def __len__(self) -> int:
        return int(self.shape[0])

    def __getitem__(self, rows: slice) -> np.ndarray:
        block = self.matrix[rows].toarray()
        return block if self.scaling is None else self.scaling.apply(block)

    def chosen(self, mask: np.ndarray) -> SparseRecords:
        """Return the records that a mask (n,) selects."""
        return SparseRecords(self.matrix[mask], self.scaling)

    def scaled(self, scaling: Any) -> SparseRecords:
        """Return the records with a scaling, or None, that dense rows get when they are read."""
        return SparseRecords(self.matrix, scaling)


class SparseColumn(Column):
    """Records of a sparse matrix for training, made dense when a block is loaded."""

    from_files = False

    def __init__(self, records: SparseRecords, name: str):
        dtype = record_dtype(records.dtype)
        self.records = records
        block = block_rows(len(records), math.prod(records.shape[1:]) * dtype.itemsize)
        super().__init__(name, len(records), records.shape[1:], dtype, block)

    def load(self, start: int, stop: int) -> np.ndarray:
        """Return the rows ``start`` to ``stop``."""
        return convert(self.records[start:stop], self)


@register("records", "dsinga.SparseRecords")
def sparse_kind(value: Any) -> Kind:
    """Return how training reads the records of a sparse matrix."""
    return Kind("a sparse matrix", _sparse_records)


def _sparse_records(x: Any, y: Any, options: Options) -> DataAndLabels:
    return DataAndLabels("sparse matrix", SparseColumn(x, "x"), y)


def small_as_dense(X: Any) -> Any:
    """Make a scipy.sparse matrix dense if that takes at most 128 MiB in float32; return others unchanged."""
    is_small = issparse(X) and math.prod(X.shape) * np.dtype(np.float32).itemsize <= SMALL_BYTES
    return X.toarray() if is_small else X


def by_block(x: Any) -> Any:
    """Let a scipy.sparse matrix become dense block by block; return arrays unchanged."""
    return SparseRecords(x.tocsr()) if issparse(x) else x
