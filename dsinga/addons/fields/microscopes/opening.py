"""Opens an OME-Zarr image (0.4 or 0.5) as an xarray Dataset with its label images by name."""

from __future__ import annotations

import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal, NamedTuple

import numpy as np
import zarr

from dsinga.base.arguments import is_whole
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.redaction import redact, redacted_cause
from dsinga.base.registry import listed
from dsinga.data.filesystem import has_zarr_metadata, resolve, zarr_store
from dsinga.data.locations import join
from dsinga.data.stores.store_faults import check_extent, check_group

VERSIONS: dict[str, Literal[2, 3]] = {"0.4": 2, "0.5": 3}  # and the format of zarr that each has
WRITE_AGAIN = "write it again as version 0.4 or 0.5, for instance with bioformats2raw or the package ome-zarr"


@dataclass(frozen=True)
class OmeAxis:
    """An axis of an image: name, type ("time", "channel", "space" or another), and unit or ""."""

    name: str
    type: str = ""
    unit: str = ""


@dataclass(frozen=True)
class OmeLevel:
    """One resolution of an image: the path of its array, and its grid, where point i lies at translation + i·scale."""

    path: str
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True)
class Multiscale:
    """An image in several resolutions, the largest first, with the names of channels if known."""

    version: str
    axes: tuple[OmeAxis, ...]
    levels: tuple[OmeLevel, ...]
    channels: tuple[str, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(axis.name for axis in self.axes)


def ome_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the OME metadata in the attributes of a zarr group; None if there are none."""
    inner = attributes.get("ome")
    metadata: Mapping[str, Any] = inner if isinstance(inner, Mapping) else attributes
    kinds = {"multiscales": list, "plate": Mapping, "well": Mapping, "bioformats2raw.layout": int}
    return metadata if any(isinstance(metadata.get(key), kind) for key, kind in kinds.items()) else None


def read_multiscale(metadata: Mapping[str, Any], location: str) -> Multiscale:
    """Return the image that a group's OME metadata describe; the first one if there are several."""
    if "multiscales" not in metadata:
        kind, path = ("collection", "0") if "bioformats2raw.layout" in metadata else ("plate or a well", "A/1/0")
        raise UserError(f"{location} is a {kind} of OME-Zarr images; give the path of one in it, such as {path}")
    try:
        (multiscale, *_) = metadata["multiscales"]
        version = str(metadata.get("version") or multiscale.get("version") or "")
        if version and version not in VERSIONS:
            raise UserError(f"{location} is OME-Zarr of version {version}; {WRITE_AGAIN}")
        if not multiscale.get("axes"):
            raise UserError(
                f"{location} has OME metadata without axes, so that nothing says which dimension is y; name them in "
                f'"axes" of its multiscales, or {WRITE_AGAIN}'
            )
        axes = tuple(
            OmeAxis(str(axis["name"]), str(axis.get("type") or ""), str(axis.get("unit") or ""))
            for axis in multiscale["axes"]
        )
        common = multiscale.get("coordinateTransformations") or []
        levels = tuple(_level(level, common, len(axes)) for level in multiscale["datasets"])
        named = (metadata.get("omero") or {}).get("channels") or []
        channels = tuple(str(channel.get("label") or "") for channel in named)
    except (AttributeError, IndexError, KeyError, TypeError, ValueError) as error:
        raise UserError(
            f"the OME metadata of {location} are damaged ({type(error).__name__}: {error}); {WRITE_AGAIN}"
        ) from None
    if len({axis.name for axis in axes}) < len(axes) or not levels:
        raise UserError(f"the OME metadata of {location} have two axes of one name, or no datasets; {WRITE_AGAIN}")
    is_named = len(set(channels)) == len(channels) and all(channels)
    return Multiscale(version, axes, levels, channels if is_named else ())


def _level(level: Mapping[str, Any], common: Sequence[Mapping[str, Any]], axes: int) -> OmeLevel:
    """Read one resolution's metadata; transformations in ``common``, shared by all resolutions, follow its own."""
    scale, translation = [1.0] * axes, [0.0] * axes
    for step in (*level["coordinateTransformations"], *common):
        kind = step["type"]
        if kind == "identity":
            continue
        numbers = [float(number) for number in step[kind]] if kind in ("scale", "translation") else []
        if len(numbers) != axes or not all(map(math.isfinite, numbers)):
            raise ValueError(f"a transformation of type {kind!r} does not have a number for each of the {axes} axes")
        if kind == "scale":
            if min(numbers) <= 0:
                raise ValueError("a scale is not above 0")
            scale = [a * b for a, b in zip(scale, numbers, strict=True)]
            translation = [a * b for a, b in zip(translation, numbers, strict=True)]
        else:
            translation = [a + b for a, b in zip(translation, numbers, strict=True)]
    return OmeLevel(str(level["path"]), tuple(scale), tuple(translation))


MOST_LABELS = 1000  # label images that are opened without their names
MOST_POINTS = 1 << 27  # along an axis; each has a coordinate
IMAGE = "image"  # the variable of the image; label images give their names to variables


class OmeImage(NamedTuple):
    """An image in a zarr group: the group, its metadata, and its path or URL."""

    group: zarr.Group
    multiscale: Multiscale
    location: str

    @property
    def sizes(self) -> dict[str, int]:
        """The points along each axis, in the largest resolution."""
        return dict(_variable(self, self.multiscale.levels[0]).sizes)

    @property
    def zarr_format(self) -> int:
        """The zarr format, 2 or 3."""
        return self.group.metadata.zarr_format


@public
def open_ome_zarr(path: str | os.PathLike[str], level: int | str = 0, labels: str | Iterable[str] | None = None) -> Any:
    """Return one resolution of an OME-Zarr image as a lazy xarray Dataset; reads only metadata.

    The variable "image" has the axes of the image as dimensions, such as (c, z, y, x); a label image may have fewer.
    Coordinates follow from scale and translation, with the units of the axes; channels have their names. The path of an
    image, or of one resolution, such as "cells.ome.zarr/1", also opens with :func:`dsinga.windows`.

    Args:
        path: the path or URL of the group.
        level: the number of the resolution, 0 for the largest, or the path of its array in the group.
        labels: names of the label images to open; all by default.

    Raises:
        UserError: there is no such image, resolution or label image; the image has no axes; or a label image has no
            integers, or another shape than the image.
    """
    location = resolve(path)
    image = image_at(location)
    if image is None:
        raise UserError(f"{redact(location)} is no OME-Zarr image: it is no zarr group with OME metadata")
    return _dataset(image, level, labels)


def open_path_of_image(location: str) -> Any:
    """Open the OME-Zarr image at a location, or one of its resolutions, as a Dataset; None if there is none."""
    if has_zarr_metadata(location) and (image := image_at(location)) is not None:
        return _dataset(image, 0, None)
    folder, _, name = location.rstrip("/").rpartition("/")
    if not folder or not has_zarr_metadata(folder) or _group_at(location) is not None:
        return None
    image = image_at(folder)
    return None if image is None else _dataset(image, name, None)


def image_at(location: str) -> OmeImage | None:
    """Find the OME-Zarr image at a location; None without a zarr group that has OME metadata."""
    group = _group_at(location)
    metadata = None if group is None else ome_attributes(group.attrs)
    if group is None or metadata is None:
        return None
    return OmeImage(group, read_multiscale(metadata, redact(location)), location)


def label_names(location: str) -> list[str]:
    """Return the names of the label images of the image at a location."""
    group = _group_at(join(location, "labels"))
    attributes: Any = {} if group is None else dict(group.attrs)
    inner = attributes.get("ome")
    names = (inner if isinstance(inner, dict) else attributes).get("labels")
    return [str(name) for name in names] if isinstance(names, list) else []


def lazy_variable(array: zarr.Array, dims: Sequence[str]) -> Any:
    """Wrap a zarr array as an xarray Variable that reads it lazily."""
    from xarray import Variable
    from xarray.backends.zarr import ZarrArrayWrapper
    from xarray.core.indexing import LazilyIndexedArray

    encoding = {"preferred_chunks": dict(zip(dims, array.chunks, strict=True)), "chunks": array.chunks}
    wrapper: Any = ZarrArrayWrapper
    return Variable(tuple(dims), LazilyIndexedArray(wrapper(array)), encoding=encoding)


def _group_at(location: str) -> zarr.Group | None:
    try:
        node = zarr.open(store=zarr_store(location, read_only=True), mode="r")
    except Exception:  # of damaged metadata, and of file systems: any class
        return None
    return node if isinstance(node, zarr.Group) else None


def _dataset(image: OmeImage, level: int | str, labels: str | Iterable[str] | None) -> Any:
    try:
        import xarray
    except ImportError:
        raise UserError("OME-Zarr images are opened with xarray: pip install 'dsinga[xarray]'") from None
    multiscale, where = image.multiscale, redact(image.location)
    paths = [each.path for each in multiscale.levels]
    place = paths.index(level) if level in paths else level
    if not is_whole(place, 0) or int(place) >= len(paths):
        raise UserError(f"{where} has no level {level!r}; its levels are {listed(map(repr, paths))}")
    chosen = multiscale.levels[int(place)]
    variable = _variable(image, chosen)
    sizes = dict(variable.sizes)
    coordinates: dict[str, Any] = {}
    for axis, scale, start in zip(multiscale.axes, chosen.scale, chosen.translation, strict=True):
        if axis.type != "channel":
            attributes = {"units": axis.unit} if axis.unit else {}
            coordinates[axis.name] = (axis.name, start + scale * np.arange(sizes[axis.name]), attributes)
        elif len(multiscale.channels) == sizes[axis.name]:
            coordinates[axis.name] = (axis.name, list(multiscale.channels))
    dataset = xarray.Dataset({IMAGE: variable, **dict(_labels(image.location, sizes, labels))}, coordinates)
    dataset.encoding["source"] = image.location if place == 0 else join(image.location, chosen.path)
    return dataset


def _variable(image: OmeImage, level: OmeLevel) -> Any:
    where, dims = f"{redact(image.location)}: the level {level.path!r}", image.multiscale.dims
    try:
        array = image.group[level.path]
    except KeyError:
        raise UserError(f"{where}, which the OME metadata name, is not there; write the image again") from None
    except Exception as error:  # of damaged metadata, and of file systems: any class
        fault = f"{where} cannot be opened ({type(error).__name__}: {error})"
        raise UserError(redact(fault, image.location)) from redacted_cause(error, image.location)
    if not isinstance(array, zarr.Array) or array.ndim != len(dims):
        kind = f"{array.ndim} dimensions" if isinstance(array, zarr.Array) else "no array"
        raise UserError(f"{where} has {kind}, but the OME metadata name {len(dims)} axes ({', '.join(dims)})")
    check_group(image.group, [array])
    check_extent(array, MOST_POINTS)
    return lazy_variable(array, dims)


def _labels(location: str, sizes: dict[str, int], labels: str | Iterable[str] | None) -> Iterator[tuple[str, Any]]:
    known = list(dict.fromkeys(label_names(location)))
    if labels is None and len(known) > MOST_LABELS:
        raise UserError(
            f"{redact(location)} names {len(known):,} label images, more than {MOST_LABELS}; name those to open: "
            "dsinga.data.open_ome_zarr(path, labels=[...])"
        )
    for name in known if labels is None else [labels] if isinstance(labels, str) else labels:
        if name not in known:
            raise UserError(f"{redact(location)} has no label image {name!r}; it has {listed(map(repr, known))}")
        yield name, _label(join(location, f"labels/{name}"), name, sizes)


def _label(location: str, name: str, sizes: dict[str, int]) -> Any:
    where, without = redact(location), "leave it out: dsinga.data.open_ome_zarr(path, labels=[...])"
    image = image_at(location) if ".." not in name.split("/") else None  # which would lead out of the image
    if image is None or name == IMAGE:
        fault = "is no image of OME-Zarr" if image is None else f"has the name of the variable {IMAGE!r}"
        raise UserError(f"the label image {where} {fault}; {without}")
    shapes = []
    for level in image.multiscale.levels:
        variable = _variable(image, level)
        if variable.dtype.kind not in "iub":
            raise UserError(
                f"the label image {where} has {variable.dtype} numbers, but the number of an instance is an integer; "
                f"write it as integers, or {without}"
            )
        channels = [axis.name for axis in image.multiscale.axes if axis.type == "channel"]
        variable = variable.isel({dim: 0 for dim in channels if variable.sizes[dim] == 1})
        if all(sizes.get(dim) == size for dim, size in variable.sizes.items()):
            return variable
        shapes.append(str(dict(variable.sizes)))
    raise UserError(
        f"the label image {where} has the sizes {' or '.join(shapes)}, but the image {sizes}; write label images in "
        f"the resolution of the image, or {without}"
    )
