"""Layers that reshape or reorder their inputs: flatten, slice, concatenate, reshape, permute and repeat."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Unpack

from dsinga.nn.writing.feature import Feature, axis_of, row_shape
from dsinga.nn.writing.symbol import LayerArguments, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings, simple


@layer
def Flatten(**common: Unpack[LayerArguments]) -> Write:
    """Flattens each row to a vector (B, n), by a kReshape layer unless the next layer flattens its source.

    The numbers keep their order: channels, rows, columns for images (in Keras, channels are last).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((3, 8, 8))
        >>> nn.Flatten()(x).shape
        (None, 192)
    """

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        return source._replace(flat=source.shape is not None and len(source.shape) > 1, is_input=False)

    return write


@layer
def Concatenate(axis: int = -1, **common: Unpack[LayerArguments]) -> Write:
    """Joins sources along ``axis`` (kConcate), by default the last; the channels of images are axis 1.

    If records have channels last, axes count in that order: -1 is the axis of the channels.

    Examples:
        >>> from dsinga import nn
        >>> left, right = nn.Input(3, name="left"), nn.Input(5, name="right")
        >>> nn.Concatenate()([left, right]).shape
        (None, 8)
    """

    def write(writer: LayerWriter) -> Feature:
        if not writer.sources:
            raise writer.fail("takes several sources, as in nn.Concatenate()([x, y])")
        first = writer.sources[0]
        return writer.add("kConcate", concate_conf={"concate_dim": axis_of(first, axis, writer.rows(first))})

    return write


@layer
def Slice(parts: int, axis: int = 1, **common: Unpack[LayerArguments]) -> Write:
    """Cuts its source into ``parts`` along ``axis`` (kSlice); a call returns a list of their features."""

    def write(writer: LayerWriter) -> Feature:
        slice_dim = axis_of(writer.source, axis, writer.rows(writer.source))
        settings = {"slice_dim": slice_dim, "num_slices": parts}
        return hand_out(writer, writer.add("kSlice", slice_conf=settings))

    return write


@layer
def Split(parts: int, **common: Unpack[LayerArguments]) -> Write:
    """Copies its source ``parts`` times (kSplit); nets add this layer themselves if a feature is used twice."""
    return lambda writer: hand_out(writer, writer.add("kSplit", split_conf={"num_splits": parts}))


def hand_out(writer: LayerWriter, whole: Feature) -> Feature:
    """Write a kDummy layer for each part of a layer's output: nets assign parts in the order of the layers."""
    parts = (writer.extra(f"{number}", "kDummy", part) for number, part in enumerate(whole.parts))
    return whole._replace(parts=tuple(parts))


@layer
def Reshape(target_shape: Sequence[int], **common: Unpack[LayerArguments]) -> Write:
    """Reshapes rows (kReshape); one size may be -1, to be computed.

    The numbers keep their order; if records have channels last, the order of the records.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input(64)
        >>> nn.Reshape((1, 8, 8))(x).shape
        (None, 1, 8, 8)
    """
    conf = layer_settings("Reshape", "kReshape", {"shape": target_shape})

    def write(writer: LayerWriter) -> Feature:
        feature = writer.add("kReshape", sources=pixels_first(writer), **conf)
        axes = len(target_shape) if isinstance(target_shape, (list, tuple)) else 1
        return channels_back(writer, feature) if writer.source.channels_last and axes in (3, 4) else feature

    return write


@layer
def Permute(dims: Sequence[int], **common: Unpack[LayerArguments]) -> Write:
    """Puts the axes of rows in the order ``dims``, counted from 1 (kPermute): (2, 1) transposes matrices.

    If records have channels last, axes count in that order.
    """
    conf = layer_settings("Permute", "kPermute", {"dims": dims})

    def write(writer: LayerWriter) -> Feature:
        axes = len(row_shape(writer.source) or ())
        if not writer.source.channels_last or axes != len(dims) or axes not in (3, 4):
            return writer.add("kPermute", **conf)
        inside = [axis % axes + 1 for axis in dims]
        return writer.add("kPermute", **layer_settings("Permute", "kPermute", {"dims": [*inside[-1:], *inside[:-1]]}))

    return write


def pixels_first(writer: LayerWriter) -> list[Feature]:
    """Move the channels of the source to the end by a kPermute layer, if records have channels last."""
    source = writer.source._replace(flat=False)
    axes = len(source.shape or ())
    if not source.channels_last or axes not in (3, 4):
        return [writer.source]
    return [writer.extra("pixels", "kPermute", source, permute_conf={"dims": [*range(2, axes + 1), 1]})]


def channels_back(writer: LayerWriter, feature: Feature) -> Feature:
    """Move the channels of images from the last axis to the first by a kPermute layer."""
    axes = len(row_shape(feature) or ())
    return writer.extra("channels", "kPermute", feature, permute_conf={"dims": [axes, *range(1, axes)]})


@layer
def RepeatVector(n: int, **common: Unpack[LayerArguments]) -> Write:
    """Repeats its source at each of ``n`` steps (kRepeat): (B, ...) to (B, n, ...), also of images."""
    return simple("RepeatVector", "kRepeat", times=n)
