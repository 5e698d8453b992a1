"""Makes layers for ONNX's operators of images, of sequences (B, C, T) and volumes, too: convolutions and pooling."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_numbers import GREATEST
from dsinga.addons.onnx.values import LARGEST, Constant, NotImportable, feature
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
    return tuple(place.attribute(name) or (default,) * axes)


def window_of(place: NodePlace, kernel: Sequence[int], size: Sizes) -> NodeWindow:
    """Return the window of a node over images of a size, with its padding as numbers."""
    axes, auto = len(size), place.attribute("auto_pad", "NOTSET")
    strides, dilations = (given_sizes(place, name, axes) for name in ("strides", "dilations"))
    pads = tuple(place.attribute("pads") or (0,) * 2 * axes) if auto == "NOTSET" else (0,) * 2 * axes
    window = NodeWindow(tuple(kernel), strides, dilations, pads[:axes], pads[axes:])
    if {*map(len, window)} != {axes}:
        raise NotImportable(f"whose windows have not {axes} axes")
    window = same_pads(window, size, auto) if auto.startswith("SAME") else window
    check_size(sum(sizes) for sizes in zip(size, window.before, window.after, strict=True))
    return window


def check_size(sizes: Iterable[int]) -> None:
    """Raise NotImportable for more numbers of a record than a net has that is not damaged."""
    if math.prod(max(int(size), 1) for size in sizes) > LARGEST:
        raise NotImportable(f"that makes more than {LARGEST} numbers of a record")


def same_pads(window: NodeWindow, size: Sizes, auto: str = "SAME_UPPER") -> NodeWindow:
    """Return a window with the padding for ceil(size / stride) positions along each axis, of which more is after it."""
    totals = [
        max((-(-length // step) - 1) * step + extent - length, 0)
        for length, step, extent in zip(size, window.strides, window.extent, strict=True)
    ]
    less, more = tuple(total // 2 for total in totals), tuple(total - total // 2 for total in totals)
    before, after = (more, less) if auto == "SAME_LOWER" else (less, more)
    return window._replace(before=before, after=after)


def rounded_up(window: NodeWindow, size: Sizes) -> NodeWindow:
    """Return a window with the padding after each axis that gives as many windows as sizes rounded up do."""
    after = []
    for _, step, _, first, last, length, extent in zip(*window, size, window.extent, strict=True):
        count = -(-(length + first + last - extent) // step) + 1
        count -= (count - 1) * step >= length + first
        after.append(max((count - 1) * step + extent - length - first, 0))
    return window._replace(after=tuple(after))


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


def padded(place: NodePlace, x: Symbol, window: NodeWindow, value: float = 0.0) -> Any:
    """Return images or volumes with the padding of a window as numbers around them."""
    fields = {"value": value} if value else {}
    return place.layer("kPadding", {}, ".pad", before=[*window.before], after=[*window.after], **fields)(x)


def folded_norms(nodes: Sequence[Any]) -> int:
    """Return into how many layers an exporter has folded a batch normalisation, as PyTorch's write it."""
    return sum(
        (node.op_type in ("Conv", "ConvTranspose") and node.input[1].startswith("onnx::"))
        or any("FuseBatchNorm" in beside.value for beside in node.metadata_props)
        for node in nodes
    )


def params_of(weight: Any, bias: Any) -> dict[str, tuple[Constant, np.ndarray]]:
    """Return the params of a convolution, in the shapes of those of layers."""
    if not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)):
        raise NotImportable("with a weight or a bias that layers compute")
    params = {"weight": (weight, np.asarray(weight.array, np.float32).reshape(len(weight.array), -1))}
    if bias is None or not (bias.is_param or bias.array.any()):  # an exporter writes zeros for none
        return params
    return {**params, "bias": (bias, np.asarray(bias.array, np.float32))}


def check_channels(x: Any, bias: Any, channels: int, filters: int) -> None:
    """Raise NotImportable for a convolution whose params are those of other images, as in a damaged file."""
    if channels != x.shape[1] or (bias is not None and bias.array.shape != (filters,)):
        raise NotImportable(f"of {x.shape[1]} channels with params for {channels}")


def convolve(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return a convolution."""
    params, axes, groups = params_of(weight, bias), axes_of(x), place.attribute("group", 1)
    filters, channels, *kernel = weight.array.shape
    check_channels(x, bias, channels * groups, filters)
    symbol, window = as_images_of(place, x, window_of(place, kernel, x.shape[2:]))
    settings = {"filters": filters, "groups": groups, "use_bias": "bias" in params}
    settings |= {"kernel_size": window.kernel, "strides": window.strides, "dilation_rate": window.dilations}
    if window.is_even:
        settings["padding"] = window.before
    elif window == same_pads(window, rows_of(symbol)[1:]):
        settings["padding"] = "same"
    else:
        symbol = padded(place, symbol, window)
    make = nn.Conv3D if axes == 3 else nn.Conv2D
    return as_given(place, x, place.layer(make, params, **settings)(symbol))


def convolve_transposed(place: NodePlace, x: Any, weight: Any, bias: Any = None) -> Any:
    """Return a transposed convolution; where the layer lacks its padding, all that kernels reach, then a part of it."""
    params, groups = params_of(weight, bias), place.attribute("group", 1)
    channels, filters, *kernel = weight.array.shape
    check_channels(x, bias, channels, filters * groups)
    symbol, window = as_images_of(place, x, result_window(place, kernel, axes_of(x), x.shape[2:]))
    more = tuple(first - last for first, last in zip(window.before, window.after, strict=True))
    is_plain = all(0 <= extra < step for extra, step in zip(more, window.strides, strict=True))
    pad = window.before if is_plain else (0,) * len(more)
    more = more if is_plain else tuple(max(-last, 0) for last in window.after)
    sizes = {"kernel": (window.kernel, 3), "stride": (window.strides, 1), "dilation": (window.dilations, 1)}
    fields = fields_of(**sizes, pad=(pad, 0), output_pad=(more, 0)) | ({} if groups == 1 else {"group": groups})
    fields |= {} if "bias" in params else {"bias_term": False}
    y = place.layer("kTransposedConvolution", params, num_filters=filters * groups, **fields)(symbol)
    if not is_plain:
        y = cropped(place, y, [(first, max(last, 0)) for first, last in zip(window.before, window.after, strict=True)])
    return as_given(place, x, y)


def result_window(place: NodePlace, kernel: Sequence[int], axes: int, size: Sizes) -> NodeWindow:
    """Return the window of a transposed convolution, whose padding is what of the result is left out.

    A negative number after an axis is of pixels that no kernel reaches.
    """
    window, auto = window_of(place, kernel, size), place.attribute("auto_pad", "NOTSET")
    more, given = np.array(given_sizes(place, "output_padding", axes, 0)), place.attribute("output_shape")
    before, after = np.array(window.before), window.after - more
    if given or auto.startswith("SAME"):
        reached = np.multiply(window.strides, np.subtract(size, 1)) + window.extent
        wanted = given[-axes:] if given else np.minimum(np.multiply(size, window.strides), reached + more)
        total = np.maximum(reached + more - wanted, 0)
        before = total // 2 if auto == "SAME_UPPER" else total - total // 2
        after = reached - before - wanted
    check_size(np.multiply(window.strides, size) + window.extent)
    return window._replace(before=tuple(before.tolist()), after=tuple(after.tolist()))


def cropped(place: NodePlace, x: Any, pairs: Sequence[tuple[int, int]]) -> Any:
    """Return a feature without the first and the last numbers along each of its last axes."""
    items = [f"{first or ''}:{-last if last else ''}" for first, last in pairs]
    return place.layer("kIndex", {}, ".crop", index=", ".join(["...", *items]))(x)


def pooled(place: NodePlace, x: Any, pool: str, counts_padding: bool = True) -> Any:
    """Return the maxima (MAX) or means (AVG) of the windows of a node."""
    axes_of(x)
    window = window_of(place, place.attribute("kernel_shape"), x.shape[2:])
    symbol, window = as_images_of(place, x, window)
    size, is_auto = rows_of(symbol)[1:], place.attribute("auto_pad", "NOTSET").startswith("SAME")
    rounds_up = bool(place.attribute("ceil_mode", 0)) and not is_auto
    is_same = not window.is_even and window == same_pads(window, size)
    is_apart = not window.is_even and not is_same  # padding that the layer does not have
    if is_apart and rounds_up:  # the last window begins before the padding after an axis
        if pool == "AVG" and counts_padding:
            raise NotImportable("with ceil_mode, more padding on one side, and means that count it")
        window, rounds_up = rounded_up(window, size), False
    leaves_out = not counts_padding and any(window.before + window.after)
    sizes = {"kernel": (window.kernel, 3), "stride": (window.strides, 2), "dilation": (window.dilations, 1)}
    fields: dict[str, Any] = {} if pool == "MAX" else {"pool": pool}
    fields |= fields_of(**sizes, pad=(window.before if window.is_even else (0,) * len(size), 0))
    fields |= {"same": True} if is_same else {"ceil": True} if rounds_up else {}
    fields |= {"count_include_pad": False} if leaves_out and not is_apart else {}
    if is_apart:
        symbol = padded(place, symbol, window, -GREATEST if pool == "MAX" else 0.0)
    y = place.layer("kPooling", {}, **fields)(symbol)
    if is_apart and leaves_out:
        y = y * place.vector(Constant(shares(window, size, rows_of(y)[1:])), ".shares").symbol
    return as_given(place, x, y)


def shares(window: NodeWindow, size: Sizes, counts: Sizes) -> np.ndarray:
    """Return, for each window, how many numbers it has to how many of these are no padding, (1, H', W')."""
    inside: Any = np.ones(1)
    for kernel, step, gap, before, _, length, count in zip(*window, size, counts, strict=True):
        check_size([count, kernel])
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


def global_pool(pool: str) -> Callable[..., Any]:
    """Return the function of maxima or means over all points."""

    def operate(place: NodePlace, x: Any) -> Any:
        symbol = feature(x) if axes_of(x) > 1 else as_image(place, feature(x))
        return as_given(place, x, place.layer("kPooling", {}, pool=pool, global_pooling=True)(symbol))

    return operate


IMAGES: Mapping[str, Callable[..., Any]] = {
    **{"Conv": convolve, "ConvTranspose": convolve_transposed},
    **{"MaxPool": max_pool, "AveragePool": average_pool},
    **{"GlobalAveragePool": global_pool("AVG"), "GlobalMaxPool": global_pool("MAX")},
}
