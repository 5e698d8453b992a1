"""The metadata of an OME-Zarr image, versions 0.4 and 0.5: its axes, its levels of resolution and its channels.

https://ngff.openmicroscopy.org/0.4 and https://ngff.openmicroscopy.org/0.5
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Literal

from dsinga.base.errors import UserError

VERSIONS: dict[str, Literal[2, 3]] = {"0.4": 2, "0.5": 3}  # and the format of zarr that each has
WRITE_AGAIN = "write it again as version 0.4 or 0.5, for instance with bioformats2raw or the package ome-zarr"


@dataclass(frozen=True)
class OmeAxis:
    """An axis of an image: its name, its type ("time", "channel", "space" or another) and its unit, "" without."""

    name: str
    type: str = ""
    unit: str = ""


@dataclass(frozen=True)
class OmeLevel:
    """One resolution of an image: the path of its array; point i lies at translation + i·scale along an axis."""

    path: str
    scale: tuple[float, ...]
    translation: tuple[float, ...]


@dataclass(frozen=True)
class Multiscale:
    """An image in several resolutions, the largest first; ``channels`` are the names of its channels, if it has any."""

    version: str
    axes: tuple[OmeAxis, ...]
    levels: tuple[OmeLevel, ...]
    channels: tuple[str, ...] = ()

    @property
    def dims(self) -> tuple[str, ...]:
        """The names of the axes."""
        return tuple(axis.name for axis in self.axes)


def ome_attributes(attributes: Mapping[str, Any]) -> Mapping[str, Any] | None:
    """Return the OME metadata among the attributes of a zarr group; None where it has none.

    Version 0.5 keeps them under the key "ome".
    """
    inner = attributes.get("ome")
    metadata: Mapping[str, Any] = inner if isinstance(inner, Mapping) else attributes
    kinds = {"multiscales": list, "plate": Mapping, "well": Mapping, "bioformats2raw.layout": int}
    return metadata if any(isinstance(metadata.get(key), kind) for key, kind in kinds.items()) else None


def read_multiscale(metadata: Mapping[str, Any], location: str) -> Multiscale:
    """Return the image that the OME metadata of a group describe; of several multiscales the first.

    Raises:
        UserError: the group is a plate, a well or a collection of images; or the metadata have another version, no axes
            or are damaged.
    """
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
    """Return a resolution; the transformations of all resolutions, ``common``, are applied after its own."""
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
