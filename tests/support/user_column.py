"""A column of records of a user. Dask workers import this module, so it imports little."""

import numpy as np

from dsinga.data import Column


class UserColumn(Column):
    """Rows of an array in the dtype of a column."""

    def __init__(self, name: str, array: np.ndarray, block: int):
        super().__init__(name, len(array), array.shape[1:], array.dtype, block)
        self.array = array

    def load(self, start: int, stop: int) -> np.ndarray:
        return self.array[start:stop]
