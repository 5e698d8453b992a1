"""Turns missing values into NaN, whether CF attributes or numpy masks mark them."""

from __future__ import annotations

import base64
import binascii
import contextlib
import itertools
import logging
import math
import struct
import warnings
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import listed
from dsinga.data.array_kinds import is_a, is_data_array, is_of, with_origins

ATTRIBUTES = ("_FillValue", "missing_value")
UNPACKED = {"scale_factor": 1, "add_offset": 0}  # of attributes that say how numbers are packed, the plain values
# What dask arrays are called, before a dash and a hash, after operations that move numbers but do not change them.
_MOVES = {"from-zarr", "array", "getitem", "transpose", "concatenate", "stack", "reshape", "blocks", "astype"}
logger = logging.getLogger(__name__)


def with_nan(value: Any, name: str, is_label: bool = False) -> Any:
    """Put NaN in place of missing values in an array of numpy, zarr, HDF5, Dask or xarray.

    Zarr arrays, and HDF5 arrays with missing values, become numpy arrays. Numbers in files of xarray, or of Dask, are
    decoded when they are read. Zarr chunks that are not stored are logged, less loudly with ``is_label``: labels often
    lack chunks.

    Raises:
        UserError: a mask hides numbers of a numpy array; numbers are packed, or are integers that cannot be NaN.
    """
    if is_a(value, "xarray", "Dataset") or is_data_array(value):
        from dsinga.data.sources.xarray_files import reading_files  # which imports xarray

        value = reading_files(value)
    if is_a(value, "xarray", "Dataset"):
        return decoded_dataset(value)
    if is_data_array(value):
        variable = _decoded_variable(value.variable, value.name or "x", value.indexes)
        return value if variable is value.variable else type(value)(variable, value.coords, name=value.name)
    if is_a(value, "dask.array", "Array"):
        return _decoded_dask(value, name, is_label)
    parts = value if isinstance(value, list) else [value]
    if any(_is_masked_array(part) and np.ma.is_masked(part) for part in parts):
        raise UserError(f"{name!r} has masked numbers; fill them: {name}.filled(0)")
    if not hasattr(value, "attrs") or not isinstance(getattr(value, "dtype", None), np.dtype):
        return value
    values = _named(missing_values, value, name)
    if is_of(value, "zarr", "Array"):
        from dsinga.data.stores.missing_chunks import CheckedArray  # which arrays do not need

        return as_nan(CheckedArray(value, is_label)[()], values)
    return as_nan(np.asarray(value), values) if values else value


def check_decoded(variable: Any, name: str) -> None:
    """Raise UserError for an xarray variable with packed numbers or missing values that were not decoded."""
    _named(missing_values, variable, name)


def _named(function: Any, value: Any, name: Any) -> Any:
    try:
        return function(value)
    except UserError as error:
        raise UserError(
            f"{name!r} has {error}; open it with xarray, which decodes it (mask_and_scale=True, or xarray.decode_cf), "
            "and give that"
        ) from None


def missing_values(array: Any) -> tuple[float, ...]:
    """Return the numbers that mark missing values by an array's attributes, except NaN."""
    attributes = dict(array.attrs)
    values = {name: value for name in ATTRIBUTES if (value := attributes.get(name)) is not None}
    metadata = getattr(array, "metadata", None)
    is_of_xarray = "_ARRAY_DIMENSIONS" in attributes and getattr(metadata, "zarr_format", None) == 2
    if is_of_xarray and array.fill_value not in (None, 0):  # 0 is what zarr puts where nobody has set one
        values.setdefault("_FillValue", array.fill_value)
    packed = [name for name, plain in UNPACKED.items() if np.any(attributes.get(name, plain) != plain)]
    if array.dtype.kind in "iu":
        packed += values
    if packed:
        raise UserError(f"the attribute {packed[0]}, so that its {array.dtype} numbers do not stand for themselves")
    if array.dtype.kind != "f":
        return ()
    numbers = [number for name, value in values.items() for number in _numbers(name, value)]
    return tuple(dict.fromkeys(array.dtype.type(n).item() for n in numbers if not math.isnan(n)))


def _numbers(name: str, value: Any) -> list[float]:
    """Read an attribute's numbers, also from xarray's base64 of a float64 in zarr 3."""
    parts = value if isinstance(value, (list, tuple)) else np.ravel(value).tolist()
    try:
        return [_from_text(part) if isinstance(part, str) else float(part) for part in parts]
    except (TypeError, ValueError, binascii.Error, struct.error):
        raise UserError(f"the attribute {name} = {value!r:.40}, which is no number") from None


def _from_text(text: str) -> float:
    try:
        return float(text)
    except ValueError:
        number: float = struct.unpack("<d", base64.b64decode(text, validate=True))[0]
        return number


def as_nan(numbers: np.ndarray, values: tuple[float, ...]) -> np.ndarray:
    """Return floats with NaN in place of ``values``; the same array if it has none of them."""
    if not values or numbers.dtype.kind != "f":
        return numbers
    is_missing = np.isin(numbers, np.array(values, numbers.dtype)) if len(values) > 1 else numbers == values[0]
    if not is_missing.any():
        return numbers
    numbers = numbers.copy()
    numbers[is_missing] = np.nan
    return numbers


def _is_masked_array(value: Any) -> bool:
    return is_a(value, "numpy.ma", "MaskedArray")


def plain_array(numbers: Any, name: str) -> np.ndarray:
    """Return computed numbers as a numpy array, with NaN where a mask hides floats."""
    if not _is_masked_array(numbers):
        return np.asarray(numbers)
    if not np.ma.is_masked(numbers):
        return np.asarray(numbers.data)
    if numbers.dtype.kind != "f":
        raise UserError(f"{name!r} has masked numbers; fill them: {name}.filled(0)")
    filled: np.ndarray = numbers.filled(np.nan)
    return filled


def values_text(values: tuple[float, ...]) -> str:
    """List the numbers that mark missing values, for messages."""
    return f"{listed(f'{value:g}' for value in values)} means missing, by its attributes"


def _decoded_dask(array: Any, name: str, is_label: bool) -> Any:
    """Return a dask array with NaN for masked numbers and missing values of its zarr arrays."""
    if _is_masked_array(array._meta):
        array = array.map_blocks(plain_array, name, meta=np.empty((0,) * array.ndim, array.dtype))
    origins: list[Any] = []

    def checked(value: Any) -> Any:
        if type(value).__module__.startswith("xarray."):
            from dsinga.data.sources.xarray_files import checked_array  # which imports xarray

            return checked_array(value, name)
        if not hasattr(value, "attrs") or not isinstance(getattr(value, "dtype", None), np.dtype):
            return None
        origins.append(value)
        if not is_of(value, "zarr", "Array"):
            return None
        from dsinga.data.stores.missing_chunks import CheckedArray  # which other arrays do not need

        return CheckedArray(value, is_label)

    array = with_origins(array, checked)
    layers = getattr(array.__dask_graph__(), "layers", {})
    if not origins:
        return array
    if all(key.startswith("original-") or f"original-{key}" in layers or _is_move(key) for key in layers):
        each = [_named(missing_values, origin, name) for origin in origins]
        values = tuple(dict.fromkeys(itertools.chain(*each)))
        return array.map_blocks(as_nan, values, meta=array._meta) if values else array
    for origin in origins:
        with contextlib.suppress(UserError):  # of packed numbers, which it unpacks
            if values := missing_values(origin):
                logger.warning(
                    "the dask array %r computes with numbers of which %s; leave them out before",
                    name,
                    values_text(values),
                )
    return array


def _is_move(key: str) -> bool:
    """Whether a layer of a Dask graph, by its name, only slices or copies numbers."""
    return key.startswith("rechunk") or key.rpartition("-")[0] in _MOVES


def decoded_dataset(dataset: Any) -> Any:
    """Put NaN in place of missing values in a Dataset, as ``xarray.open_dataset`` does by default."""
    changed = {}
    for name, variable in dataset.variables.items():
        with contextlib.suppress(UserError):  # of a variable that may not be used: see check_decoded
            decoded = _decoded_variable(variable, name, dataset.indexes)
            if decoded is not variable:
                changed[name] = decoded
    return dataset.assign(changed) if changed else dataset


def _decoded_variable(variable: Any, name: Any, indexes: Any) -> Any:
    if name in indexes or variable.dtype.kind not in "iuf" or not {*ATTRIBUTES, *UNPACKED} & variable.attrs.keys():
        return variable
    values = _named(missing_values, variable, name)
    if not values:
        return variable
    attributes = {key: value for key, value in variable.attrs.items() if key not in ATTRIBUTES}
    if variable.chunks is None and getattr(variable, "_in_memory", True):
        decoded = variable.copy(data=as_nan(np.asarray(variable.values), values))
    else:
        from xarray import conventions

        encoded = variable.copy(deep=False)
        encoded.attrs = {"missing_value": np.array(values, variable.dtype)}
        with warnings.catch_warnings():  # that there are several
            warnings.filterwarnings("ignore", ".*multiple fill values")
            decoded = conventions.decode_cf_variable(name, encoded, decode_times=False, decode_timedelta=False)
    decoded.attrs = attributes
    return decoded
