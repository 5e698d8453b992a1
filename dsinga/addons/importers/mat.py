"""The importer of MATLAB files: a store for each matrix, with labels from a vector or from list files."""

from __future__ import annotations

import glob
import os
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from dsinga.addons.importers.batches import Batch, StoreContents, in_batches, naming_errors, read_lines
from dsinga.base.errors import UserError
from dsinga.base.registry import listed, register
from dsinga.base.regular_files import open_regular
from dsinga.data.stores.store_format import chunk_rows

Shape = tuple[int, ...]
NUMERIC_CLASSES = (
    "logical",
    "single",
    "double",
    *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)),
)


@register("importer", "mat")
def mat(source: str) -> dict[str, StoreContents]:
    """Read a MATLAB file (version 7 or earlier), or a folder with one: a store NAME.zarr for each matrix NAME (N, ...).

    Names with the same ending after the last underscore belong together: row i of ``I_tr`` and row i of ``T_tr`` are a
    pair. Their labels are the vector of N whole numbers with that ending. Without one, a folder's text file that begins
    with the ending and ends in .list (``trainset.list`` for ``_tr``) has labels in its last column. Labels are
    optional; counts from 1, as in MATLAB, become counts from 0. The lines of ``categories.list`` in the folder name the
    classes. Bytes and logicals stay bytes, all other numbers become float32.
    """
    path = _file(source) if os.path.isdir(source) else source
    variables = _scipy(path, "whosmat")  # shapes, without reading the data
    shapes: dict[str, Shape] = {
        name: shape for name, shape, kind in variables if kind in NUMERIC_CLASSES and np.prod(shape)
    }
    matrices = {name: shape for name, shape in shapes.items() if not (len(shape) == 2 and 1 in shape)}
    if not matrices:
        listing = listed(f"{name} {shape} {kind}" for name, shape, kind in variables)
        raise UserError(f"{path} has no dense matrix of numbers, with a row per record; it has {listing}")
    labels = _vectors(path, [name for name in shapes if name not in matrices])
    classes: tuple[str, ...] = ()
    if os.path.isdir(source):
        labels = _lists(source, {_ending(name) for name in matrices}) | labels
        classes = _classes(source)
    first_label = min((vector.min() for vector in labels.values() if len(vector)), default=0)
    stores = {}
    for name, shape in matrices.items():
        vector = labels.get(_ending(name))
        if vector is not None and len(vector) != shape[0]:
            raise UserError(f"{path}: {name!r} has {shape[0]} rows, but there are {len(vector)} labels for them")
        vector = vector - 1 if vector is not None and first_label == 1 else vector
        stores[f"{name}.zarr"] = StoreContents(_read(path, name, vector), shape[0], classes)
    return stores


def _file(folder: str) -> str:
    files = sorted(glob.glob(os.path.join(glob.escape(folder), "*.mat")))
    if len(files) != 1:
        listing = f"{len(files)}: {listed(map(os.path.basename, files))}" if files else "none"
        raise UserError(f"{folder} must have one .mat file, but has {listing}; give the path of the file itself")
    return files[0]


def _ending(name: str) -> str:
    return name.rpartition("_")[2] if "_" in name else ""


def _load(path: str, name: str) -> np.ndarray:
    arrays: Mapping[str, np.ndarray] = _scipy(path, "loadmat", variable_names=[name])
    return arrays[name]


def _scipy(path: str, function: str, **options: Any) -> Any:
    try:
        import scipy.io
    except ImportError:
        raise UserError("reading MATLAB files needs SciPy: pip install scipy") from None
    try:
        with naming_errors(path), open_regular(path) as file:
            return getattr(scipy.io, function)(file, **options)
    except UserError:  # a subclass of ValueError, which is caught below
        raise
    except NotImplementedError:
        raise UserError(f"{path} has MATLAB's format 7.3 (HDF5); save it with save(..., '-v7')") from None
    except Exception as error:  # of SciPy's parser: any class
        raise UserError(f"{path} cannot be read as a MATLAB file: {error}") from None


def _vectors(path: str, names: list[str]) -> dict[str, np.ndarray]:
    labels: dict[str, tuple[str, np.ndarray]] = {}
    for name in names:
        vector, ending = _load(path, name).ravel(), _ending(name)
        if vector.size < 2 or not np.isfinite(vector).all() or not np.array_equal(vector, np.rint(vector)):
            continue
        if ending in labels:
            raise UserError(f"{path}: {labels[ending][0]!r} and {name!r} could both be labels; keep one of them")
        labels[ending] = name, vector.astype(np.int64)
    return {ending: vector for ending, (_, vector) in labels.items()}


def _lists(folder: str, endings: set[str]) -> dict[str, np.ndarray]:
    columns = {}
    for ending in filter(None, endings):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"{ending}*.list"))):
            labels = []
            for number, line in enumerate(_lines(path), 1):
                try:
                    labels.append(int(line.split()[-1]))
                except ValueError:
                    raise UserError(f"{path}:{number}: a line must end in an integer label, not {line!r:.80}") from None
            columns[ending] = np.array(labels, np.int64)
    return columns


def _classes(folder: str) -> tuple[str, ...]:
    path = os.path.join(folder, "categories.list")
    return tuple(_lines(path)) if os.path.isfile(path) else ()


def _lines(path: str) -> list[str]:
    return [line.strip() for line in read_lines(path) if line.strip()]


def _read(path: str, name: str, labels: np.ndarray | None) -> Generator[Batch]:
    data = _load(path, name)
    yield from in_batches(data, labels, chunk_rows(data[:1].nbytes))
