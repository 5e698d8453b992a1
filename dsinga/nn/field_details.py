"""What functions of layers of fields do beyond giving settings: pixels of each side, and sizes as in Keras."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.arguments import unknown_name
from dsinga.nn.forms import Sides, Size
from dsinga.nn.layer_details import image, pair, sides
from dsinga.nn.writer import LayerWriter

Values = Mapping[str, Any]  # the arguments of the function
MODES = {"zero": "kZero", "edge": "kEdge", "reflect": "kReflect", "periodic": "kPeriodic"}


def pad_images(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return how many pixels are added on each side, and which."""
    image(writer)
    words = values.get("padding_mode", "zero")
    words = [words] if isinstance(words, str) else [*words]
    for word in words:
        if word not in MODES:
            raise writer.fail(str(unknown_name("padding_mode", word, MODES)))
    fields: dict[str, Any] = before_and_after(values["padding"])
    return fields if {*words} == {"zero"} else fields | {"mode": [MODES[word] for word in words]}


def crop_images(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return how many pixels are left out on each side."""
    image(writer)
    return before_and_after(values["cropping"])


def before_and_after(size: Sides) -> dict[str, list[int]]:
    """Return how many pixels are before and after images along each axis, one number where all are equal."""
    rows, columns = (size, size) if isinstance(size, int) else size
    (above, below), (left, right) = ((side, side) if isinstance(side, int) else side for side in (rows, columns))
    return {
        field: numbers[:1] if numbers[0] == numbers[1] else numbers
        for field, numbers in (("before", [above, left]), ("after", [below, right]))
        if any(numbers)
    }


def upsample_images(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the factor of each axis."""
    image(writer)
    rows, columns = pair(values["size"])
    return {"factor": [rows] if rows == columns else [rows, columns]}


def convolve_transposed(writer: LayerWriter, values: Values) -> dict[str, Any]:
    """Return the window and the fans of a transposed convolution; sizes of the result are Keras's."""
    channels, *_ = image(writer)
    kernel, strides, padding = pair(values["kernel_size"]), pair(values["strides"]), values["padding"]
    fields: dict[str, Any] = sides("kernel", kernel)
    if strides != (1, 1):
        fields |= sides("stride", strides)
    more = None if values.get("output_padding") is None else pair(values["output_padding"])
    pad: Size = 0 if isinstance(padding, str) else padding
    if padding == "same":
        if more is None:
            fields["same"] = True
        pad = (0, 0) if more is None else (kernel[0] // 2, kernel[1] // 2)
    elif isinstance(padding, str) and padding != "valid":
        raise writer.fail(f'padding is "valid", "same", a number of pixels or a pair, not {padding!r}')
    elif more is None:  # as in Keras, an image becomes at least strides times as large
        more = (max(strides[0] - kernel[0], 0), max(strides[1] - kernel[1], 0))
    fields |= sides("pad", pad) if pair(pad) != (0, 0) else {}
    fields |= sides("output_pad", more) if more not in (None, (0, 0)) else {}
    size = kernel[0] * kernel[1]
    # Keras counts the channels of a weight (kh, kw, filters, channels) in this order.
    return fields | {"fans": {"weight": (values["filters"] * size, channels * size)}}
