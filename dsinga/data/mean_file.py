"""Reading the mean and standard-deviation images that a job names by file."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence

import numpy as np

from dsinga.data.finite import find_nonfinite, place_of
from dsinga.data.paths import resolve
from dsinga.data.store import RecordStore
from dsinga.errors import UserError
from dsinga.regular_files import TABLE_BYTES, open_regular


def read_mean(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> np.ndarray:
    """Return the float32 array, in the shape of a record, from the file that ``mean_file`` or ``std_file`` names.

    The file is a store of one record (``image_mean.zarr``), a numpy file (``.npy``), or SINGA's ``image_mean.bin``, a
    kvfile of one record. It is looked up as by :func:`dsinga.data.resolve`, which also finds a store beside ``path``.

    Raises:
        UserError: the file does not exist, cannot be read, does not contain exactly one record, or has NaN or infinity.
    """
    location = resolve(path, roots)
    image = _read(location)
    bad = find_nonfinite(image[None])
    if bad is not None:
        raise UserError(f"{location} has {bad.value} in {place_of(bad.position)}; make it again, from finite records")
    return image


def _read(location: str) -> np.ndarray:
    if location.endswith(".zarr"):
        store = RecordStore(location)
        return _single(location, (store.read([row])[0][0] for row in range(len(store))))
    if location.endswith(".npy"):
        try:
            with open_regular(location, TABLE_BYTES) as file, np.errstate(over="ignore"):
                return np.load(file).astype(np.float32)
        except Exception as error:  # of the header's parser: any class
            fault = f"{type(error).__name__}: {error}"
            raise UserError(f"{location} cannot be read as a numpy file ({fault}); write it again") from None
    from dsinga.data.importers.kvfile import read_kvfile

    return _single(location, (record.data for record in read_kvfile(location)))


def _single(location: str, records: Iterable[np.ndarray]) -> np.ndarray:
    first_two = list(itertools.islice(records, 2))
    if len(first_two) != 1:
        count = "more than one record" if first_two else "no record"
        raise UserError(f"{location} has {count}; a mean or standard-deviation file has exactly one")
    return np.asarray(first_two[0], np.float32)
