"""Convolution and pooling of images (B, C, H, W) and of sequences (B, T, n), by the names of Keras."""

from __future__ import annotations

from typing import Any

from dsinga.nn.activations import activate, check_activation
from dsinga.nn.feature import Feature, batch_shape, row_shape
from dsinga.nn.symbol import layer
from dsinga.nn.writer import LayerWriter, Write

Size = int | tuple[int, int]


@layer
def Conv2D(
    filters: int,
    kernel_size: Size,
    strides: Size = 1,
    padding: str | Size = "valid",
    activation: str | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
) -> Write:
    """Convolution of images (B, C, H, W), or (B, H, W) of one channel, and its activation (kConvolution).

    ``padding`` is "valid", "same", which needs an odd kernel, or pixels of zeros: a number, or (rows, columns).
    """
    check_activation("Conv2D", activation)

    def write(writer: LayerWriter) -> Feature:
        channels, height, width = image(writer)
        rows, columns = pair(kernel_size)
        if padding == "valid" and (rows > height or columns > width):
            hint = "; if the channels are last, use x = np.moveaxis(x, -1, 1)" if width <= 4 else ""
            size = f"{channels} channels of {height} x {width}"
            raise writer.fail(f"a kernel of {rows} x {columns} is larger than the images, {size}{hint}")
        settings = {"num_filters": filters, **window(writer, kernel_size, strides, padding, 1), "bias_term": use_bias}
        feature = writer.add(
            "kConvolution",
            convolution_conf=settings,
            inits={"weight": kernel_initializer, "bias": bias_initializer},
            fans={"weight": (channels * rows * columns, filters * rows * columns)},
        )
        return activate(writer, feature, activation)

    return write


@layer
def MaxPooling2D(pool_size: Size = 2, strides: Size | None = None, padding: str | Size = "valid") -> Write:
    """Maximum of each window of images (kPooling); ``strides`` are ``pool_size`` by default, as in Keras."""
    return lambda writer: pooling(writer, "MAX", pool_size, strides, padding)


@layer
def AveragePooling2D(pool_size: Size = 2, strides: Size | None = None, padding: str | Size = "valid") -> Write:
    """Mean of each window of images (kPooling); padding counts as zeros, which in Keras it does not."""
    return lambda writer: pooling(writer, "AVG", pool_size, strides, padding)


@layer
def GlobalMaxPooling2D() -> Write:
    """Maximum of each channel of images: (B, C)."""
    return lambda writer: whole(writer, "MAX")


@layer
def GlobalAveragePooling2D() -> Write:
    """Mean of each channel of images: (B, C)."""
    return lambda writer: whole(writer, "AVG")


def pooling(writer: LayerWriter, method: str, size: Size, strides: Size | None, padding: str | Size) -> Feature:
    """Write a kPooling layer."""
    refuse_channels_last(writer)
    steps = size if strides is None else strides
    settings = {"pool": method, **window(writer, size, steps, padding, 2)}
    return writer.add("kPooling", pooling_conf=settings)


def whole(writer: LayerWriter, method: str) -> Feature:
    """Write a kPooling layer over whole images; its feature (B, C, 1, 1) is flat."""
    image(writer)
    feature = writer.add("kPooling", pooling_conf={"pool": method, "global_pooling": True})
    return feature._replace(flat=True)


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


@layer
def Conv1D(
    filters: int,
    kernel_size: int,
    strides: int = 1,
    padding: str | int = "valid",
    activation: str | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
) -> Write:
    """Convolution over the steps of sequences (B, T, n), and its activation (kConvolution1D).

    ``padding`` is "valid", "same", or the number of zero steps before and after. A second source gives the lengths.
    """
    check_activation("Conv1D", activation)

    def write(writer: LayerWriter) -> Feature:
        inputs = writer.rows(writer.sources[0])[-1]
        settings = {"num_filters": filters, "kernel": kernel_size, "stride": strides, "bias_term": use_bias}
        feature = writer.add(
            "kConvolution1D",
            convolution1d_conf={**settings, **pad_fields(writer, padding)},
            inits={"weight": kernel_initializer, "bias": bias_initializer},
            fans={"weight": (inputs * kernel_size, filters * kernel_size)},
        )
        return activate(writer, feature, activation)

    return write


@layer
def MaxPooling1D(pool_size: int = 2, strides: int | None = None) -> Write:
    """Maximum of each window of steps (kPooling1D); ``strides`` are ``pool_size`` by default, as in Keras."""
    return lambda writer: pool_steps(writer, "MAX", kernel=pool_size, stride=strides)


@layer
def AveragePooling1D(pool_size: int = 2, strides: int | None = None) -> Write:
    """Mean of each window of steps (kPooling1D), over the steps before the end of a sequence."""
    return lambda writer: pool_steps(writer, "AVG", kernel=pool_size, stride=strides)


@layer
def GlobalMaxPooling1D() -> Write:
    """Maximum of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).

    A second source gives the lengths of the sequences.
    """
    return lambda writer: pool_steps(writer, "MAX")


@layer
def GlobalAveragePooling1D() -> Write:
    """Mean of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).

    A second source gives the lengths of the sequences; without it the mean is over all T steps.
    """
    return lambda writer: pool_steps(writer, "AVG")


def pad_fields(writer: LayerWriter, padding: str | int) -> dict[str, Any]:
    """Return the fields of a padding."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise writer.fail(f'padding is "valid", "same" or a number of steps, not {padding!r}')
        return {"same": True} if padding == "same" else {}
    return {"pad": padding}


def pool_steps(writer: LayerWriter, method: str, **window: int | None) -> Feature:
    """Write a kPooling1D layer."""
    settings = {"pool": method, **{field: number for field, number in window.items() if number is not None}}
    return writer.add("kPooling1D", pooling1d_conf=settings)
