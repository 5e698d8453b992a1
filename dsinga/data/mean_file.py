"""Mean and deviation images that a job names by file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from dsinga.data.paths import resolve
from dsinga.data.store import RecordStore
from dsinga.errors import UserError


def read_mean(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> np.ndarray:
    """Return the array, float32 in the shape of a record, that ``mean_file`` or ``std_file`` names.

    It may be a store of one record (``image_mean.zarr``), a numpy file (``.npy``), or SINGA's ``image_mean.bin``, a
    kvfile of one record. ``path`` is found as :func:`dsinga.data.resolve` does, so that a store beside it will do.

    Raises:
        UserError: it is not found, not readable, or does not hold exactly one record.
    """
    location = resolve(path, roots)
    if location.endswith(".zarr"):
        store = RecordStore(location)
        return _only(location, (store.read([row])[0][0] for row in range(len(store))))
    if location.endswith(".npy"):
        try:
            return np.load(location).astype(np.float32)
        except (OSError, ValueError) as error:
            raise UserError(f"{location} cannot be read as a numpy file: {error}") from None
    from dsinga.data.importers.kvfile import read_kvfile

    return _only(location, (record.data for record in read_kvfile(location)))


def _only(location: str, records: Iterable[np.ndarray]) -> np.ndarray:
    found = list(itertools.islice(records, 2))
    if len(found) != 1:
        count = "more than one record" if found else "no record"
        raise UserError(f"{location} holds {count}; a mean or deviation file holds one")
    return np.asarray(found[0], np.float32)
