"""MATLAB files: a store for each of their matrices, with labels from a vector or from list files beside the file."""

from __future__ import annotations

import glob
import os
from collections.abc import Generator, Mapping
from typing import Any

import numpy as np

from dsinga.data.importers.files import naming_errors
from dsinga.data.importers.records import Batch, StoreContents
from dsinga.data.store_format import chunk_rows
from dsinga.errors import UserError

Shape = tuple[int, ...]
NUMBERS = ("logical", "single", "double", *(f"{sign}int{bits}" for sign in ("", "u") for bits in (8, 16, 32, 64)))


def mat(source: str) -> dict[str, StoreContents]:
    """Read a MATLAB file (version 7 or earlier), or a folder with one: a store NAME.zarr for each matrix NAME (N, ...).

    Matrices that belong together end alike after the last underscore: row i of ``I_tr`` and of ``T_tr`` are one pair.
    Their labels are the vector of N whole numbers that ends so too; where there is none, and the source is a folder,
    the last column of its text file whose name begins with that ending and ends in .list (``trainset.list`` for
    ``_tr``); a matrix may also have none. Labels that count from 1, as MATLAB does, are made to count from 0. The lines
    of ``categories.list`` in the folder name them. Bytes and logicals stay bytes, all other numbers become float32.
    """
    path = _file(source) if os.path.isdir(source) else source
    there = _scipy(path, "whosmat")  # shapes, without reading the data
    shapes: dict[str, Shape] = {name: shape for name, shape, kind in there if kind in NUMBERS and np.prod(shape)}
    matrices = {name: shape for name, shape in shapes.items() if not _is_vector(shape)}
    if not matrices:
        known = ", ".join(f"{name} {shape} {kind}" for name, shape, kind in there) or "nothing"
        raise UserError(f"{path} has no full matrix of numbers, a row a record; it has {known}")
    labels = _vectors(path, [name for name in shapes if name not in matrices])
    classes: tuple[str, ...] = ()
    if os.path.isdir(source):
        labels = _lists(source, {_ending(name) for name in matrices}) | labels
        classes = _classes(source)
    first = min((found.min() for found in labels.values() if len(found)), default=0)
    parts = {}
    for name, shape in matrices.items():
        own = labels.get(_ending(name))
        if own is not None and len(own) != shape[0]:
            raise UserError(f"{path}: {name!r} has {shape[0]} rows, but there are {len(own)} labels for them")
        own = own - 1 if own is not None and first == 1 else own
        parts[f"{name}.zarr"] = StoreContents(_read(path, name, own), shape[0], classes)
    return parts


def _file(folder: str) -> str:
    found = sorted(glob.glob(os.path.join(glob.escape(folder), "*.mat")))
    if len(found) != 1:
        there = f"{len(found)}: {', '.join(map(os.path.basename, found))}" if found else "none"
        raise UserError(f"{folder} must have one file .mat, and has {there}; name the file itself")
    return found[0]


def _ending(name: str) -> str:
    """Return what the names of matrices and labels that belong together have in common: ``tr`` of ``I_tr``."""
    return name.rpartition("_")[2] if "_" in name else ""


def _is_vector(shape: Shape) -> bool:
    return len(shape) == 2 and 1 in shape


def _load(path: str, name: str) -> np.ndarray:
    loaded: Mapping[str, np.ndarray] = _scipy(path, "loadmat", variable_names=[name])
    return loaded[name]


def _scipy(path: str, function: str, **options: Any) -> Any:
    """Call a function of scipy.io for the file; raise UserError for what it cannot read."""
    try:
        import scipy.io
    except ImportError:
        raise UserError("reading MATLAB files needs SciPy: pip install scipy") from None
    try:
        with naming_errors(path):
            return getattr(scipy.io, function)(path, appendmat=False, **options)
    except UserError:  # a ValueError, too
        raise
    except NotImplementedError:
        raise UserError(f"{path} is of MATLAB's version 7.3 (HDF5); save it with save(..., '-v7')") from None
    except (ValueError, TypeError, scipy.io.matlab.MatReadError) as error:
        raise UserError(f"{path} cannot be read as a MATLAB file: {error}") from None


def _vectors(path: str, names: list[str]) -> dict[str, np.ndarray]:
    """Return the vectors of whole numbers by their ending, as labels."""
    found: dict[str, tuple[str, np.ndarray]] = {}
    for name in names:
        vector, ending = _load(path, name).ravel(), _ending(name)
        if vector.size < 2 or not np.isfinite(vector).all() or not np.array_equal(vector, np.rint(vector)):
            continue
        if ending in found:
            raise UserError(f"{path}: {found[ending][0]!r} and {name!r} could both be labels; keep one of them")
        found[ending] = name, vector.astype(np.int64)
    return {ending: vector for ending, (_, vector) in found.items()}


def _lists(folder: str, endings: set[str]) -> dict[str, np.ndarray]:
    """Return the last columns of the folder's list files by the ending with which their names begin."""
    found = {}
    for ending in filter(None, endings):
        for path in sorted(glob.glob(os.path.join(glob.escape(folder), f"{ending}*.list"))):
            labels = []
            for number, line in enumerate(_lines(path), 1):
                try:
                    labels.append(int(line.split()[-1]))
                except ValueError:
                    raise UserError(f"{path}:{number}: a line ends in a label, an integer, not {line!r}") from None
            found[ending] = np.array(labels, np.int64)
    return found


def _classes(folder: str) -> tuple[str, ...]:
    path = os.path.join(folder, "categories.list")
    return tuple(_lines(path)) if os.path.isfile(path) else ()


def _lines(path: str) -> list[str]:
    with naming_errors(path), open(path, encoding="utf-8", errors="surrogateescape") as file:
        return [line.strip() for line in file if line.strip()]


def _read(path: str, name: str, labels: np.ndarray | None) -> Generator[Batch]:
    data = _load(path, name)
    rows = chunk_rows(data[:1].nbytes)
    for start in range(0, len(data), rows):
        stop = start + rows
        yield Batch(data[start:stop], None if labels is None else labels[start:stop])
