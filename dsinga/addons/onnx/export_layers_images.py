"""Writes layers of images and volumes, and the preprocessing of images, as ONNX nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, cast

from dsinga.addons.onnx.export_graph import LayerWriter, Refused, WriteLayer
from dsinga.job import PaddingMode
from dsinga.layers.images.sliding import Window
from dsinga.layers.interface.taps import Taps

PAD_MODES = {PaddingMode.kEdge: "edge", PaddingMode.kReflect: "reflect", PaddingMode.kPeriodic: "wrap"}


def window_attributes(window: Window) -> dict[str, Any]:
    """Return a window over images as attributes of an operator."""
    after = [pad + more for pad, more in zip(window.pad, window.extra or (0,) * len(window.pad), strict=True)]
    return {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [*window.pad, *after]}


def images(w: LayerWriter) -> str:
    """Return the source as images (B, C, H, W), or volumes; images of one channel may lack its axis."""
    return w.add("Unsqueeze", w.floats(), [1], what="channel") if w.rank == 3 else w.floats()


def convolution(w: LayerWriter) -> str:
    """Write a convolution of images or volumes."""
    layer: Any = w.layer
    attributes = {**window_attributes(layer.window), "group": layer.groups}
    if layer.window.dilation:
        attributes["dilations"] = [*layer.window.dilation]
    bias = [w.param(1)] if layer.bias else []
    return w.add("Conv", images(w), w.param(0, layer.kernels), *bias, **attributes)


def transposed_convolution(w: LayerWriter) -> str:
    """Write a transposed convolution; its padding is what makes the result as large as the layer's."""
    layer: Any = w.layer
    window, size = layer.window, layer.source_shapes[0][-len(layer.dilation) :]
    axes = zip(size, window.stride, window.kernel, window.pad, window.outputs, strict=True)
    over = [(n - 1) * stride + kernel - pad - result for n, stride, kernel, pad, result in axes]
    bias = [w.param(1)] if layer.bias else []
    return w.add(
        "ConvTranspose", images(w), w.param(0, layer.kernels), *bias,
        kernel_shape=[*layer.kernels[2:]], strides=[*window.stride], dilations=[*layer.dilation], group=layer.groups,
        pads=[*window.pad, *(max(size, 0) for size in over)], output_padding=[max(-size, 0) for size in over],
    )  # fmt: skip


def pooling(w: LayerWriter) -> str:
    """Write the maximum or mean of windows."""
    layer: Any = w.layer
    window, kind = layer.window, "Max" if layer.takes_maximum else "Average"
    if w.settings.global_pooling:
        return w.add(f"Global{kind}Pool", images(w))
    attributes = window_attributes(window)
    is_kernel = max(attributes["pads"]) < min(window.kernel)  # else ONNX Runtime refuses the padding
    if layer.taps and not (layer.takes_maximum and window.dilation and is_kernel):
        return tapped(w, images(w), layer.taps, "ReduceMax" if layer.takes_maximum else "ReduceSum")
    if layer.takes_maximum:
        return w.add("MaxPool", images(w), **attributes, dilations=[*(window.dilation or (1,) * len(window.kernel))])
    counts = w.settings.count_include_pad
    attributes["count_include_pad"] = int(counts)
    factor = [("Mul", layer.factor.astype("float32"))] if counts and layer.factor is not None else []
    return w.chain(images(w), ("AveragePool", attributes), *factor)


def tapped(w: LayerWriter, x: str, taps: Sequence[Taps], reduce: str) -> str:
    """Write maxima or weighted sums of the points that each point takes, along one axis of fields after the other."""
    nodes: list[tuple[Any, ...]] = []
    for axis, along in enumerate(taps, 2):
        nodes.append(("Gather", along.points.astype("int64"), {"axis": axis}))
        if reduce == "ReduceSum":
            weights = along.weights.astype("float32")
            nodes.append(("Mul", weights.reshape(*weights.shape, *[1] * (len(taps) + 1 - axis))))
        nodes.append((reduce, [axis + 1], {"keepdims": 0}))
    return w.chain(x, *nodes)


def padding(w: LayerWriter) -> str:
    """Write points around fields: a node for each mode."""
    layer: Any = w.layer
    nodes: list[tuple[Any, ...]] = []
    for mode in dict.fromkeys(layer.modes):
        before, after = ([n * (mode is m) for n, m in zip(sizes, layer.modes, strict=True)] for sizes in
                         (layer.before, layer.after))  # fmt: skip
        if any(before) or any(after):
            if mode is not PaddingMode.kZero and mode not in PAD_MODES:
                raise Refused(f"has the mode {mode.name}")
            value = [float(w.settings.value)] if mode is PaddingMode.kZero and w.settings.value else []
            nodes.append(("Pad", [0, 0, *before, 0, 0, *after], *value, {"mode": PAD_MODES.get(mode, "constant")}))
    return w.chain(w.floats(), *nodes)


def cropping(w: LayerWriter) -> str:
    """Write fields without their outermost points."""
    layer: Any = w.layer
    ends = [b + n for b, n in zip(layer.before, layer.sizes, strict=True)]
    return w.add("Slice", w.floats(), [*layer.before], ends, [*range(2, w.rank)])


def upsampling(w: LayerWriter) -> str:
    """Write fields with more points, repeated or interpolated linearly between their centres."""
    layer: Any = w.layer
    places = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if layer.is_linear:
        places = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return w.add("Resize", w.floats(), "", [1.0, 1.0, *map(float, layer.factors)], **places)


def resize(w: LayerWriter) -> str:
    """Write fields of another size: by Resize where it has the settings, else as weighted sums along each axis."""
    layer, settings = cast(Any, w.layer), w.settings
    method, count = settings.method.name[1:].lower(), len(layer.taps)
    if (settings.size and settings.scale) or (count == 3 and (method == "cubic" or settings.antialias)):
        return tapped(w, w.floats(), layer.taps, "ReduceSum")
    attributes = {"mode": method, "coordinate_transformation_mode": snake_case(settings.coordinates.name)}
    if method == "nearest":
        attributes["nearest_mode"] = snake_case(settings.rounding.name).replace("prefer", "round_prefer")
    if method == "cubic":
        attributes["cubic_coeff_a"] = settings.cubic_coeff
    attributes |= {name: 1 for name in ("antialias", "exclude_outside") if getattr(settings, name)}
    if settings.size:
        return w.add("Resize", w.floats(), "", "", [*layer.shape[2:]], axes=[*range(2, w.rank)], **attributes)
    scales = [float(scale) for scale in settings.scale] * (count // len(settings.scale))
    return w.add("Resize", w.floats(), "", [1.0, 1.0, *scales], **attributes)


def snake_case(name: str) -> str:
    """Return a name such as kHalfPixel as ONNX writes it, half_pixel."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name[1:]).lower()


def lrn(w: LayerWriter) -> str:
    """Write local response normalisation."""
    size, alpha, beta, bias = w.layer.factors  # type: ignore[attr-defined]
    return w.add("LRN", w.floats(), size=size, alpha=alpha, beta=beta, bias=bias)


def image_preprocess(w: LayerWriter) -> str:
    """Write the mean, the scale, the padding and the crop of the centre of images."""
    layer: Any = w.layer
    height, width = layer.source_shapes[0][-2:]
    pad, (rows, columns) = layer.pad, layer.crop
    top, left = (height + 2 * pad - rows) // 2, (width + 2 * pad - columns) // 2
    nodes: list[tuple[Any, ...]] = [] if layer.mean is None else [("Sub", layer.mean)]
    nodes += [("Mul", float(layer.scale))] if layer.scale != 1 else []
    nodes += [("Pad", [0, 0, pad, pad] * 2)] if pad else []
    if (rows, columns) != (height + 2 * pad, width + 2 * pad):
        nodes.append(("Slice", [top, left], [top + rows, left + columns], [2, 3]))
    return w.chain(images(w), *nodes)


def convolution_lstm(w: LayerWriter) -> str:
    """Write a convolutional LSTM: the convolutions of all steps at once, then the nodes of each step."""
    layer: Any = w.layer
    steps, filters, size = layer.steps, layer.filters, layer.window.outputs
    rows = w.add("Reshape", w.floats(), [-1, *layer.source_shapes[0][2:]], what="images")
    bias = [w.param(2)] if w.settings.bias_term else []
    kernels = [w.param(role, kernel) for role, kernel in enumerate(layer.kernels)]
    sums = w.add("Conv", rows, kernels[0], *bias, what="sums", **window_attributes(layer.window))
    by_step = w.add("Reshape", sums, [-1, steps, 4 * filters, *size], what="by_step")
    totals = w.several("Split", by_step, [1] * steps, outputs=steps, what="steps", axis=1)
    hidden, cell, outputs = "", "", []
    for number, total in enumerate(totals):
        what = f"step{number}"
        total = w.add("Squeeze", total, [1], what=f"{what}_sums")
        if hidden:
            window = window_attributes(layer.recurrent_window)
            total = w.add("Add", total, w.add("Conv", hidden, kernels[1], what=f"{what}_conv", **window), what=what)
        gates = w.several("Split", total, [filters] * 4, outputs=4, what=f"{what}_gates", axis=1)
        functions = zip("ifgo", gates, strict=True)
        i, f, g, o = (w.add("Tanh" if k == "g" else "Sigmoid", x, what=f"{what}_{k}") for k, x in functions)
        new = w.add("Mul", i, g, what=f"{what}_new")
        cell = w.add("Add", w.add("Mul", f, cell, what=f"{what}_old"), new, what=f"{what}_cell") if cell else new
        is_result = w.settings.last and number == steps - 1
        hidden = w.add("Mul", o, w.add("Tanh", cell, what=f"{what}_tanh"), what="" if is_result else f"{what}_hidden")
        outputs.append(hidden)
    if w.settings.last:
        return hidden
    stacked = (w.add("Unsqueeze", each, [1], what="output") for each in outputs)
    return w.add("Concat", *stacked, axis=1)


IMAGES: Mapping[str, WriteLayer] = {
    "kConvolution": convolution,
    "kTransposedConvolution": transposed_convolution,
    "kPooling": pooling,
    "kPadding": padding,
    "kCropping": cropping,
    "kUpsampling": upsampling,
    "kResize": resize,
    "kLRN": lrn,
    "kConvLSTM": convolution_lstm,
    "kImagePreprocess": image_preprocess,
}
