"""ONNX's operators of images, sequences (B, C, T) and volumes: convolutions, pooling, padding, resizing."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, decimal, integers, number_in
from dsinga.nn.writing import images
from dsinga.nn.writing.composed import blocks_to_channels, channels_to_blocks
from dsinga.nn.writing.images import KernelWindow, check_size
from dsinga.nn.writing.reshaping import NoLayer
from dsinga.nn.writing.tensor import Tensor

PAD_MODES = {"constant": "kZero", "reflect": "kReflect", "edge": "kEdge", "wrap": "kPeriodic"}


def axes_of(x: Tensor) -> int:
    """Return the number of axes after the channels, 1 to 3."""
    if not 3 <= x.rank <= 5:
        raise NoLayer(f"of a tensor with {x.rank} axes, which is no sequence, image or volume")
    return x.rank - 2


def window_of(x: Tensor, kernel: Sequence[int], auto_pad: str, strides: Any, pads: Any, dilations: Any) -> KernelWindow:
    """Return the window that a node moves over images, with padding as numbers."""
    axes, size = axes_of(x), x.shape[2:]
    pads = tuple(pads or (0,) * 2 * axes) if auto_pad == "NOTSET" else (0,) * 2 * axes
    steps, gaps = (tuple(given or (1,) * axes) for given in (strides, dilations))
    window = KernelWindow(tuple(kernel), steps, gaps, pads[:axes], pads[axes:])
    if {*map(len, window)} != {axes}:
        raise NoLayer(f"whose windows have not {axes} axes")
    window = window.same(size, auto_pad != "SAME_LOWER") if auto_pad.startswith("SAME") else window
    check_size(sum(sizes) for sizes in zip(size, window.before, window.after, strict=True))
    return window


def folded_norms(nodes: Sequence[Any]) -> int:
    """Guess how many batch normalisations an exporter such as PyTorch's has folded into other layers."""
    return sum(
        (node.op_type in ("Conv", "ConvTranspose") and node.input[1].startswith("onnx::"))
        or any("FuseBatchNorm" in beside.value for beside in node.metadata_props)
        for node in nodes
    )


def params_of(x: Tensor, weight: Any, bias: Any, channels_at: int, groups: int) -> Any:
    """Reshape the params of a convolution to the layer's shapes."""
    if not isinstance(weight, Constant) or not (bias is None or isinstance(bias, Constant)):
        raise NoLayer("with a weight or a bias that layers compute")
    channels, filters = weight.array.shape[channels_at], weight.array.shape[1 - channels_at]
    channels, filters = (channels * groups, filters) if channels_at else (channels, filters * groups)
    if channels != x.shape[1] or (bias is not None and bias.array.shape != (filters,)):
        raise NoLayer(f"of {x.shape[1]} channels with params for {channels}")
    params = {"weight": (weight, np.asarray(weight.array, np.float32).reshape(len(weight.array), -1))}
    if bias is None or not (bias.is_param or bias.array.any()):  # an exporter writes zeros for none
        return params
    return {**params, "bias": (bias, np.asarray(bias.array, np.float32))}


def convolve(
    place: NodePlace, x: Tensor, weight: Any, bias: Any = None, auto_pad: str = "NOTSET", strides: Any = None,
    pads: Any = None, dilations: Any = None, group: int = 1,
) -> Tensor:  # fmt: skip
    """Convert Conv to a layer."""
    params, shape = params_of(x, weight, bias, 1, group), weight.array.shape
    window = window_of(x, shape[2:], auto_pad, strides, pads, dilations)
    make = functools.partial(place.layer, params=params)
    return images.convolved(x, window, make, filters=shape[0], groups=group, use_bias="bias" in params)


def convolve_transposed(
    place: NodePlace, x: Tensor, weight: Any, bias: Any = None, auto_pad: str = "NOTSET", strides: Any = None,
    pads: Any = None, dilations: Any = None, group: int = 1, output_padding: Any = None, output_shape: Any = None,
) -> Tensor:  # fmt: skip
    """Convert ConvTranspose to a layer."""
    params, size = params_of(x, weight, bias, 0, group), x.shape[2:]
    window = window_of(x, weight.array.shape[2:], auto_pad, strides, pads, dilations)
    more = np.array(output_padding or (0,) * len(size))
    before, after = np.array(window.before), window.after - more
    if output_shape or auto_pad.startswith("SAME"):
        reached = np.multiply(window.strides, np.subtract(size, 1)) + window.extent
        whole = np.minimum(np.multiply(size, window.strides), reached + more)
        total = np.maximum(reached + more - (wanted := output_shape[-len(size) :] if output_shape else whole), 0)
        before = total // 2 if auto_pad == "SAME_UPPER" else total - total // 2
        after = reached - before - wanted
    check_size(np.multiply(window.strides, size) + window.extent)
    window = window._replace(before=tuple(before.tolist()), after=tuple(after.tolist()))
    settings = ({} if group == 1 else {"group": group}) | ({} if "bias" in params else {"bias_term": False})
    make = functools.partial(place.layer, params=params, num_filters=weight.array.shape[1] * group)
    return images.convolved_transposed(x, window, make, **settings)


def pool_of(pool: str) -> Callable[..., Tensor]:
    """Return the function that converts MaxPool (MAX) or AveragePool (AVG) to a layer."""

    def operate(
        place: NodePlace, x: Tensor, kernel_shape: Any, auto_pad: str = "NOTSET", strides: Any = None, pads: Any = None,
        dilations: Any = None, ceil_mode: int = 0, count_include_pad: int = 0,
    ) -> Tensor:  # fmt: skip
        if any(place.node.output[1:]):
            raise NoLayer("with indices")
        window = window_of(x, kernel_shape, auto_pad, strides, pads, dilations)
        rounds_up = bool(ceil_mode) and not auto_pad.startswith("SAME")
        return images.pooled(x, window, pool, rounds_up, bool(count_include_pad))

    return operate


def axes_given(x: Tensor, axes: Any) -> list[int]:
    """Return the axes of an operator, an input or an attribute; by default all."""
    given = integers(axes, "axes")
    return [*range(x.rank)] if given is None else [x.axis(axis) for axis in given]


def pad(x: Tensor, pads: Any = None, value: Any = None, axes: Any = None, mode: str = "constant") -> Tensor:
    """Pad a tensor, or cut off its outermost numbers for negative pads.

    Before version 11 all arguments but the tensor are attributes.
    """
    along = axes_given(x, axes)
    added = np.zeros((x.rank, 2), int)  # before and after each axis
    added[along] = np.reshape(integers(pads, "pads"), (2, len(along))).T
    x.feature()
    if added[0].any():
        raise NoLayer("around the records of a batch")
    return images.surrounded(x, added[1:], PAD_MODES[mode], number_in(value, 0.0))


def resize(
    place: NodePlace, x: Tensor, *inputs: Any, scales: Any = None, axes: Any = None, mode: str = "nearest",
    nearest_mode: str = "round_prefer_floor", coordinate_transformation_mode: str = "half_pixel",
    cubic_coeff_a: float = -0.75, antialias: int = 0, exclude_outside: int = 0,
    keep_aspect_ratio_policy: str = "stretch",
) -> Tensor:  # fmt: skip
    """Convert Resize or Upsample to a layer; before version 11, and for Upsample, only scales are given."""
    is_old = place.version < 11 or place.node.op_type == "Upsample"
    _, given, sizes = (*([None] if is_old else []), *inputs, None, None, None)[:3]
    rounding, coordinates = nearest_mode, coordinate_transformation_mode
    if is_old:
        coordinates, rounding = "asymmetric", "floor"
    along, given = axes_given(x, axes), scales if given is None else given
    factors, counts = new_sizes(x, along, given, sizes, keep_aspect_ratio_policy)
    if not 3 <= x.rank <= 5 or x.shape[1] != counts[1] or coordinates == "tf_crop_and_resize":
        raise NoLayer(f"of a tensor with {x.rank} axes, of channels, or with tf_crop_and_resize")
    check_size(counts[1:])
    settings: dict[str, Any] = {"method": f"k{mode.title()}", "coordinates": word(coordinates)}
    settings |= {"rounding": word(rounding.removeprefix("round_"))} if mode == "nearest" else {}
    # Between corners PyTorch and ONNX Runtime count with whole sizes, unlike the text of ONNX.
    scale = None if coordinates == "align_corners" else factors[2:]
    settings |= {"cubic_coeff": cubic_coeff_a} if mode == "cubic" else {}
    settings |= ({"antialias": True} if antialias else {}) | ({"exclude_outside": True} if exclude_outside else {})
    return images.resized(x, counts[2:], scale, **settings)


def word(text: str) -> str:
    """Translate a setting of ONNX to kResize's: half_pixel to kHalfPixel."""
    return "k" + text.title().replace("_", "")


def new_sizes(x: Tensor, along: list[int], scales: Any, sizes: Any, policy: str) -> tuple[list[float], list[int]]:
    """Compute a tensor's factors of size along each axis, and its new sizes."""
    if isinstance(scales, Tensor) or isinstance(sizes, Tensor):
        raise NoLayer("whose sizes depend on a batch")
    factors, counts = [1.0] * x.rank, [*x.shape]
    if sizes is None or not sizes.array.size:
        numbers = scales.array.tolist() if isinstance(scales, Constant) else scales
        for axis, factor in zip(along, map(decimal, numbers), strict=True):
            factors[axis], counts[axis] = factor, math.floor(x.shape[axis] * factor)
        return factors, counts
    given = dict(zip(along, sizes.array.tolist(), strict=True))
    given |= {0: x.shape[0]} if 0 in given else {}
    ratios = [size / x.shape[axis] for axis, size in given.items()]
    ratio = {"not_larger": min(ratios), "not_smaller": max(ratios)}.get(policy)
    for axis, size in given.items():
        factors[axis] = size / x.shape[axis] if ratio is None else ratio
        counts[axis] = size if ratio is None else math.floor(ratio * x.shape[axis] + 0.5)
    return factors, counts


def in_blocks(rearranged: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function that converts DepthToSpace or SpaceToDepth to a layer."""
    return lambda x, blocksize, mode="DCR": rearranged(x, blocksize, mode == "DCR")


def pool_whole(pool: str) -> Callable[..., Tensor]:
    """Return the function that converts a global pooling (maxima or means over all points) to a layer."""
    return lambda x: images.pooled_whole(x, pool) if axes_of(x) else x


IMAGES: Mapping[str, Callable[..., Any]] = {
    **{"Conv": convolve, "ConvTranspose": convolve_transposed},
    **{"MaxPool": pool_of("MAX"), "AveragePool": pool_of("AVG")},
    **{"GlobalAveragePool": pool_whole("AVG"), "GlobalMaxPool": pool_whole("MAX")},
    **{"Pad": pad, "Resize": resize, "Upsample": resize},
    **{"DepthToSpace": in_blocks(channels_to_blocks), "SpaceToDepth": in_blocks(blocks_to_channels)},
}
