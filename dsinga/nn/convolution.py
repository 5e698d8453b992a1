"""Convolution and pooling of images (B, C, H, W) and of sequences (B, T, n), by the names of Keras."""

from __future__ import annotations

from dsinga.nn.feature import batch_shape, row_shape
from dsinga.nn.forms import Size
from dsinga.nn.writer import LayerWriter


def image(writer: LayerWriter) -> tuple[int, int, int]:
    """Return (C, H, W) of the source; raise UserError where it gives no images."""
    rows = writer.rows(writer.source)
    if len(rows) not in (2, 3):
        raise writer.fail(
            f"takes images (batch, channels, height, width), but gets {batch_shape(rows)}; give the input the shape of "
            "an image, as in nn.Input(shape=(1, 28, 28))"
        )
    refuse_channels_last(writer)
    channels, height, width = (1, *rows) if len(rows) == 2 else rows
    return channels, height, width


def refuse_channels_last(writer: LayerWriter) -> None:
    """Raise UserError where the records of an input look like images (H, W, C): squares, then 1, 3 or 4 channels.

    Read as channels first they would train without a fault, as H channels of narrow images.
    """
    rows = row_shape(writer.source)
    if rows is None or len(rows) != 3 or not (writer.source.is_input or writer.source.layer in writer.net.inputs):
        return
    if rows[0] == rows[1] > 4 and rows[2] in (1, 3, 4):
        raise writer.fail(
            f"takes images (batch, channels, height, width), but gets {batch_shape(rows)}, whose channels are last; "
            f"use x = np.moveaxis(x, -1, 1), and {(rows[2], *rows[:2])} as the shape of nn.Input"
        )


def window(writer: LayerWriter, size: Size, strides: Size, padding: str | Size, default_stride: int) -> dict[str, int]:
    """Return the fields of a window; Keras's pairs are (rows, columns), which a job calls y and x."""
    if padding == "same":
        if any(side % 2 == 0 for side in pair(size)):
            raise writer.fail(
                f'padding="same" needs an odd window, because both sides get as much here; {size} is even: give '
                "padding=, the pixels on every side, or an odd size"
            )
        pad: Size = (pair(size)[0] // 2, pair(size)[1] // 2)
    elif isinstance(padding, str):
        if padding != "valid":
            raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
        pad = 0
    else:
        pad = padding
    fields = {**sides("kernel", size)}
    if pair(strides) != (default_stride, default_stride):
        fields |= sides("stride", strides)
    return fields if pair(pad) == (0, 0) else fields | sides("pad", pad)


def sides(field: str, size: Size) -> dict[str, int]:
    """Return a field of both directions, or one of each where they differ."""
    rows, columns = pair(size)
    return {field: rows} if rows == columns else {f"{field}_y": rows, f"{field}_x": columns}


def pair(size: Size) -> tuple[int, int]:
    """Return (rows, columns)."""
    rows, columns = (size, size) if isinstance(size, int) else size
    return rows, columns
