"""Writes a Dataset as an OME-Zarr image with several resolutions and label images, for image viewers."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
import zarr

from dsinga.addons.fields.microscopes.opening import VERSIONS, image_at, label_names, lazy_variable
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact
from dsinga.base.registry import nearest_or_listed
from dsinga.data.array_kinds import is_a, is_data_array
from dsinga.data.filesystem import exists, zarr_store
from dsinga.data.locations import absolute, join
from dsinga.data.stores.staged_stores import StagedStores, naming_destination

CHUNK = {2: 256, 3: 64}  # points of a chunk along each axis of space, by their number
TIMES = ("t", "time")
CHANNELS = ("c", "channel", "class", "band", "quantile", "parameter", "member", "lead")  # also of predictions


@public
def write_ome_zarr(
    dataset: Any, path: str | os.PathLike[str], *, labels: str | Iterable[str] = (), version: str = "0.5"
) -> None:
    """Write variables of a Dataset as channels and label images of an OME-Zarr image.

    The last two or three dimensions are space, after at most one of time ("t", "time") and one of channels ("c",
    "channel", "class", "band", "quantile", "parameter", "member", "lead"). Coordinates give scale and translation, and
    their attribute "units" the units. Levels halve y and x down to at most 256 points: images are averaged, label
    images keep every second point. A lazy Dataset is computed chunk by chunk.

    Args:
        dataset: an xarray Dataset or DataArray.
        path: where to write; for label images alone, the path of their image.
        labels: the variables that are label images.
        version: "0.5" (zarr format 3) or "0.4" (format 2); label images added later have the version of the image.

    Raises:
        UserError: the path exists, variables do not lie on one grid, a label image has no integers, or coordinates are
            not regular.
    """
    if version not in VERSIONS:
        raise UserError(f"version of OME-Zarr is {' or '.join(map(repr, VERSIONS))}, not {version!r}")
    dataset = dataset.to_dataset(name=str(dataset.name or "image")) if is_data_array(dataset) else dataset
    if not is_a(dataset, "xarray", "Dataset"):
        raise UserError(
            f"write_ome_zarr takes an xarray Dataset or DataArray, not a {type(dataset).__name__}; name the dimensions "
            "of an array: xarray.DataArray(array, dims=('y', 'x'))"
        )
    label_images = _label_images(dataset, (labels,) if isinstance(labels, str) else tuple(labels))
    channels = [str(name) for name in dataset.data_vars if str(name) not in label_images]
    if not channels:
        _add_labels(absolute(path), label_images)
        return
    image = _image(dataset, channels)
    _check_sizes(label_images, dict(image.sizes))
    location = absolute(path)
    with StagedStores() as stores, naming_destination(redact(os.fspath(path))):
        staging = stores.stage(location)
        _write_image(staging, image, version, os.path.basename(location))
        for name, array in label_images.items():
            _write_image(join(staging, f"labels/{name}"), array, version, name, is_label=True)
        _name_labels(staging, version, list(label_images))


def _label_images(dataset: Any, labels: Sequence[str]) -> dict[str, Any]:
    names = [str(name) for name in dataset.data_vars]
    for name in labels:
        if name not in names:
            raise UserError(f"the Dataset has no variable {name!r}{nearest_or_listed(name, names, 'it has')}")
        if dataset[name].dtype.kind not in "iub":
            raise UserError(
                f"the label image {name!r} has {dataset[name].dtype} numbers, but the number of an instance is an "
                f"integer; give ds[{name!r}].astype('int32')"
            )
    return {name: _axes_in_order(dataset[name]) for name in labels}


def _check_sizes(label_images: Mapping[str, Any], sizes: Mapping[str, int]) -> None:
    for name, array in label_images.items():
        if any(sizes.get(dim) != size for dim, size in array.sizes.items()):
            raise UserError(
                f"the label image {name!r} has the sizes {dict(array.sizes)}, but the image {dict(sizes)}; write label "
                "images in the resolution of the image"
            )


def _add_labels(location: str, label_images: Mapping[str, Any]) -> None:
    image, where = image_at(location), redact(location)
    if image is None or not label_images:
        raise UserError(f"{where} is no OME-Zarr image to which label images are added; write them with their image")
    _check_sizes(label_images, image.sizes)
    version = next(each for each, zarr_format in VERSIONS.items() if zarr_format == image.zarr_format)
    known = label_names(location)
    with StagedStores() as stores, naming_destination(where):
        for name, array in label_images.items():
            if name in known or exists(join(location, f"labels/{name}")):
                raise UserError(f"{where} has a label image {name!r}; write this one under another name")
            _write_image(stores.stage(join(location, f"labels/{name}")), array, version, name, is_label=True)
    _name_labels(location, version, [*known, *label_images])


def _image(dataset: Any, names: list[str]) -> Any:
    first = dataset[names[0]]
    for name in names[1:]:
        if dataset[name].dims != first.dims or any(dim in CHANNELS for dim in first.dims):
            raise UserError(
                f"{names[0]!r} has the dimensions {first.dims}, {name!r} {dataset[name].dims}: the channels of an "
                "image lie on one grid without a dimension of channels; write each to an image of its own"
            )
    if len(names) == 1:
        return _axes_in_order(first)
    return _axes_in_order(dataset[names].to_dataarray("c"))


def _axes_in_order(array: Any) -> Any:
    dims = [str(dim) for dim in array.dims]
    front = [dim for dim in dims if dim in TIMES] + [dim for dim in dims if dim in CHANNELS]
    space = [dim for dim in dims if dim not in front]
    if len(space) not in (2, 3) or len(front) != len({dim in TIMES for dim in front}):
        raise UserError(
            f"{array.name!r} has the dimensions {', '.join(dims)}; OME-Zarr has two or three of space, after "
            f"at most one of time ({', '.join(TIMES)}) and one of channels ({', '.join(CHANNELS)}); rename them, or "
            "take a part: ds.isel(...)"
        )
    return array.transpose(*front, *space)


def _name_labels(location: str, version: str, names: Sequence[str]) -> None:
    if names:
        store = zarr_store(join(location, "labels"), read_only=False)
        group = zarr.open_group(store=store, mode="a", zarr_format=VERSIONS[version])
        _set_attributes(group, version, {"labels": list(names)})


def _set_attributes(group: zarr.Group, version: str, metadata: dict[str, Any]) -> None:
    group.attrs.update({"ome": {"version": version, **metadata}} if version == "0.5" else metadata)


def _write_image(location: str, array: Any, version: str, name: str, is_label: bool = False) -> None:
    array = array.astype(np.uint8) if array.dtype.kind == "b" else array
    space = [str(dim) for dim in array.dims if dim not in (*TIMES, *CHANNELS)]
    axes, scale, start = zip(*(_axis(array, str(dim), dim in space) for dim in array.dims), strict=True)
    format_ = VERSIONS[version]
    group = zarr.create_group(store=zarr_store(location, read_only=False), zarr_format=format_)
    chunks = tuple(min(size, CHUNK[len(space)] if dim in space else 1) for dim, size in array.sizes.items())
    datasets: list[dict[str, Any]] = []
    level = array
    while True:
        number = len(datasets)
        factor = [2**number if dim in space[-2:] else 1 for dim in array.dims]
        shift = [a + s * (f - 1) / 2 for a, s, f in zip(start, scale, factor, strict=True)]
        steps = [{"type": "scale", "scale": [s * f for s, f in zip(scale, factor, strict=True)]}]
        steps += [{"type": "translation", "translation": shift}] if any(shift) else []
        datasets.append({"path": str(number), "coordinateTransformations": steps})
        stored = _write_level(group, str(number), level, chunks, format_)
        if max(level.sizes[dim] for dim in space[-2:]) <= CHUNK[2] or min(level.sizes[d] for d in space[-2:]) < 2:
            break
        read = lazy_variable(stored, [str(dim) for dim in array.dims])
        level = _halved(type(array)(read.chunk(read.encoding["preferred_chunks"])), space[-2:], is_label)
    metadata: dict[str, Any] = {"multiscales": [{"name": name, "axes": list(axes), "datasets": datasets}]}
    if version == "0.4":
        metadata["multiscales"][0]["version"] = version
    if is_label:
        metadata["image-label"] = {"source": {"image": "../../"}} | ({"version": version} if version == "0.4" else {})
    elif any(dim in CHANNELS and dim in array.coords for dim in array.dims):
        metadata["omero"] = _channels(array, stored)
    _set_attributes(group, version, metadata)


def _axis(array: Any, dim: str, is_space: bool) -> tuple[dict[str, str], float, float]:
    axis = {"name": dim, "type": "space" if is_space else "time" if dim in TIMES else "channel"}
    if axis["type"] == "channel" or dim not in array.coords or array[dim].dtype.kind not in "iuf":
        return axis, 1.0, 0.0
    values = array[dim].values.astype(np.float64)
    if units := array[dim].attrs.get("units"):
        axis["unit"] = str(units)
    step = float(values[-1] - values[0]) / max(len(values) - 1, 1) if len(values) > 1 else 1.0
    if not step > 0 or np.abs(np.diff(values) - step).max(initial=0) > 1e-3 * step:
        raise UserError(
            f"the coordinate {dim!r} does not increase by equal steps, as OME-Zarr has it; sort it, or drop it: "
            f"ds.drop_vars({dim!r})"
        )
    return axis, float(f"{step:.12g}"), float(f"{values[0]:.12g}")


def _write_level(group: zarr.Group, name: str, array: Any, chunks: tuple[int, ...], format_: int) -> zarr.Array:
    chunks = tuple(min(chunk, size) for chunk, size in zip(chunks, array.shape, strict=True))
    settings: dict[str, Any] = {"chunk_key_encoding": {"name": "v2", "separator": "/"}}
    if format_ == 3:
        settings = {"dimension_names": [str(dim) for dim in array.dims]}
    target = group.create_array(name, shape=array.shape, chunks=chunks, dtype=array.dtype, **settings)
    array.variable.chunk(dict(zip(array.dims, chunks, strict=True))).data.store(target, lock=False)
    return target


def _halved(array: Any, dims: Iterable[str], is_label: bool) -> Any:
    """Halve an image along y and x for the next resolution; a last odd point is dropped."""
    if is_label:
        return array.isel({dim: slice(0, array.sizes[dim] // 2 * 2, 2) for dim in dims})
    mean = array.coarsen(dict.fromkeys(dims, 2), boundary="trim").mean()
    return (mean if array.dtype.kind == "f" else mean.round()).astype(array.dtype)


def _channels(array: Any, smallest: zarr.Array) -> dict[str, Any]:
    """Return the names of channels, and their ranges in the smallest level, for viewers."""
    (axis,) = (place for place, dim in enumerate(array.dims) if dim in CHANNELS)
    channels = []
    for number, label in enumerate(array[array.dims[axis]].values):
        numbers = np.asarray(smallest[(slice(None),) * axis + (number,)])
        finite = numbers[np.isfinite(numbers)]
        low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 1.0)
        high = high if high > low else math.nextafter(low, math.inf) + 1
        window = {"start": low, "end": high, "min": low, "max": high}
        channels.append({"label": str(label), "color": "FFFFFF", "active": True, "window": window})
    return {"channels": channels}
