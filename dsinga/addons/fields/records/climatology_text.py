"""A climatology as the text that a job, a checkpoint and a saved model keep: float32 numbers, compressed, in base64."""

from __future__ import annotations

import base64
import functools
import json
import zlib
from typing import Any

import numpy as np

from dsinga.addons.fields.records.climatology import FieldClimatology
from dsinga.base.errors import UserError
from dsinga.base.regular_files import parse_json

# The number of the climatology that was subtracted, in the encoding of a variable, which arithmetic and files lose, and
# as two coordinates, which they keep: one along time, without which nothing is joined along it, and a scalar, which
# resampling of time keeps, too.
DEPARTURE = "dsinga_departure"
MARKS = (DEPARTURE, "dsinga_climatology")
MOST_NUMBERS = 1 << 22  # that a job keeps, in up to 21 MiB of text


def as_text(climatology: FieldClimatology) -> str:
    """Return the text of a climatology. Raises UserError for one that is too large to be kept with a net."""
    means = climatology.means
    size = sum(array.size for array in means.values())
    if size > MOST_NUMBERS:
        raise UserError(
            f"the climatology has {size} numbers, and a net keeps at most {MOST_NUMBERS}; subtract it from the data: "
            "dataset - climatology.at(dataset.time), and add it to predictions"
        )
    parts = {str(name): _packed(array.variable, np.float32) for name, array in means.items()}
    points = {str(dim): _packed(means[dim].variable, means[dim].dtype) for dim in means.dims if dim in means.indexes}
    return json.dumps({"means": parts, "points": points})


def _packed(variable: Any, dtype: Any) -> dict[str, Any]:
    values = np.ascontiguousarray(variable.values, dtype)
    if values.dtype.kind in "OT" and all(isinstance(value, str) for value in values.flat):  # as files have texts
        values = values.astype(str)
    if values.dtype.kind not in "iufU":
        raise UserError(
            f"the climatology has coordinates of {values.dtype} along {variable.dims[0]!r}; give numbers or texts"
        )
    values = values.astype(values.dtype.newbyteorder("<"))
    data = base64.b64encode(zlib.compress(values.tobytes())).decode()
    return {"dims": list(map(str, variable.dims)), "shape": list(values.shape), "dtype": values.dtype.str, "data": data}


@functools.lru_cache(maxsize=4)
def climatology_of(text: str) -> FieldClimatology:
    """Return the climatology of a text. Raises UserError for a damaged one."""
    import xarray

    try:
        parts = parse_json(text)
        means, points = ({name: _unpacked(part) for name, part in parts[key].items()} for key in ("means", "points"))
        return FieldClimatology(xarray.Dataset(means, points))
    except (ValueError, TypeError, KeyError, AttributeError, zlib.error) as error:
        raise UserError(f"the climatology of the windows is damaged ({error}); train again, or leave it out") from None


def _unpacked(part: dict[str, Any]) -> Any:
    dtype, shape = np.dtype(part["dtype"]), tuple(part["shape"])
    size = int(np.prod(shape)) * dtype.itemsize
    if dtype.kind not in "iufU" or not 0 <= size <= 8 * MOST_NUMBERS:
        raise ValueError(f"{part['dtype']} {shape}")
    data = zlib.decompressobj().decompress(base64.b64decode(part["data"], validate=True), size + 1)
    return part["dims"], np.frombuffer(data, dtype).reshape(shape)
