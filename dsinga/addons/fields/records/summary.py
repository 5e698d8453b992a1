"""A Dataset's summary for ``dsinga data info``: dimensions, and samples of variables."""

from __future__ import annotations

import math
import os
from collections.abc import Iterator
from typing import Any

import numpy as np
import zarr

from dsinga.addons.fields.microscopes.opening import image_at
from dsinga.addons.fields.records.dataset import open_dataset
from dsinga.addons.fields.records.group_members import check_members
from dsinga.addons.fields.records.readers import VariableReader
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.data.array_kinds import label_text
from dsinga.data.filesystem import has_zarr_metadata, resolve
from dsinga.data.inspection import SAMPLED_BLOCKS, statistics
from dsinga.data.sources.zarr_source import DATA_NAMES, arrays_of, open_zarr

NETCDF = (".nc", ".nc4", ".cdf", ".h5", ".hdf5")
SAMPLE_BYTES = 1 << 20  # of a variable that are read at once


def is_dataset(source: str | os.PathLike[str]) -> bool:
    """Whether a path or URL is a Dataset: netCDF, OME-Zarr, or a zarr group with coordinates.

    A group that has records by their usual name, such as "x" or "images", holds records.
    """
    try:
        location = resolve(source)
        if location.endswith(NETCDF):
            return True
        node = open_zarr(location) if location.endswith(".zarr") or has_zarr_metadata(location) else None
    except UserError:  # which opening it as records tells
        return False
    if not isinstance(node, zarr.Group) or "dsinga" in node.attrs:
        return False
    if image_at(location) is not None:
        return True
    check_members(location)
    arrays = arrays_of(node)
    if not arrays or any(name.lower() in DATA_NAMES for name in arrays):  # none, too, where they cannot be listed
        return False
    return len(arrays) < sum(1 for _ in node.arrays())


@register("data", "dataset")
def summary_of(source: str | os.PathLike[str], label: str | None) -> dict[str, Any] | None:
    """Return :func:`describe_dataset` for ``dsinga data info``; None for other paths.

    With a ``label``, the source is described as records instead.
    """
    return describe_dataset(source) if label is None and is_dataset(source) else None


@public
def describe_dataset(source: str | os.PathLike[str]) -> dict[str, Any]:
    """Return a summary of the Dataset at a path or URL, computed in bounded memory.

    Keys: ``location``, ``kind``: its location, and "Dataset". ``dimension NAME``: its points, the first and the last
    coordinate, and the step between points. ``variable NAME``: its dimensions, dtype, chunks, unit and long name; and
    of up to 16 parts spread over its first dimension, the range, the mean, the standard deviation, and the share of
    NaN. ``raw_bytes``: the bytes of all variables in memory.
    """
    dataset, path = open_dataset(resolve(source))
    facts: dict[str, Any] = {"location": path, "kind": "Dataset; cut windows out of it with dsinga.windows"}
    for dim in map(str, dataset.sizes):
        facts[f"dimension {dim}"] = _dimension(dataset, dim)
    for name in map(str, dataset.data_vars):
        facts[f"variable {name}"] = _variable(dataset[name], name)
    facts["raw_bytes"] = sum(dataset[name].nbytes for name in dataset.data_vars)
    dataset.close()
    return facts


def _dimension(dataset: Any, dim: str) -> str:
    length = dataset.sizes[dim]
    text = f"{length} points"
    if dim not in dataset.coords:
        return text
    values = dataset[dim].values
    text += f", {label_text(values[0])} to {label_text(values[-1])}"
    if length < 2 or values.dtype.kind not in "iufM":
        return text
    steps = np.unique(np.diff(values))
    if values.dtype.kind == "M":
        seconds = steps.astype("timedelta64[s]").astype(np.int64)
        words = [f"{number / 3600:g} h" for number in (seconds[0], seconds[-1])]
    else:
        words = [f"{float(number):.6g}" for number in (steps[0], steps[-1])]
    return f"{text}, every {' to '.join(dict.fromkeys(words))}"


def _variable(array: Any, name: str) -> str:
    words = [f"({', '.join(map(str, array.dims))}) {array.dtype}"]
    try:
        reader = VariableReader(array.variable, name)
    except UserError:  # dates and texts
        return words[0]
    if reader.chunk_shape:
        words.append(f"chunks {reader.chunk_shape}")
    words += [str(array.attrs[key]) for key in ("units", "long_name") if key in array.attrs]
    sizes: list[int] = []
    sample = statistics(_parts(reader, sizes))
    if "min" in sample:
        words.append(f"{sample['min']:g} to {sample['max']:g}, mean {sample['mean']:g}, std {sample['std']:g}")
    if "nonfinite" in sample:
        words.append(f"{sample['nonfinite'] / sum(sizes):.1%} NaN")
    if sum(sizes) < array.size:
        words.append(f"from {sum(sizes) / array.size:.2g} of it")
    return "; ".join(words)


def _parts(reader: VariableReader, sizes: list[int]) -> Iterator[np.ndarray]:
    """Sample up to 16 parts along a variable's first dimension; append their sizes to ``sizes``."""
    length, *others = reader.shape or (1,)
    points = max(1, min(SAMPLE_BYTES // max(4 * math.prod(others), 1), -(-length // SAMPLED_BLOCKS)))
    blocks = -(-length // points)
    for number in np.unique(np.linspace(0, blocks - 1, SAMPLED_BLOCKS).round().astype(int)).tolist():
        region = (slice(number * points, min((number + 1) * points, length)), *(slice(0, size) for size in others))
        part = reader.read(region if reader.dims else ()).reshape(-1)
        sizes.append(part.size)
        yield part
