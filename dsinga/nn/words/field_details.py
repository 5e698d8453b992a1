"""What functions of layers of fields do beyond giving settings: pixels of each side, and sizes as in Keras."""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from dsinga.base.arguments import unknown_name
from dsinga.nn.words.forms import Size
from dsinga.nn.words.layer_details import each, image, sides, volume
from dsinga.nn.writing.writer import LayerWriter

Values = Mapping[str, Any]  # the arguments of the function
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


def require(writer: LayerWriter, axes: int) -> tuple[int, ...]:
    """Return (C, H, W) of images, or (C, D, H, W) of volumes with three ``axes``; raise UserError for other sources."""
    return image(writer) if axes == 2 else volume(writer)


def before_and_after(writer: LayerWriter, size: Any, axes: int) -> dict[str, list[int]]:
    """Return how many pixels are before and after images along each axis, one number where all are equal."""
    pairs = [(side, side) if isinstance(side, int) else side for side in each(writer, size, axes)]
    before, after = map(list, zip(*pairs, strict=True))
    return {
        field: numbers[:1] if len({*numbers}) == 1 else numbers
        for field, numbers in (("before", before), ("after", after))
        if any(numbers)
    }


def upsample_images(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return the factor of each axis."""
    require(writer, axes)
    factors = [*each(writer, values["size"], axes)]
    return {"factor": factors[:1] if len({*factors}) == 1 else factors}


def convolve_transposed(writer: LayerWriter, values: Values, axes: int = 2) -> dict[str, Any]:
    """Return the window and the fans of a transposed convolution; sizes of the result are Keras's."""
    channels, *_ = require(writer, axes)
    padding, more = values["padding"], values.get("output_padding")
    kernel, strides = (each(writer, values[name], axes) for name in ("kernel_size", "strides"))
    fields: dict[str, Any] = sides("kernel", kernel)
    if {*strides} != {1}:
        fields |= sides("stride", strides)
    more = None if more is None else each(writer, more, axes)
    pad: Size = 0 if isinstance(padding, str) else padding
    if padding == "same":
        if more is None:
            fields["same"] = True
        pad = 0 if more is None else tuple(side // 2 for side in kernel)
    elif isinstance(padding, str) and padding != "valid":
        raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
    elif more is None:  # as in Keras, an image becomes at least strides times as large
        more = tuple(max(step - side, 0) for step, side in zip(strides, kernel, strict=True))
    fields |= sides("pad", pad) if any(each(writer, pad, axes)) else {}
    fields |= sides("output_pad", more) if more and any(more) else {}
    size = math.prod(kernel)
    # Keras counts the channels of a weight (kh, kw, filters, channels) in this order.
    return fields | {"fans": {"weight": (values["filters"] * size, channels * size)}}
