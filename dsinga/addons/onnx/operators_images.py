"""Makes layers for ONNX's operators of images, of sequences (B, C, T) and volumes, too: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.naming import is_made_up
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, NotImportable, feature
from dsinga.nn.words.windows import sides
from dsinga.nn.writing.reshaping import as_image, as_sequence, rows_of
from dsinga.nn.writing.symbol import Symbol

Sizes = tuple[int, ...]


class NodeWindow(NamedTuple):
    """The window of a node, with a size along each axis of sequences, images or volumes."""

    kernel: Sizes
    strides: Sizes
    dilations: Sizes
    before: Sizes
    after: Sizes

    @property
    def extent(self) -> Sizes:
        """How many pixels a window covers along each axis, gaps included."""
        return tuple((size - 1) * gap + 1 for size, gap in zip(self.kernel, self.dilations, strict=True))

    @property
    def is_even(self) -> bool:
        """Whether there is as much padding before an axis as after it."""
        return self.before == self.after

    def of_rows(self) -> NodeWindow:
        """Return the window over images of one row, which sequences become."""
        return NodeWindow(*((axis, *sizes) for axis, sizes in zip((1, 1, 1, 0, 0), self, strict=True)))


def axes_of(x: Any) -> int:
    """Return the number of axes after the channels, 1 to 3. Raises NotImportable for others."""
    if not 3 <= x.rank <= 5:
        raise NotImportable(f"of a tensor with {x.rank} axes, which is no sequence, image or volume")
    return x.rank - 2


def given_sizes(place: NodePlace, name: str, axes: int, default: int = 1) -> Sizes:
    """Return an attribute with a size along each axis."""
    sizes = tuple(place.attribute(name) or (default,) * axes)
    if len(sizes) != axes:
        raise NotImportable(f"whose {name} has {len(sizes)} sizes for {axes} axes")
    return sizes


def window_of(place: NodePlace, kernel: Sequence[int], size: Sizes) -> NodeWindow:
    """Return the window of a node over images of a size, with its padding as numbers."""
    axes, auto = len(size), place.attribute("auto_pad", "NOTSET")
    strides, dilations = (given_sizes(place, name, axes) for name in ("strides", "dilations"))
    pads = tuple(place.attribute("pads") or (0,) * 2 * axes) if auto == "NOTSET" else (0,) * 2 * axes
    window = NodeWindow(tuple(kernel), strides, dilations, pads[:axes], pads[axes:])
    return same_pads(window, size, auto) if auto.startswith("SAME") else window


def same_pads(window: NodeWindow, size: Sizes, auto: str = "SAME_UPPER") -> NodeWindow:
    """Return a window with the padding for ceil(size / stride) positions along each axis, of which more is after it."""
    totals = [
        max((-(-length // step) - 1) * step + extent - length, 0)
        for length, step, extent in zip(size, window.strides, window.extent, strict=True)
    ]
    less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    before, after = (more, less) if auto == "SAME_LOWER" else (less, more)
    return window._replace(before=before, after=after)


def as_images_of(place: NodePlace, x: Any, window: NodeWindow) -> tuple[Symbol, NodeWindow]:
    """Return a tensor as images or volumes, and the window over these."""
    symbol = feature(x)
    return (symbol, window) if x.rank > 3 else (as_image(place, symbol), window.of_rows())


def as_given(place: NodePlace, x: Any, y: Any) -> Any:
    """Return the images that were made of a tensor as sequences if it has such."""
    return as_sequence(place, y) if x.rank == 3 else y


def fields_of(**sizes: tuple[Sizes, int]) -> dict[str, Any]:
    """Return the settings of a window, each given with its default."""
    return {
        field: number
        for name, (size, default) in sizes.items()
        if {*size} != {default}
        for field, number in sides(name, size).items()
    }


def padded(
    place: NodePlace,
    x: Symbol,
    before: Sizes,
    after: Sizes,
    mode: str = "kZero",
    value: float = 0.0,
    suffix: str = ".pad",
) -> Any:
    """Return images or volumes with numbers around them: zeros, copies by ``mode``, or a value."""
    if not any(before) and not any(after):
        return x
    fields: dict[str, Any] = {"before": [*before], "after": [*after]} | ({} if mode == "kZero" else {"mode": [mode]})
    y = place.layer("kPadding", {}, suffix, **fields)(x)
    if not value:
        return y
    least = max(value, float(np.finfo(np.float32).min))
    pairs = ((0, 0), *zip(before, after, strict=True))
    around = np.pad(np.zeros((1, *rows_of(x)[1:]), np.float32), pairs, constant_values=least)
    return y + place.vector(Constant(around), suffix).symbol


def folded_norms(nodes: Sequence[Any]) -> int:
    """Return into how many convolutions an exporter has folded a batch normalisation, as names of PyTorch's say."""
    convolutions = [node for node in nodes if node.op_type in ("Conv", "ConvTranspose")]
    return sum(
        is_made_up(node.input[1]) or any("FuseBatchNorm" in entry.value for entry in node.metadata_props)
        for node in convolutions
    )


def weight_of(weight: Any, bias: Any) -> dict[str, tuple[Constant, np.ndarray]]:
    """Return the params of a convolution, in the shapes of those of layers."""
    if not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)):
        raise NotImportable("with a weight or a bias that layers compute")
    params = {"weight": (weight, np.asarray(weight.array, np.float32).reshape(len(weight.array), -1))}
    return params if bias is None else {**params, "bias": (bias, np.asarray(bias.array, np.float32))}


def convolve(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return a convolution."""
    params, axes = weight_of(weight, bias), axes_of(x)
    window = window_of(place, weight.array.shape[2:], x.shape[2:])
    symbol, window = as_images_of(place, x, window)
    settings = {"filters": len(weight.array), "groups": place.attribute("group", 1), "use_bias": bias is not None}
    settings |= {"kernel_size": window.kernel, "strides": window.strides, "dilation_rate": window.dilations}
    if window.is_even:
        settings["padding"] = window.before
    elif window == same_pads(window, rows_of(symbol)[1:]):
        settings["padding"] = "same"
    else:
        symbol = padded(place, symbol, window.before, window.after)
    make = nn.Conv3D if axes == 3 else nn.Conv2D
    return as_given(place, x, place.layer(make, params, **settings)(symbol))


def convolve_transposed(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return a transposed convolution: all that its kernels reach, without ``pads``, in the size that the node says."""
    params, axes, groups = weight_of(weight, bias), axes_of(x), place.attribute("group", 1)
    window = NodeWindow(
        tuple(weight.array.shape[2:]), given_sizes(place, "strides", axes), given_sizes(place, "dilations", axes),
        *result_pads(place, weight.array.shape[2:], x.shape[2:]),
    )  # fmt: skip
    symbol, window = as_images_of(place, x, window)
    pad, more, crops = window.before, tuple(b - a for b, a in zip(window.before, window.after, strict=True)), False
    if any(not 0 <= extra < step for extra, step in zip(more, window.strides, strict=True)) or min(pad) < 0:
        pad, more, crops = (0,) * len(pad), tuple(max(-after, 0) for after in window.after), True
    fields = fields_of(
        kernel=(window.kernel, 3), stride=(window.strides, 1), dilation=(window.dilations, 1), pad=(pad, 0),
        output_pad=(more, 0),
    )  # fmt: skip
    fields |= {} if groups == 1 else {"group": groups}
    fields |= {} if bias is not None else {"bias_term": False}
    filters = weight.array.shape[1] * groups
    y = place.layer("kTransposedConvolution", params, num_filters=filters, **fields)(symbol)
    if crops:
        y = cropped(place, y, [(max(b, 0), max(a, 0)) for b, a in zip(window.before, window.after, strict=True)])
    return as_given(place, x, y)


def result_pads(place: NodePlace, kernel: Sizes, size: Sizes) -> tuple[Sizes, Sizes]:
    """Return how many pixels a transposed convolution leaves out before and after each axis of its result.

    A negative number after an axis is of pixels that no kernel reaches.
    """
    axes, auto = len(size), place.attribute("auto_pad", "NOTSET")
    strides, gaps = given_sizes(place, "strides", axes), given_sizes(place, "dilations", axes)
    more, given = given_sizes(place, "output_padding", axes, 0), place.attribute("output_shape")
    pads = tuple(place.attribute("pads") or (0,) * 2 * axes) if auto == "NOTSET" else (0,) * 2 * axes
    before, after = [], []
    for axis in range(axes):
        reached = strides[axis] * (size[axis] - 1) + gaps[axis] * (kernel[axis] - 1) + 1
        first = pads[axis]
        wanted = reached + more[axis] - pads[axis] - pads[axes + axis]
        if given or auto.startswith("SAME"):
            wanted = given[-axes:][axis] if given else size[axis] * strides[axis]
            total = max(reached + more[axis] - wanted, 0)
            first = total // 2 if auto == "SAME_UPPER" else total - total // 2
        before.append(first)
        after.append(reached - first - wanted)
    return tuple(before), tuple(after)


def cropped(place: NodePlace, x: Any, pairs: Sequence[tuple[int, int]], suffix: str = ".crop") -> Any:
    """Return a feature without the first and the last numbers along each of its last axes."""
    if not any(map(any, pairs)):
        return x
    items = [f"{first or ''}:{-last if last else ''}" for first, last in pairs]
    return place.layer("kIndex", {}, suffix, index=", ".join(["...", *items]))(x)


def pooled(place: NodePlace, x: Any, pool: str, counts_padding: bool = True) -> Any:
    """Return the maxima (MAX) or means (AVG) of the windows of a node."""
    axes_of(x)
    window = window_of(place, place.attribute("kernel_shape"), x.shape[2:])
    symbol, window = as_images_of(place, x, window)
    size, rounds_up = rows_of(symbol)[1:], bool(place.attribute("ceil_mode", 0))
    fields: dict[str, Any] = {} if pool == "MAX" else {"pool": pool}
    if not window.is_even and window == same_pads(window, size):
        fields["same"], rounds_up, pad = True, False, (0,) * len(size)
    elif window.is_even:
        pad = window.before
    else:
        symbol = padded(place, symbol, window.before, window.after, value=-math.inf if pool == "MAX" else 0.0)
        pad = (0,) * len(size)
    is_padded = any(window.before) or any(window.after)
    leaves_out = pool == "AVG" and is_padded and not counts_padding
    fields |= {"count_include_pad": False} if leaves_out and (any(pad) or "same" in fields) else {}
    fields |= {"ceil": True} if rounds_up else {}
    fields |= fields_of(
        kernel=(window.kernel, 3), stride=(window.strides, 2), pad=(pad, 0), dilation=(window.dilations, 1)
    )
    y = place.layer("kPooling", {}, **fields)(symbol)
    if rounds_up and rows_of(y)[1:] != counts_rounded_up(window, size):
        raise NotImportable("with ceil_mode and more padding on one side")
    if leaves_out and "count_include_pad" not in fields:
        y = y * place.vector(Constant(shares(window, size, rows_of(y)[1:])), ".shares").symbol
    return as_given(place, x, y)


def counts_rounded_up(window: NodeWindow, size: Sizes) -> Sizes:
    """Return the number of windows along each axis, rounded up; none begins in the padding after the axis."""
    counts = []
    for length, extent, step, before, after in zip(
        size, window.extent, window.strides, window.before, window.after, strict=True
    ):
        count = -(-(length + before + after - extent) // step) + 1
        counts.append(count - ((count - 1) * step >= length + before))
    return tuple(counts)


def shares(window: NodeWindow, size: Sizes, counts: Sizes) -> np.ndarray:
    """Return, for each window, how many numbers it has to how many of these are no padding, (1, H', W')."""
    inside: Any = np.ones(1)
    for kernel, step, gap, before, length, count in zip(
        window.kernel, window.strides, window.dilations, window.before, size, counts, strict=True
    ):
        points = np.arange(count)[:, None] * step - before + np.arange(kernel) * gap
        inside = np.multiply.outer(inside, ((points >= 0) & (points < length)).sum(axis=1))
    return (math.prod(window.kernel) / inside).astype(np.float32)


def max_pool(place: NodePlace, x: Any) -> Any:
    """Return the maxima of windows."""
    if len(place.node.output) > 1 and place.node.output[1]:
        raise NotImportable("with indices")
    return pooled(place, x, "MAX")


def average_pool(place: NodePlace, x: Any) -> Any:
    """Return the means of windows."""
    return pooled(place, x, "AVG", bool(place.attribute("count_include_pad", 0)))


def lp_pool(place: NodePlace, x: Any) -> Any:
    """Return (Σ |x|^p)^(1/p) over windows."""
    p, symbol = place.attribute("p", 2), feature(x)
    if place.attribute("ceil_mode", 0):
        raise NotImportable("with ceil_mode")
    if p % 2:
        symbol = nn.Layer("kArithmetic", operator="MAXIMUM", name=place.name(".sizes"))(symbol, -symbol)
    powers = place.value(symbol**p)
    y = pooled(place, powers, "AVG") * float(math.prod(place.attribute("kernel_shape")))
    return y ** (1 / p)


def global_pool(pool: str) -> Callable[..., Any]:
    """Return the function of maxima or means over all points."""

    def operate(place: NodePlace, x: Any) -> Any:
        symbol = feature(x) if axes_of(x) > 1 else as_image(place, feature(x))
        return as_given(place, x, place.layer("kPooling", {}, pool=pool, global_pooling=True)(symbol))

    return operate


IMAGES: Mapping[str, Callable[..., Any]] = {
    **{"Conv": convolve, "ConvTranspose": convolve_transposed},
    **{"MaxPool": max_pool, "AveragePool": average_pool, "LpPool": lp_pool},
    **{"GlobalAveragePool": global_pool("AVG"), "GlobalMaxPool": global_pool("MAX")},
}
