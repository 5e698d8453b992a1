"""Layers of images, and the same layers of volumes: their forms, windows, pixels of each side and sizes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

from dsinga.base.arguments import check_whole, unknown_name
from dsinga.layers.interface.layer import shape_text
from dsinga.nn.words.function_specs import FunctionSpec, Size
from dsinga.nn.writing.feature import ChannelsLast, batch_shape, row_shape
from dsinga.nn.writing.writer import LayerWriter

Values = Mapping[str, Any]  # the arguments of the function
# Sources by how many axes of space they have, and the shape of an input that gives such.
KINDS = {
    2: ("images (batch, channels, height, width)", "an image, as in nn.Input(shape=(1, 28, 28))"),
    3: ("volumes (batch, channels, depth, height, width)", "a volume, as in nn.Input(shape=(1, 16, 32, 32))"),
}
MODES = {"zero": "kZero", "edge": "kEdge", "reflect": "kReflect", "periodic": "kPeriodic"}


def pad_images(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return how many pixels are added on each side, and which; of images, or of volumes, which have three ``axes``."""
    require(writer, axes)
    words = values.get("padding_mode", "zero")
    words = [words] if isinstance(words, str) else [*words]
    for word in words:
        if word not in MODES:
            raise writer.fail(str(unknown_name("padding_mode", word, MODES)))
    fields: dict[str, Any] = before_and_after(writer, values["padding"], axes)
    return fields if {*words} == {"zero"} else fields | {"mode": [MODES[word] for word in words]}


def crop_images(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return how many pixels are left out on each side."""
    require(writer, axes)
    return before_and_after(writer, values["cropping"], axes)


def require(writer: LayerWriter, axes: int = 2) -> tuple[int, ...]:
    """Return (C, H, W) of images, or (C, D, H, W) of volumes with three ``axes``; raise UserError for other sources."""
    rows = writer.rows(writer.source)
    rows = (1, *rows) if len(rows) == axes == 2 else rows
    if len(rows) != axes + 1:
        what, of_one = KINDS[axes]
        raise writer.fail(f"takes {what}, but gets {batch_shape(rows)}; give the input the shape of {of_one}")
    refuse_channels_last(writer)
    return rows


def before_and_after(writer: LayerWriter, size: Any, axes: int) -> dict[str, list[int]]:
    """Return how many pixels are before and after images along each axis, one number where all are equal."""
    pairs = [(side, side) if isinstance(side, int) else side for side in per_axis(writer, size, axes)]
    before, after = map(list, zip(*pairs, strict=True))
    return {
        field: numbers[:1] if len({*numbers}) == 1 else numbers
        for field, numbers in (("before", before), ("after", after))
        if any(numbers)
    }


def upsample_images(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return the factor of each axis."""
    require(writer, axes)
    factors = [*per_axis(writer, values["size"], axes)]
    return {"factor": factors[:1] if len({*factors}) == 1 else factors}


def convolve_transposed(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return the window and the fans of a transposed convolution; sizes of the result are Keras's."""
    channels, *_ = require(writer, axes)
    padding, more = values["padding"], values.get("output_padding")
    kernel, strides = (per_axis(writer, values[name], axes) for name in ("kernel_size", "strides"))
    fields: dict[str, Any] = sides("kernel", kernel)
    if {*strides} != {1}:
        fields |= sides("stride", strides)
    more = None if more is None else per_axis(writer, more, axes)
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
    fields |= sides("output_pad", more) if more and any(more) else {}
    size = math.prod(kernel)
    # Keras counts the channels of a weight (kh, kw, filters, channels) in this order.
    return fields | {"fans": {"weight": (values["filters"] * size, channels * size)}}


def require_images(writer: LayerWriter, values: Values, axes: int = 2) -> None:
    """Raise UserError where the source gives no images, or with three ``axes`` no volumes."""
    require(writer, axes)


def convolve(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return the window and the fans of a convolution of images, or of volumes, which have three ``axes``."""
    channels, *sizes = require(writer, axes)
    kernel, groups = per_axis(writer, values["kernel_size"], axes), values.get("groups") or 1
    dilation = per_axis(writer, values["dilation_rate"], axes)
    if values["padding"] == "valid" and any(
        (width - 1) * gap + 1 > size for width, gap, size in zip(kernel, dilation, sizes, strict=True)
    ):
        last = '; if the channels are last, begin with nn.Input(..., data_format="channels_last")'
        size, what = f"{channels} channels of {shape_text(sizes)}", "images" if axes == 2 else "volumes"
        hint = last if sizes[-1] <= 4 else ""
        gaps = "" if set(dilation) == {1} else f" with a dilation of {shape_text(dilation)}"
        raise writer.fail(f"a kernel of {shape_text(kernel)}{gaps} is larger than the {what}, {size}{hint}")
    fans = channels // groups * math.prod(kernel), values["filters"] * math.prod(kernel)
    padding = values["padding"]
    if set(dilation) != {1} and padding == "same":
        fields = {**window(writer, kernel, values["strides"], "valid", 1, axes), "same": True}
    else:
        fields = window(writer, kernel, values["strides"], padding, 1, axes)
    fields |= sides("dilation", dilation) if set(dilation) != {1} else {}
    return fields | {"fans": {"weight": fans}}


def convolve_depthwise(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the filters, window and fans of a depthwise convolution, whose kernel Keras counts as (kh, kw, C, m)."""
    channels, *_ = require(writer)
    multiplier = values["depth_multiplier"]
    check_whole(f"depth_multiplier of {writer.name}", multiplier, 1)
    fields = convolve(writer, {**values, "filters": channels * multiplier, "groups": channels})
    size = math.prod(per_axis(writer, values["kernel_size"], 2))
    fans = {"weight": (channels * size, multiplier * size)}
    return fields | {"num_filters": channels * multiplier, "group": channels, "fans": fans}


def pool_images(writer: LayerWriter, values: Values, pool: str, axes: int = 2) -> dict[str, Any]:
    """Return the window of a pooling of images, or of volumes; a mean leaves padding out, as in Keras."""
    if axes == 3:
        require(writer, 3)
    refuse_channels_last(writer)
    steps = values["pool_size"] if values["strides"] is None else values["strides"]
    fields = window(writer, values["pool_size"], steps, values["padding"], 2, axes)
    is_padded = "same" in fields or any(name.startswith("pad") for name in fields)
    return {**fields, "count_include_pad": False} if pool == "AVG" and is_padded else fields


def recur_images(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the window, the fans and the steps of a recurrent layer over images, as Keras counts them."""
    rows = writer.rows(writer.source)
    if len(rows) != 4:
        raise writer.fail(
            f"takes images over steps (batch, steps, channels, height, width), but gets {batch_shape(rows)}; put "
            "nn.Reshape between, if the steps are channels"
        )
    channels, filters, size = rows[1], values["filters"], math.prod(per_axis(writer, values["kernel_size"], 2))
    fans = {"hx": (channels * size, 4 * filters * size), "hh": (filters * size, 4 * filters * size)}
    fields = window(writer, values["kernel_size"], values["strides"], values["padding"], 1)
    return fields | {"fans": fans, "last": not values["return_sequences"]}


def refuse_channels_last(writer: LayerWriter) -> None:
    """Raise ChannelsLast where the records of an input look like images (H, W, C): squares, then 1, 3 or 4 channels.

    Volumes (D, H, W, C) likewise. Read as channels first they would train without a fault, as H channels of narrow
    images.
    """
    rows = row_shape(writer.source)
    if writer.source.records != writer.source.layer or rows is None:
        return
    if len(rows) in (3, 4) and len({*rows[:-1]}) == 1 and rows[0] > 4 and rows[-1] in (1, 3, 4):
        fault = ChannelsLast(
            f"layer {writer.name!r}: takes {KINDS[len(rows) - 1][0]}, but gets {batch_shape(rows)}, whose channels are "
            f'last; begin with nn.Input({rows}, data_format="channels_last")'
        )
        fault.source = writer.source.layer
        raise fault


def window(
    writer: LayerWriter, size: Size, strides: Size, padding: str | Size, default_stride: int, axes: int = 2
) -> dict[str, Any]:
    """Return the fields of a window; Keras's sizes are (rows, columns), which a job calls y and x, the depth z."""
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
        padding = tuple(side // 2 for side in size)  # as much on both sides, as SINGA's own nets have it
    padding = per_axis(writer, padding, axes)
    return fields | sides("pad", padding) if any(padding) else fields


def sides(field: str, size: Size) -> dict[str, int]:
    """Return a field of all directions, or one of each where they differ."""
    sizes = (size,) if isinstance(size, int) else size
    if len({*sizes}) == 1:
        return {field: sizes[0]}
    return {f"{field}_{axis}": side for axis, side in zip("zyx"[-len(sizes) :], sizes, strict=True)}


def per_axis(writer: LayerWriter, size: Any, axes: int) -> tuple[Any, ...]:
    """Return a size for each of the axes; raise UserError for another number of sizes."""
    sizes = (size,) * axes if isinstance(size, int) else tuple(size)
    if len(sizes) != axes:
        names = "(rows, columns)" if axes == 2 else "(depth, rows, columns)"
        raise writer.fail(f"takes a number or {names} where it gets {size}")
    return sizes


def require_channels_first(writer: LayerWriter, values: Values) -> None:
    """Raise UserError where the records are images with the channels last."""
    refuse_channels_last(writer)


KERNEL = {"weight": "kernel_initializer", "bias": "bias_initializer"}
LENGTHS = "A second source gives the lengths of the sequences"


def poolings(name: str, pool: str, what: str, note: str = "") -> dict[str, FunctionSpec]:
    """Return the forms of the layers that pool windows, or all, of images and of sequences by one method."""
    window, every, fixed = "``strides`` are ``pool_size`` by default, as in Keras.", "global_pooling", {"pool": pool}
    return {
        f"{name}Pooling2D": FunctionSpec(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool),
            doc=f"{what} of each window of images (kPooling); {window}{note}",
        ),
        f"{name}Pooling3D": FunctionSpec(
            "kPooling",
            "pool_size strides padding",
            {"strides": None},
            fixed,
            details=functools.partial(pool_images, pool=pool, axes=3),
            doc=f"{what} of each window of volumes (B, C, D, H, W) (kPooling); {window}{note}",
        ),
        f"{name}Pooling1D": FunctionSpec(
            "kPooling1D",
            "pool_size=kernel strides=stride",
            {"pool_size": 2, "strides": None},
            fixed,
            doc=f"{what} of each window of steps before the end of a sequence (kPooling1D); {window}",
        ),
        f"Global{name}Pooling2D": FunctionSpec(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=require_images,
            flat=True,
            doc=f"{what} of each channel of images (kPooling): (B, C).",
        ),
        f"Global{name}Pooling3D": FunctionSpec(
            "kPooling",
            "",
            fixed={**fixed, every: True},
            details=functools.partial(require_images, axes=3),
            flat=True,
            doc=f"{what} of each channel of volumes (kPooling): (B, C).",
        ),
        f"Global{name}Pooling1D": FunctionSpec(
            "kPooling1D",
            "",
            fixed=fixed,
            doc=f"{what} of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).\n\n"
            f"{LENGTHS}; without it they have all T steps.",
        ),
    }


DEPTHWISE = FunctionSpec(
    "kConvolution",
    "kernel_size strides padding depth_multiplier dilation_rate activation use_bias=bias_term depthwise_initializer "
    "bias_initializer depthwise_regularizer bias_regularizer",
    fixed={"num_filters": 1},  # until the channels of the source are known
    inits={"weight": "depthwise_initializer", "bias": "bias_initializer"},
    details=convolve_depthwise,
    doc="Depthwise convolution of images, and its activation (kConvolution, a group for each channel): each channel "
    "has ``depth_multiplier`` filters of its own, (B, C, H, W) to (B, depth_multiplier·C, H', W').",
)


def of_axes(what: str, axes: int, linear: str) -> dict[str, FunctionSpec]:
    """Return the forms of layers of images or volumes, which have ``axes``; ``linear`` is an interpolation's name."""
    size, conv = f"{axes}D", "activation use_bias=bias_term kernel_initializer bias_initializer kernel_regularizer"
    pad, crop, upsample, transpose, convolve_fields = (
        functools.partial(function, axes=axes)
        for function in (pad_images, crop_images, upsample_images, convolve_transposed, convolve)
    )
    return {
        f"Padding{size}": FunctionSpec(
            "kPadding",
            "padding padding_mode",
            {"padding": 1},
            details=pad,
            doc=f"{what} with pixels added on every side (kPadding): zeros, the edge, a mirror image, or the opposite "
            "side.",
        ),
        f"ZeroPadding{size}": FunctionSpec(
            "kPadding",
            "padding",
            {"padding": 1},
            details=pad,
            doc=f"{what} with ``padding`` pixels of zeros on every side (kPadding).",
        ),
        f"Cropping{size}": FunctionSpec(
            "kCropping",
            "cropping",
            {"cropping": 0},
            details=crop,
            doc=f"{what} without their outermost pixels (kCropping).",
        ),
        f"UpSampling{size}": FunctionSpec(
            "kUpsampling",
            "size interpolation=method",
            {"size": 2, "interpolation": "nearest"},
            words={"interpolation": {"nearest": None, linear: "kLinear"}},
            details=upsample,
            doc=f"{what} with ``size`` times as many pixels, repeated or interpolated (kUpsampling).",
        ),
        f"Conv{size}Transpose": FunctionSpec(
            "kTransposedConvolution",
            f"filters=num_filters kernel_size strides padding output_padding {conv} bias_regularizer",
            inits=KERNEL,
            details=transpose,
            doc=f"Transposed convolution of {what.lower()}, and its activation (kTransposedConvolution): "
            f"{what.lower()} become ``strides`` times as large.\n\n"
            "As a number ``padding`` says how many pixels of the result are left out on each side.",
        ),
        f"Conv{size}": FunctionSpec(
            "kConvolution",
            f"filters=num_filters kernel_size strides padding {conv} bias_regularizer dilation_rate groups=group",
            inits=KERNEL,
            details=convolve_fields,
            doc="" if axes == 2 else "Convolution of volumes (B, C, D, H, W), and its activation (kConvolution).",
        ),
        f"SpatialDropout{size}": FunctionSpec(
            "kDropout", "rate=dropout_ratio", fixed={"unit": "kChannel"}, required=("rate",)
        ),
    }
