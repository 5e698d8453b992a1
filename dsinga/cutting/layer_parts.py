"""Makes a worker's part of a layer that is cut by features or space, and checks the part's shape and params."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Columns
from dsinga.layers.interface.contract import check_layer
from dsinga.layers.interface.layer import Layer, Shape
from dsinga.layers.interface.region import Region


def make_part(layer: Layer, source_shapes: Sequence[Shape], columns: Columns) -> Layer:
    """Return a layer that computes only ``columns`` of the feature of ``layer``, for one worker.

    ``source_shapes`` are of the same columns of its sources (kOneToOne) or of whole sources (kOneToAll).
    """
    cls, length, axis = type(layer), columns.stop - columns.start, layer.cut.axis
    part = layer.part(layer.cut_conf(columns), source_shapes)
    check_layer(part)
    part.columns = columns
    expected = (*layer.shape[:axis], length, *layer.shape[axis + 1 :])
    if part.shape != expected:
        raise layer.fail(
            f"{cls.__name__}.cut_conf must make {shape_text(layer.shape)} into {shape_text(expected)}, "
            f"not {shape_text(part.shape)}"
        )
    if len(part.params) != len(layer.params):
        raise layer.fail(
            f"{cls.__name__} has {len(layer.params)} params, but {len(part.params)} for {length} of {columns.total} "
            "columns; make as many for any columns, or leave the connection of its cut at None"
        )
    for spec, part_spec in zip(layer.params, part.params, strict=True):
        shape = spec.shape if spec.cut_axis is None else cut_shape(spec.shape, spec.cut_axis, columns)
        if part_spec.shape != shape:
            raise layer.fail(
                f"the part of param {spec.role!r}, {shape_text(spec.shape)}, for {length} of {columns.total} columns "
                f"must be {shape_text(shape)}, not {shape_text(part_spec.shape)}; correct its cut_axis"
            )
    return part


def make_region_part(layer: Layer, source_shapes: Sequence[Shape], region: Region) -> Layer:
    """Return a layer that computes only the points ``region`` of ``layer``, for one worker."""
    part = layer.region_part(region, source_shapes)
    check_layer(part)
    part.region = region
    cls, expected = type(layer), region.part(layer.field_shape)
    if part.field_shape != expected:
        raise layer.fail(
            f"{cls.__name__}.region_part must make {shape_text(layer.field_shape)} into {shape_text(expected)}, not "
            f"{shape_text(part.field_shape)}; define it, or leave by_space out of its cut"
        )
    if part.params != layer.params:
        raise layer.fail(f"{cls.__name__} has other params in a region; leave by_space out of its cut")
    return part


def cut_shape(shape: Shape, axis: int, columns: Columns) -> Shape:
    """Return the shape of an array's share ``columns`` along ``axis``."""
    start, stop = (shape[axis] * bound // columns.total for bound in columns[:2])
    return (*shape[:axis], stop - start, *shape[axis + 1 :])
