"""Converts kernel sizes, strides and paddings of Keras to job fields, and checks image and volume shapes."""

from __future__ import annotations

from typing import Any

from dsinga.layers.interface.checks import shape_text
from dsinga.nn.writing.feature import ChannelsLast, batch_shape, row_shape
from dsinga.nn.writing.writer import LayerWriter

Size = int | tuple[int, ...]  # one for all axes, (rows, columns) for images, or (depth, rows, columns) for volumes
Sides = Size | tuple[tuple[int, int], ...]  # or ((above, below), (left, right)); three pairs for volumes
Padding = str | Sides  # "valid", "same", as in Keras, or how many zeros are on each side

# Kinds of sources by number of spatial axes, and the shape for nn.Input.
KINDS = {
    2: ("images (batch, channels, height, width)", "an image, as in nn.Input(shape=(1, 28, 28))"),
    3: ("volumes (batch, channels, depth, height, width)", "a volume, as in nn.Input(shape=(1, 16, 32, 32))"),
}


def require(writer: LayerWriter, axes: int = 2) -> tuple[int, ...]:
    """Return the shape (C, H, W) of images, or (C, D, H, W)."""
    rows = writer.rows(writer.source)
    rows = (1, *rows) if len(rows) == axes == 2 else rows
    if len(rows) != axes + 1:
        what, of_one = KINDS[axes]
        raise writer.fail(f"takes {what}, but gets {batch_shape(rows)}; give the input the shape of {of_one}")
    refuse_channels_last(writer)
    return rows


def refuse_channels_last(writer: LayerWriter) -> None:
    """Raise ChannelsLast if records look like images (H, W, C) or volumes (D, H, W, C): square, 1, 3 or 4 channels."""
    rows = row_shape(writer.source)
    if writer.source.records == writer.source.layer and rows is not None:
        refuse_records_channels_last(writer, writer.source.layer, rows)


def refuse_records_channels_last(writer: LayerWriter, source: str, rows: tuple[int, ...]) -> None:
    """Raise ChannelsLast if ``rows``, the shape of a record of the input ``source``, looks like channels last."""
    if len(rows) in (3, 4) and len({*rows[:-1]}) == 1 and rows[0] > 4 and rows[-1] in (1, 3, 4):
        fault = ChannelsLast(
            f"layer {writer.name!r}: takes {KINDS[len(rows) - 1][0]}, but gets {batch_shape(rows)}, whose channels are "
            f'last; begin with nn.Input({rows}, data_format="channels_last")'
        )
        fault.source = source
        raise fault


def window(
    writer: LayerWriter, size: Size, strides: Size, padding: Any, default_stride: int, axes: int = 2
) -> dict[str, Any]:
    """Convert Keras's sizes of a window to job fields: rows are y, columns x, depth z."""
    size, strides = per_axis(writer, size, axes), per_axis(writer, strides, axes)
    fields: dict[str, Any] = {**sides("kernel", size)}
    if strides != (default_stride,) * axes:
        fields |= sides("stride", strides)
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
        if padding == "valid":
            return fields
        if set(strides) != {1} or any(side % 2 == 0 for side in size):
            return {**fields, "same": True}
        padding = tuple(side // 2 for side in size)  # equal on both sides, as in SINGA's nets
    zeros = per_axis(writer, padding, axes)
    return fields | sides("pad", zeros) if any(zeros) else fields


def check_kernel(writer: LayerWriter, kernel: tuple[int, ...], dilation: tuple[int, ...]) -> None:
    """Raise UserError if a kernel with its dilation is larger than the source."""
    channels, *sizes = require(writer, len(kernel))
    if all((width - 1) * gap + 1 <= size for width, gap, size in zip(kernel, dilation, sizes, strict=True)):
        return
    last = '; if the channels are last, begin with nn.Input(..., data_format="channels_last")'
    size, what = f"{channels} channels of {shape_text(sizes)}", "images" if len(kernel) == 2 else "volumes"
    hint = last if sizes[-1] <= 4 else ""
    gaps = "" if set(dilation) == {1} else f" with a dilation of {shape_text(dilation)}"
    raise writer.fail(f"a kernel of {shape_text(kernel)}{gaps} is larger than the {what}, {size}{hint}")


def transposed_window(
    writer: LayerWriter, kernel: tuple[int, ...], strides: tuple[int, ...], padding: Any, output_padding: Any
) -> dict[str, Any]:
    """Convert Keras's sizes of a transposed convolution to job fields, for an output of Keras's size."""
    axes = len(kernel)
    more = None if output_padding is None else per_axis(writer, output_padding, axes)
    fields: dict[str, Any] = sides("kernel", kernel) | (sides("stride", strides) if {*strides} != {1} else {})
    pad: Size = 0 if isinstance(padding, str) else padding
    if padding == "same":
        if more is None:
            fields["same"] = True
        pad = 0 if more is None else tuple(side // 2 for side in kernel)
    elif isinstance(padding, str) and padding != "valid":
        raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
    elif more is None:  # as in Keras, an image becomes at least strides times as large
        more = tuple(max(step - side, 0) for step, side in zip(strides, kernel, strict=True))
    fields |= sides("pad", pad) if any(per_axis(writer, pad, axes)) else {}
    return fields | (sides("output_pad", more) if more and any(more) else {})


def before_and_after(writer: LayerWriter, size: Any, axes: int) -> dict[str, list[int]]:
    """Return the pixels padded before and after each axis, or one number if all are equal."""
    pairs = [(side, side) if isinstance(side, int) else side for side in per_axis(writer, size, axes)]
    before, after = map(list, zip(*pairs, strict=True))
    return {
        field: numbers[:1] if len({*numbers}) == 1 else numbers
        for field, numbers in (("before", before), ("after", after))
        if any(numbers)
    }


def sides(field: str, size: Size) -> dict[str, int]:
    """Return one job field for all directions, or one for each direction if sizes differ."""
    sizes = (size,) if isinstance(size, int) else size
    if len({*sizes}) == 1:
        return {field: sizes[0]}
    return {f"{field}_{axis}": side for axis, side in zip("zyx"[-len(sizes) :], sizes, strict=True)}


def per_axis(writer: LayerWriter, size: Any, axes: int) -> tuple[Any, ...]:
    """Return a size for each axis, given one number or several."""
    sizes = (size,) * axes if isinstance(size, int) else tuple(size)
    if len(sizes) != axes:
        names = "(rows, columns)" if axes == 2 else "(depth, rows, columns)"
        raise writer.fail(f"takes a number or {names} where it gets {size}")
    return sizes


def one_or_each(writer: LayerWriter, size: Any, axes: int) -> list[Any]:
    """Return a job field's value: one size if all axes have the same, else one for each."""
    sizes = [*per_axis(writer, size, axes)]
    return sizes[:1] if len({*sizes}) == 1 else sizes
