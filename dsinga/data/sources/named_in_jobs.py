"""Opening what a job names: stores, files in SINGA's formats (imported on first use), labels, and mean images."""

from __future__ import annotations

import itertools
import logging
import os
from collections.abc import Iterable, Sequence
from typing import Any

import numpy as np
import zarr

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.base.regular_files import TABLE_BYTES, open_regular
from dsinga.data.column import Column
from dsinga.data.conversion import find_nonfinite, place_of
from dsinga.data.filesystem import has_zarr_metadata, imported_name, is_url, resolve
from dsinga.data.record_source import RecordSource
from dsinga.data.sources.arrays import DataAndLabels, Kind, Labels, Options
from dsinga.data.sources.zarr_source import array_column, open_zarr_labels, open_zarr_records
from dsinga.data.stores.record_store import RecordStore, is_complete
from dsinga.data.stores.staged_stores import DestinationExists

BACKENDS = ("kvfile", "textfile", "lmdb", "imagefolder")  # values of SINGA's StoreProto.backend; dsinga adds "zarr"
logger = logging.getLogger(__name__)


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
    """Open the zarr store at ``path``, or import a file in one of SINGA's formats and open the resulting store.

    A kvfile, textfile, lmdb or imagefolder is imported once into a zarr store beside it (``train_data.bin`` into
    ``train_data.zarr``). That store is used from then on, as long as it is complete and not older than its source.

    Args:
        path: path or URL, looked up by :func:`dsinga.data.resolve`.
        backend: "zarr", or one of SINGA's; with None or "" the format is detected from the path.
        roots: folders in which a relative path is looked up after the working directory.
        separator: character between the values of a line of a textfile.
        has_label: whether the first value of each line of a textfile is a label; False reads no labels of a store.
        shape: shape of a record, (..., height, width); images of an imagefolder are resized to it.
        encoded: whether the pixels of a kvfile or lmdb are image files, such as JPEG.
        data: name of the array of records in a zarr group that is not a record store, such as "train/images"; None
            guesses it.
        label: the same for the labels; "" reads no labels.

    Raises:
        UserError: ``path`` does not exist or cannot be read; the message says where it looked and what to do.
    """
    location = resolve(path, roots)
    kind = _importer_kind(location, "zarr" if data and not backend else backend)
    if kind is None:
        return open_zarr_records(location, data, label if has_label else "")
    if data or label:
        raise UserError(f"{location} is a {kind}, whose parts have no names; leave data and label out")
    options: dict[str, dict[str, Any]] = {
        "textfile": {"separator": separator, "has_label": has_label},
        "kvfile": {"encoded": encoded},
        "lmdb": {"encoded": encoded},
        "imagefolder": {"size": tuple(shape[-2:])} if len(shape) > 1 else {},
    }
    return RecordStore(import_once(location, kind, options[kind]))


def path_records(path: str | os.PathLike[str], y: Any, options: Options) -> DataAndLabels:
    """Return the records of the store at a path or URL, whose own labels are left out, beside the labels ``y``."""
    refuse_numpy_file(path)
    store = open_store(path, roots=options.roots, has_label=False)
    return DataAndLabels(store.location, store.columns[0], y)


def path_labels(path: str | os.PathLike[str], name: str, length: int, options: Options) -> Labels:
    """Return the zarr array at a path or URL as the column of labels; see :func:`open_labels`."""
    return open_labels(path, options.roots), options.classes


def open_labels(path: Any, roots: Sequence[str] = ()) -> Column:
    """Return the labels (n, ...) that are the zarr array at a path or URL, or a zarr array.

    A relative path is looked up in the working directory, then under ``roots``. Raises UserError where there is no such
    array, or it has no numbers that can be labels.
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


def is_path(value: Any) -> bool:
    """Return whether ``value`` is a path or a URL."""
    return isinstance(value, (str, os.PathLike))


PATHS = Kind("a path or URL", is_path, path_records, labels=path_labels)


def refuse_numpy_file(path: str | os.PathLike[str]) -> None:
    """Raise UserError where ``path`` is that of a file of numpy."""
    if os.fspath(path).endswith((".npz", ".npy")):
        raise UserError(
            f"{os.fspath(path)} is a file of numpy, which is not read in place; give its arrays, as numpy.load "
            "returns them, or import them: dsinga data import npz SOURCE DESTINATION"
        )


def _importer_kind(location: str, backend: str | None) -> str | None:
    """Return the kind of importer that reads ``location``, or None if it is a store already."""
    if backend == "hdfsfile":
        raise UserError(
            f"{location}: backend 'hdfsfile' is not supported; copy the file to this machine and set backend: 'kvfile'"
        )
    if backend and backend not in (*BACKENDS, "zarr"):
        raise UserError(f"{location}: unknown backend {backend!r}{nearest(backend, BACKENDS)}")
    if location.endswith(".zarr") or backend == "zarr" or has_zarr_metadata(location):
        return None
    if is_url(location):
        if backend:
            raise UserError(f"{location}: a {backend} cannot be read from a URL; copy it to this machine first")
        return None
    kind = backend or _guess(location)
    if kind is None:
        raise UserError(f"{location}: its name does not show its format; set backend to one of {', '.join(BACKENDS)}")
    return kind


def _guess(location: str) -> str | None:
    if os.path.isdir(location):
        return "lmdb" if os.path.exists(os.path.join(location, "data.mdb")) else "imagefolder"
    suffixes = {".bin": "kvfile", ".csv": "textfile", ".txt": "textfile", ".mdb": "lmdb"}
    return suffixes.get(os.path.splitext(location)[1])


def import_once(source: str, kind: str, options: dict[str, Any], vocabulary: Sequence[str] = ()) -> str:
    """Return the path of the store imported from ``source``; import it if it is missing or outdated.

    A store with another vocabulary than ``vocabulary`` is outdated, too. Several processes may import at once: each
    writes a store of its own, the first to rename it wins, and the others use that one.
    """
    destination = imported_name(source)
    if not options.get("has_label", True):  # without labels the same file gives a different store
        destination = f"{destination.removesuffix('.zarr')}-unlabelled.zarr"

    def is_current() -> bool:
        return (
            is_complete(destination)
            and _modified_ns(source) <= os.stat(os.path.join(destination, "zarr.json")).st_mtime_ns
            and RecordStore(destination).vocabulary == tuple(vocabulary)
        )

    if is_current():
        return destination
    from dsinga.addons.importers import import_records

    logger.info("importing %s %s into %s", kind, source, destination)
    try:
        import_records(kind, source, destination, overwrite=lambda: not is_current(), **options)
    except DestinationExists:
        if not is_current():
            raise
    return destination


def _modified_ns(source: str) -> int:
    """Return when a file, or a folder or one of its direct entries, was last modified, in nanoseconds."""
    entries = [entry.path for entry in os.scandir(source)] if os.path.isdir(source) else []
    # LMDB's lock file is left out, since every open modifies it.
    return max(os.stat(path).st_mtime_ns for path in (source, *entries) if not path.endswith("lock.mdb"))


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
    from dsinga.addons.importers.kvfile import read_kvfile

    return _single(location, (record.data for record in read_kvfile(location)))


def _single(location: str, records: Iterable[np.ndarray]) -> np.ndarray:
    first_two = list(itertools.islice(records, 2))
    if len(first_two) != 1:
        count = "more than one record" if first_two else "no record"
        raise UserError(f"{location} has {count}; a mean or standard-deviation file has exactly one")
    return np.asarray(first_two[0], np.float32)
