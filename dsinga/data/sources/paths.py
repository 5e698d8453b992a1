"""Opens records, labels and mean images at paths and URLs; imports other formats first."""

from __future__ import annotations

import itertools
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import zarr

from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import lookup, nearest, registered
from dsinga.base.regular_files import TABLE_BYTES, open_regular
from dsinga.data.column import Column
from dsinga.data.conversion import find_nonfinite, place_of
from dsinga.data.filesystem import has_zarr_metadata, resolve
from dsinga.data.locations import is_url
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import DataAndLabels, Kind, Labels, Options
from dsinga.data.sources.zarr_source import array_column, open_zarr_labels, open_zarr_records
from dsinga.data.stores.record_store import RecordStore


@public
def open_store(
    path: str | os.PathLike[str],
    backend: str | None = None,
    roots: Sequence[str] = (),
    separator: str = ",",
    has_label: bool = True,
    shape: Sequence[int] = (),
    encoded: bool = False,
    data: str | None = None,
    label: str | None = None,
) -> RecordSource:
    """Open the zarr store at ``path``, or import a file in a SINGA format first.

    A kvfile, textfile, lmdb or imagefolder is imported once into a zarr store next to it (``train_data.bin`` into
    ``train_data.zarr``). That store is reused while it is complete and not older than its source.

    Args:
        path: path or URL, looked up by :func:`dsinga.data.resolve`.
        backend: "zarr", or one of SINGA's; with None or "" the format is detected from the path.
        roots: folders in which a relative path is looked up after the working directory.
        separator: character between the values of a line of a textfile.
        has_label: whether the first value of each line of a textfile is a label; False reads no labels of a store.
        shape: shape of a record, (..., height, width); images of an imagefolder are resized to it.
        encoded: whether the pixels of a kvfile or lmdb are image files, such as JPEG.
        data: name of the array of records in another zarr group, such as "train/images"; None guesses it.
        label: the same for the labels; "" reads no labels.

    Raises:
        UserError: ``path`` does not exist or cannot be read.
    """
    location = resolve(path, roots)
    file_format = _format_of(location, "zarr" if data and not backend else backend)
    if file_format is None:
        return open_zarr_records(location, data, label if has_label else "")
    if data or label:
        raise UserError(f"{location} is no zarr: its parts have no names; leave data and label out")
    open_file = lookup("records", file_format)
    return open_file(location, separator=separator, has_label=has_label, shape=shape, encoded=encoded)


def path_records(path: str | os.PathLike[str], y: Any, options: Options) -> DataAndLabels:
    """Open the store at a path or URL, with the labels ``y`` instead of its own."""
    refuse_numpy_file(path)
    store = open_store(path, roots=options.roots, has_label=False)
    return DataAndLabels(store.location, store.columns[0], y)


def path_labels(path: str | os.PathLike[str], name: str, length: int, options: Options) -> Labels:
    """Open the zarr array at a path or URL as labels."""
    return open_labels(path, options.roots), options.classes


@public
def open_labels(path: Any, roots: Sequence[str] = ()) -> Column:
    """Open the labels, given as a zarr array or as its path or URL.

    Relative paths are looked up in the working directory, then under ``roots``. Raises UserError if there is no array
    of numbers.
    """
    if isinstance(path, zarr.Array):
        return array_column(path, is_label=True)
    refuse_numpy_file(path)
    if os.fspath(path).endswith((".csv", ".tsv", ".txt")):
        raise UserError(
            f"labels beside records are an array or the path of a zarr array, and {os.fspath(path)} is a file of text; "
            "give its column of labels, as pandas.read_csv returns it"
        )
    return open_zarr_labels(resolve(path, roots))


PATHS = Kind("a path or URL", path_records, labels=path_labels)


def refuse_numpy_file(path: str | os.PathLike[str]) -> None:
    """Raise UserError for a path of a numpy file, which has to be imported or loaded first."""
    if os.fspath(path).endswith(".npy"):
        raise UserError(
            f"{os.fspath(path)} is a file of numpy, which is not read in place; give the array: "
            f'numpy.load({os.fspath(path)!r}, mmap_mode="r")'
        )
    if os.fspath(path).endswith(".npz"):
        raise UserError(
            f"{os.fspath(path)} is a file of numpy, which is not read in place; give its arrays, as numpy.load "
            "returns them, or import them: dsinga data import npz SOURCE DESTINATION"
        )


def _format_of(location: str, backend: str | None) -> str | None:
    """Return the name of the importer for a file's format; None for a zarr store."""
    if backend == "hdfsfile":
        raise UserError(
            f"{location}: backend 'hdfsfile' is not supported; copy the file to this machine and set backend: 'kvfile'"
        )
    if backend and backend != "zarr" and backend not in _formats():
        raise UserError(f"{location}: unknown backend {backend!r}{nearest(backend, _formats())}")
    if location.endswith(".zarr") or backend == "zarr" or has_zarr_metadata(location):
        return None
    if is_url(location):
        if backend:
            raise UserError(f"{location}: a {backend} cannot be read from a URL; copy it to this machine first")
        return None
    if backend:
        return backend
    for name in sorted(registered("records"), key=len, reverse=True):
        if name == os.path.splitext(location)[1] or (name.startswith("/") and os.path.exists(location + name)):
            return name
    if location.endswith(".conf"):
        raise UserError(f"{location} is a job file; dsinga show {os.path.basename(location)} describes it")
    raise UserError(
        f"{location}: its name does not show its format; set backend to one of {', '.join(_formats())}, or give "
        "dsinga.table(path) of files of parquet"
    )


def _formats() -> list[str]:
    return [name for name in registered("records") if name.isidentifier()]


@public
def read_mean(path: str | os.PathLike[str], roots: Sequence[str] = ()) -> np.ndarray:
    """Read the array that is subtracted from records (``mean_file``), or divides them (``std_file``), as float32.

    The file is a store of one record (``image_mean.zarr``), a numpy file (``.npy``), or SINGA's ``image_mean.bin``, a
    kvfile of one record.

    Raises:
        UserError: the file cannot be read, or is not one record of finite numbers.
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
    contents = lookup("importer", "kvfile")(location)[""]
    return _single(location, (record for batch in contents.batches for record in batch.data))


def _single(location: str, records: Iterable[np.ndarray]) -> np.ndarray:
    first_two = list(itertools.islice(records, 2))
    if len(first_two) != 1:
        count = "more than one record" if first_two else "no record"
        raise UserError(f"{location} has {count}; a mean or standard-deviation file has exactly one")
    return np.asarray(first_two[0], np.float32)
