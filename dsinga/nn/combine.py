"""Layers with several sources, layers with several parts, and layers of any other type."""

from __future__ import annotations

import functools
from typing import Any

from dsinga.errors import UserError
from dsinga.job import LayerConf, LayerType
from dsinga.job.message import field_types
from dsinga.nn.arguments import COMMON, layer
from dsinga.nn.feature import Feature
from dsinga.nn.keras_arguments import check_names
from dsinga.nn.symbol import LayerBuilder
from dsinga.nn.writer import LayerWriter, Write
from dsinga.registry import nearest, registered


@layer
def Add() -> Write:
    """Elementwise sum of its sources (kAdd): ``nn.Add()([x, y])``."""
    return lambda writer: writer.add("kAdd")


@layer
def Multiply() -> Write:
    """Elementwise product of its sources (kMultiply)."""
    return lambda writer: writer.add("kMultiply")


@layer
def Concatenate(axis: int = -1) -> Write:
    """Its sources, joined along ``axis`` (kConcate); -1 is the last one, the channels of images are axis 1."""

    def write(writer: LayerWriter) -> Feature:
        if not writer.sources:
            raise writer.fail("takes several sources, as in nn.Concatenate()([x, y])")
        count = len(writer.rows(writer.sources[0])) + 1
        return writer.add("kConcate", concate_conf={"concate_dim": axis % count})

    return write


@layer
def Slice(parts: int, axis: int = 1) -> Write:
    """Its source, cut in ``parts`` along ``axis`` (kSlice): calling it gives a list of as many features."""

    def write(writer: LayerWriter) -> Feature:
        count = len(writer.rows(writer.source)) + 1
        settings = {"slice_dim": axis % count, "num_slices": parts}
        return hand_out(writer, writer.add("kSlice", slice_conf=settings))

    return write


@layer
def Split(parts: int) -> Write:
    """Its source, ``parts`` times (kSplit); nets need none, because one is added where a feature is used twice."""
    return lambda writer: hand_out(writer, writer.add("kSplit", split_conf={"num_splits": parts}))


def hand_out(writer: LayerWriter, whole: Feature) -> Feature:
    """Write a kDummy layer for each part, because the engine hands out parts in the order of the layers of the net."""
    parts = (writer.extra(f"{number}", "kDummy", part) for number, part in enumerate(whole.parts))
    return whole._replace(parts=tuple(parts))


def Layer(type: str, **fields: Any) -> LayerBuilder:
    """Return a layer of any type, also of a user's: ``nn.Layer("kLRN", lrn_conf={"local_size": 3})``.

    ``fields`` are those of a layer in a job file, and the arguments of every layer. Raises UserError for an unknown
    type or field.
    """
    if not isinstance(type, str):
        raise UserError(f'nn.Layer takes the name of a layer type, as in nn.Layer("kLRN"), not {type!r}')
    known = [*LayerType.__members__, *registered("layer")]
    if type not in known:
        raise UserError(f"there is no layer type {type!r}{nearest(type, known)}")
    own = [name for name in field_types(LayerConf) if name not in ("name", "type", "srclayers", "user_type")]
    check_names(f"Layer({type!r})", [*dict.fromkeys([*COMMON, *own])], fields)
    settings = {name: value for name, value in fields.items() if name not in COMMON}

    def write(writer: LayerWriter) -> Feature:
        return writer.add(type, **settings)

    return LayerBuilder(
        type.removeprefix("k"), write, {**fields, "type": type}, functools.partial(Layer, type, **fields)
    )
