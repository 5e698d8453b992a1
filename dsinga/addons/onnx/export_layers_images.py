"""Exports layers of images and volumes, and the preprocessing of images, as ONNX nodes."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any

from dsinga.addons.onnx.export_graph import ExportedLayer, Refused, WriteLayer
from dsinga.job import PaddingMode
from dsinga.layers.images.sliding import Window, by_axis
from dsinga.layers.interface.taps import Taps

PAD_MODES = {PaddingMode.kEdge: "edge", PaddingMode.kReflect: "reflect", PaddingMode.kPeriodic: "wrap"}


def window_attributes(window: Window) -> dict[str, Any]:
    """Convert a window over images to the attributes of an ONNX operator."""
    after = [pad + more for pad, more in zip(window.pad, window.extra or (0,) * len(window.pad), strict=True)]
    attributes = {"kernel_shape": [*window.kernel], "strides": [*window.stride], "pads": [*window.pad, *after]}
    return attributes | ({"dilations": [*window.dilation]} if window.dilation else {})


def images(w: ExportedLayer) -> str:
    """Reshape the source to images (B, C, H, W), or volumes; a single channel's axis may be missing."""
    return w.add("Unsqueeze", w.floats(), [1]) if w.rank == 3 else w.floats()


def convolution(w: ExportedLayer) -> str:
    """Export a convolution of images or volumes."""
    params = w.param(0, w.layer.kernels), *([w.param(1)] if w.layer.bias else [])
    return w.add("Conv", images(w), *params, group=w.layer.groups, **window_attributes(w.layer.window))


def transposed_convolution(w: ExportedLayer) -> str:
    """Export a transposed convolution, with padding that gives the layer's size."""
    layer, window = w.layer, w.layer.window
    params = w.param(0, layer.kernels), *([w.param(1)] if layer.bias else [])
    size = layer.source_shapes[0][-len(layer.dilation) :]
    axes = zip(size, window.stride, window.kernel, window.pad, window.outputs, strict=True)
    over = [(n - 1) * stride + kernel - pad - result for n, stride, kernel, pad, result in axes]
    return w.add(
        "ConvTranspose", images(w), *params, kernel_shape=[*layer.kernels[2:]], strides=[*window.stride],
        dilations=[*layer.dilation], group=layer.groups, pads=[*window.pad, *(max(size, 0) for size in over)],
        output_padding=[max(-size, 0) for size in over],
    )  # fmt: skip


def pooling(w: ExportedLayer) -> str:
    """Export pooling: the maximum or mean of windows."""
    layer, x = w.layer, images(w)
    if w.settings.global_pooling:
        return w.add("GlobalMaxPool" if layer.takes_maximum else "GlobalAveragePool", x)
    attributes = window_attributes(layer.window)
    is_kernel = max(attributes["pads"]) < min(layer.window.kernel)  # else ONNX Runtime refuses the padding
    if layer.taps and not (layer.takes_maximum and layer.window.dilation and is_kernel):
        return reduced_points(w, x, layer.taps, "ReduceMax" if layer.takes_maximum else "ReduceSum")
    if layer.takes_maximum:
        return w.add("MaxPool", x, **attributes)
    counts = w.settings.count_include_pad
    y = w.add("AveragePool", x, count_include_pad=int(counts), **attributes)
    return w.add("Mul", y, layer.factor.astype("float32")) if counts and layer.factor is not None else y


def reduced_points(w: ExportedLayer, x: str, taps: Sequence[Taps], reduce: str) -> str:
    """Export maxima or weighted sums of source points, one axis of fields after the other."""
    nodes: list[tuple[Any, ...]] = []
    for axis, along in enumerate(taps, 2):
        nodes.append(("Gather", along.points.astype("int64"), {"axis": axis}))
        if reduce == "ReduceSum":
            weights = along.weights.astype("float32")
            nodes.append(("Mul", weights.reshape(*weights.shape, *[1] * (len(taps) + 1 - axis))))
        nodes.append((reduce, [axis + 1], {"keepdims": 0}))
    return w.chain(x, *nodes)


def padding(w: ExportedLayer) -> str:
    """Export padding around fields: a node for each mode."""
    layer, nodes = w.layer, list[tuple[Any, ...]]()
    for mode in dict.fromkeys(layer.modes):
        if mode is not PaddingMode.kZero and mode not in PAD_MODES:
            raise Refused(f"has the mode {mode.name}")
        ends = ([n * (mode is m) for n, m in zip(n, layer.modes, strict=True)] for n in (layer.before, layer.after))
        points = [each for end in ends for each in (0, 0, *end)]
        value = [float(w.settings.value)] if mode is PaddingMode.kZero and w.settings.value else []
        nodes += [("Pad", points, *value, {"mode": PAD_MODES.get(mode, "constant")})] if any(points) else []
    return w.chain(w.floats(), *nodes)


def cropping(w: ExportedLayer) -> str:
    """Export cropping of the outermost points of fields."""
    ends = [b + n for b, n in zip(w.layer.before, w.layer.sizes, strict=True)]
    return w.add("Slice", w.floats(), [*w.layer.before], ends, [*range(2, w.rank)])


def upsampling(w: ExportedLayer) -> str:
    """Export upsampling: points repeated or interpolated linearly between centres."""
    places = {"mode": "nearest", "coordinate_transformation_mode": "asymmetric", "nearest_mode": "floor"}
    if w.layer.is_linear:
        places = {"mode": "linear", "coordinate_transformation_mode": "half_pixel"}
    return w.add("Resize", w.floats(), "", [1.0, 1.0, *map(float, w.layer.factors)], **places)


def resize(w: ExportedLayer) -> str:
    """Export resizing: by Resize if sizes suffice, else as weighted sums along each axis."""
    layer, settings, method = w.layer, w.settings, w.settings.method.name[1:].lower()
    axes = zip(by_axis(layer, "scale", 0.0), layer.source_shapes[0][2:], layer.shape[2:], strict=True)
    is_by_sizes = all(scale in (0, result / size) for scale, size, result in axes)
    is_cubic_volume = method == "cubic" and len(layer.taps) == 3  # which ONNX Runtime lacks
    if not is_by_sizes or is_cubic_volume or settings.antialias or settings.exclude_outside:
        return reduced_points(w, w.floats(), layer.taps, "ReduceSum")
    return w.add(
        "Resize", w.floats(), "", "", [*layer.shape[2:]], axes=[*range(2, w.rank)], mode=method,
        coordinate_transformation_mode=snake_case(settings.coordinates.name),
        nearest_mode=snake_case(settings.rounding.name).replace("prefer", "round_prefer"),
        cubic_coeff_a=settings.cubic_coeff,
    )  # fmt: skip


def snake_case(name: str) -> str:
    """Convert a name such as kHalfPixel to ONNX's half_pixel."""
    return re.sub(r"(?<=.)([A-Z])", r"_\1", name[1:]).lower()


def lrn(w: ExportedLayer) -> str:
    """Export local response normalisation."""
    size, alpha, beta, bias = w.layer.factors
    return w.add("LRN", w.floats(), size=size, alpha=alpha, beta=beta, bias=bias)


def image_preprocess(w: ExportedLayer) -> str:
    """Export the mean, scale, padding and centre crop of images."""
    layer = w.layer
    height, width = layer.source_shapes[0][-2:]
    pad, (rows, columns) = layer.pad, layer.crop
    top, left = (height + 2 * pad - rows) // 2, (width + 2 * pad - columns) // 2
    nodes: list[tuple[Any, ...]] = [] if layer.mean is None else [("Sub", layer.mean)]
    nodes += [("Mul", float(layer.scale))] if layer.scale != 1 else []
    nodes += [("Pad", [0, 0, pad, pad] * 2)] if pad else []
    if (rows, columns) != (height + 2 * pad, width + 2 * pad):
        nodes.append(("Slice", [top, left], [top + rows, left + columns], [2, 3]))
    return w.chain(images(w), *nodes)


def convolution_lstm(w: ExportedLayer) -> str:
    """Export a convolutional LSTM, step by step."""
    layer, filters = w.layer, w.layer.filters
    window, recurrent = window_attributes(layer.window), window_attributes(layer.recurrent_window)
    kernels = [w.param(role, kernel) for role, kernel in enumerate(layer.kernels)]
    bias = [w.param(2)] if w.settings.bias_term else []
    hidden, cell, outputs = "", "", []
    for image in w.parts("Split", w.floats(), [1] * layer.steps, outputs=layer.steps, axis=1):
        total = w.add("Conv", w.add("Squeeze", image, [1]), kernels[0], *bias, **window)
        total = w.add("Add", total, w.add("Conv", hidden, kernels[1], **recurrent)) if hidden else total
        gates = w.parts("Split", total, [filters] * 4, outputs=4, axis=1)
        i, f, g, o = (w.add("Tanh" if k == 2 else "Sigmoid", gate) for k, gate in enumerate(gates))
        new = w.add("Mul", i, g)
        cell = w.add("Add", w.add("Mul", f, cell), new) if cell else new
        hidden = w.add("Mul", o, w.add("Tanh", cell))
        outputs.append(hidden)
    return hidden if w.settings.last else w.add("Concat", *(w.add("Unsqueeze", each, [1]) for each in outputs), axis=1)


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
