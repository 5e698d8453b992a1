"""Pooling, padding, cropping and upsampling of images (B, C, H, W) and of volumes (B, C, D, H, W).

A size is a number, or one for each axis: (rows, columns), for volumes (depth, rows, columns).
"""

from __future__ import annotations

from typing import Any, Unpack

from dsinga.base.arguments import unknown_name
from dsinga.base.errors import UserError
from dsinga.nn.words.windows import (
    Padding,
    Sides,
    Size,
    before_and_after,
    one_or_each,
    refuse_channels_last,
    require,
    window,
)
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerArguments, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings

MODES = {"zero": "kZero", "edge": "kEdge", "reflect": "kReflect", "periodic": "kPeriodic"}


@layer
def MaxPooling2D(
    pool_size: Size = 2, strides: Size | None = None, padding: Padding = "valid", **common: Unpack[LayerArguments]
) -> Write:
    """Max pooling of images; windows do not overlap unless ``strides`` are smaller (kPooling).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((16, 32, 32))
        >>> nn.MaxPooling2D(2)(x).shape
        (None, 16, 16, 16)
    """
    return pooling("MAX", 2, pool_size, strides, padding)


@layer
def MaxPooling3D(
    pool_size: Size = 2, strides: Size | None = None, padding: Padding = "valid", **common: Unpack[LayerArguments]
) -> Write:
    """Max pooling of volumes; windows do not overlap unless ``strides`` are smaller (kPooling)."""
    return pooling("MAX", 3, pool_size, strides, padding)


@layer
def AveragePooling2D(
    pool_size: Size = 2, strides: Size | None = None, padding: Padding = "valid", **common: Unpack[LayerArguments]
) -> Write:
    """Mean pooling of images, without counting padding (kPooling)."""
    return pooling("AVG", 2, pool_size, strides, padding)


@layer
def AveragePooling3D(
    pool_size: Size = 2, strides: Size | None = None, padding: Padding = "valid", **common: Unpack[LayerArguments]
) -> Write:
    """Mean pooling of volumes, without counting padding (kPooling)."""
    return pooling("AVG", 3, pool_size, strides, padding)


def pooling(pool: str, axes: int, pool_size: Size, strides: Size | None, padding: Any) -> Write:
    """Return a function that writes a pooling into a job; means ignore padding, as in Keras."""

    def write(writer: LayerWriter) -> Feature:
        if axes == 3:
            require(writer, 3)
        refuse_channels_last(writer)
        fields = window(writer, pool_size, pool_size if strides is None else strides, padding, 2, axes)
        is_padded = "same" in fields or any(name.startswith("pad") for name in fields)
        outside = {"count_include_pad": False} if pool == "AVG" and is_padded else {}
        kind = writer.builder.kind
        return writer.add("kPooling", **layer_settings(kind, "kPooling", {"pool": pool} | fields | outside))

    return write


@layer
def GlobalMaxPooling2D(**common: Unpack[LayerArguments]) -> Write:
    """The maximum of each channel of images (kPooling): (B, C)."""
    return global_pooling("MAX", 2)


@layer
def GlobalMaxPooling3D(**common: Unpack[LayerArguments]) -> Write:
    """The maximum of each channel of volumes (kPooling): (B, C)."""
    return global_pooling("MAX", 3)


@layer
def GlobalAveragePooling2D(**common: Unpack[LayerArguments]) -> Write:
    """The mean of each channel of images (kPooling): (B, C).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((16, 8, 8))
        >>> nn.GlobalAveragePooling2D()(x).shape
        (None, 16)
    """
    return global_pooling("AVG", 2)


@layer
def GlobalAveragePooling3D(**common: Unpack[LayerArguments]) -> Write:
    """The mean of each channel of volumes (kPooling): (B, C)."""
    return global_pooling("AVG", 3)


def global_pooling(pool: str, axes: int) -> Write:
    """Return a function that writes a pooling of each channel to one number into a job."""

    def write(writer: LayerWriter) -> Feature:
        require(writer, axes)
        return writer.add("kPooling", pooling_conf={"pool": pool, "global_pooling": True})._replace(flat=True)

    return write


@layer
def AdaptiveMaxPooling2D(output_size: Size, **common: Unpack[LayerArguments]) -> Write:
    """Max pooling of images to ``output_size``, with windows that divide the image evenly (kPooling)."""
    return adaptive_pooling("MAX", 2, output_size)


@layer
def AdaptiveMaxPooling3D(output_size: Size, **common: Unpack[LayerArguments]) -> Write:
    """Max pooling of volumes to ``output_size``, with windows that divide the volume evenly (kPooling)."""
    return adaptive_pooling("MAX", 3, output_size)


@layer
def AdaptiveAveragePooling2D(output_size: Size, **common: Unpack[LayerArguments]) -> Write:
    """Mean pooling of images to ``output_size``, with windows that divide the image evenly (kPooling)."""
    return adaptive_pooling("AVG", 2, output_size)


@layer
def AdaptiveAveragePooling3D(output_size: Size, **common: Unpack[LayerArguments]) -> Write:
    """Mean pooling of volumes to ``output_size``, with windows that divide the volume evenly (kPooling)."""
    return adaptive_pooling("AVG", 3, output_size)


def adaptive_pooling(pool: str, axes: int, output_size: Size) -> Write:
    """Return a function that writes a pooling over evenly divided windows into a job."""

    def write(writer: LayerWriter) -> Feature:
        require(writer, axes)
        sizes = one_or_each(writer, output_size, axes)
        return writer.add(
            "kPooling", **layer_settings(writer.builder.kind, "kPooling", {"pool": pool, "output_size": sizes})
        )

    return write


@layer
def Padding2D(
    padding: Sides = 1,
    padding_mode: str | tuple[str, str] = "zero",
    value: float = 0.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Adds pixels on every side of images (kPadding); "zero" adds ``value``.

    ``padding_mode`` is "zero", "edge", "reflect" (without the edge), "periodic" (the opposite side), or one for each
    axis. ``padding`` is a number, (rows, columns), or ((above, below), (left, right)).
    """
    return padded(2, padding, padding_mode, value)


@layer
def Padding3D(
    padding: Sides = 1,
    padding_mode: str | tuple[str, ...] = "zero",
    value: float = 0.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Adds points on every side of volumes (kPadding); "zero" adds ``value``."""
    return padded(3, padding, padding_mode, value)


@layer
def ZeroPadding2D(padding: Sides = 1, **common: Unpack[LayerArguments]) -> Write:
    """Adds ``padding`` pixels of zeros on every side of images (kPadding)."""
    return padded(2, padding, "zero")


@layer
def ZeroPadding3D(padding: Sides = 1, **common: Unpack[LayerArguments]) -> Write:
    """Adds ``padding`` points of zeros on every side of volumes (kPadding)."""
    return padded(3, padding, "zero")


def padded(axes: int, padding: Any, padding_mode: Any, value: float = 0.0) -> Write:
    """Return a function that writes a padding of images or volumes into a job."""
    words = [padding_mode] if isinstance(padding_mode, str) else [*padding_mode]

    def write(writer: LayerWriter) -> Feature:
        require(writer, axes)
        for word in words:
            if word not in MODES:
                raise writer.fail(str(unknown_name("padding_mode", word, MODES)))
        modes = {} if {*words} == {"zero"} else {"mode": [MODES[word] for word in words]}
        fields = {**before_and_after(writer, padding, axes), **modes, **({"value": value} if value else {})}
        return writer.add("kPadding", **layer_settings(writer.builder.kind, "kPadding", fields))

    return write


@layer
def Cropping2D(cropping: Sides = 0, **common: Unpack[LayerArguments]) -> Write:
    """Removes ``cropping`` pixels on each side of images (kCropping); sizes as in ``padding`` of Padding2D."""
    return cropped(2, cropping)


@layer
def Cropping3D(cropping: Sides = 0, **common: Unpack[LayerArguments]) -> Write:
    """Removes ``cropping`` points on each side of volumes (kCropping)."""
    return cropped(3, cropping)


def cropped(axes: int, cropping: Any) -> Write:
    """Return a function that writes a cropping of images or volumes into a job."""

    def write(writer: LayerWriter) -> Feature:
        require(writer, axes)
        fields = before_and_after(writer, cropping, axes)
        return writer.add("kCropping", **layer_settings(writer.builder.kind, "kCropping", fields))

    return write


@layer
def UpSampling2D(size: Size = 2, interpolation: str = "nearest", **common: Unpack[LayerArguments]) -> Write:
    """Makes images ``size`` times as large with repeated ("nearest") or interpolated ("bilinear") pixels."""
    return upsampled("UpSampling2D", 2, size, interpolation, "bilinear")


@layer
def UpSampling3D(size: Size = 2, interpolation: str = "nearest", **common: Unpack[LayerArguments]) -> Write:
    """Makes volumes ``size`` times as large with repeated ("nearest") or interpolated ("trilinear") points."""
    return upsampled("UpSampling3D", 3, size, interpolation, "trilinear")


def upsampled(name: str, axes: int, size: Size, interpolation: str, linear: str) -> Write:
    """Return a function that writes an upsampling into a job; raise UserError for an unknown interpolation."""
    methods = {"nearest": None, linear: "kLinear"}
    if interpolation not in methods:
        raise UserError(f"{name}: {unknown_name('interpolation', interpolation, methods)}")

    def write(writer: LayerWriter) -> Feature:
        require(writer, axes)
        given = {"factor": one_or_each(writer, size, axes), "method": methods[interpolation]}
        return writer.add("kUpsampling", **layer_settings(name, "kUpsampling", given))

    return write
