"""Makes layers for ONNX's operators that pad, crop, resize and rearrange points of images, sequences and volumes."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_images import check_size, cropped
from dsinga.addons.onnx.operators_numbers import GREATEST, decimal, number_in, number_of
from dsinga.addons.onnx.values import NotImportable, Value, axis_of, feature
from dsinga.nn.writing.composed import blocks_to_channels, channels_to_blocks
from dsinga.nn.writing.reshaping import as_image, as_sequence, reshaped, rows_of

PAD_MODES = {"constant": "kZero", "reflect": "kReflect", "edge": "kEdge", "wrap": "kPeriodic"}
# Coordinates and roundings of points by which they are those that kUpsampling repeats, or interpolates between.
REPEATED = {("half_pixel", "round_prefer_floor"), ("half_pixel", "round_prefer_ceil"), ("asymmetric", "floor")}
CENTRED = {"half_pixel", "pytorch_half_pixel"}


def axes_given(place: NodePlace, x: Any, axes: Any = None) -> list[int]:
    """Return the axes of an operator, an input or an attribute; all of them by default."""
    given = place.integers("axes", axes)
    return [*range(x.rank)] if given is None else [axis_of(axis, x) for axis in given]


def pad(place: NodePlace, x: Any, pads: Any = None, value: Any = None, axes: Any = None) -> Any:
    """Return a tensor with numbers around it, or without its outermost numbers where there are fewer than none.

    Before version 11 all but the tensor are attributes.
    """
    along = axes_given(place, x, axes)
    added = np.zeros((x.rank, 2), int)  # before and after each axis
    added[along] = np.reshape(place.integers("pads", pads), (2, len(along))).T
    number, mode = number_in(value, number_of(place, "value", 0.0)), place.attribute("mode", "constant")
    symbol = feature(x)
    if added[0].any():
        raise NotImportable("around the records of a batch")
    if (added < 0).any():
        symbol = cropped(place, symbol, np.maximum(-added[1:], 0).tolist())
    pairs, rows = np.maximum(added[1:], 0), rows_of(symbol)
    check_size(pairs.sum(axis=1) + rows)
    if not pairs.any():
        return symbol
    images = rows if len(rows) > 2 and not pairs[0].any() else (*(1,) * max(1, 3 - len(rows)), *rows)
    if len(images) > 4:
        raise NotImportable(f"around {len(rows)} axes")
    before, after = np.pad(pairs, ((len(images) - len(rows), 0), (0, 0)))[1:].T.tolist()
    fields: dict[str, Any] = {} if mode == "constant" else {"mode": [PAD_MODES[mode]]}
    if mode == "constant" and number:
        fields["value"] = max(-GREATEST, min(number, GREATEST))
    x = symbol if images == rows else reshaped(place, symbol, images, ".axes")
    y = place.layer("kPadding", {}, before=before, after=after, **fields)(x)
    return y if images == rows else reshaped(place, y, rows_of(y)[len(images) - len(rows) :], ".rows")


def resize(place: NodePlace, x: Any, *inputs: Any) -> Any:
    """Return images of another size; before version 11, and of Upsample, there are scales alone."""
    is_old = place.version < 11 or place.node.op_type == "Upsample"
    _, scales, sizes = (*([None] if is_old else []), *inputs, None, None, None)[:3]
    method, rounding = place.attribute("mode", "nearest"), place.attribute("nearest_mode", "round_prefer_floor")
    coordinates = place.attribute("coordinate_transformation_mode", "half_pixel")
    if is_old:
        coordinates, rounding = "asymmetric", "floor"
    factors, counts = new_sizes(place, x, scales, sizes)
    if not 3 <= x.rank <= 5 or x.shape[1] != counts[1] or coordinates == "tf_crop_and_resize":
        raise NotImportable(f"of a tensor with {x.rank} axes, of channels, or with tf_crop_and_resize")
    check_size(counts[1:])
    symbol, old, new, factors = feature(x), x.shape[2:], counts[2:], factors[2:]
    if x.rank == 3:
        symbol, old, new, factors = as_image(place, symbol), (1, *old), [1, *new], [1.0, *factors]
    is_whole = all(factor == int(factor) and n == o * factor for o, n, factor in zip(old, new, factors, strict=True))
    is_repeated = method == "nearest" and (coordinates, rounding) in REPEATED
    if is_whole and (is_repeated or (method == "linear" and coordinates in CENTRED)):
        words = ("nearest",) * 2 if is_repeated else ("bilinear", "trilinear")
        make = nn.UpSampling3D if x.rank == 5 else nn.UpSampling2D
        y = make(tuple(map(int, factors)), words[x.rank == 5], name=place.name())(symbol)
    else:
        settings: dict[str, Any] = {"size": [*new], "method": f"k{method.title()}", "coordinates": named(coordinates)}
        settings |= {"rounding": named(rounding.removeprefix("round_"))} if method == "nearest" else {}
        is_exact = np.allclose(np.multiply(old, factors), new, rtol=1e-6)
        # Between corners PyTorch and ONNX Runtime count with whole sizes, unlike the text of ONNX.
        settings |= {} if is_exact or coordinates == "align_corners" else {"scale": factors}
        settings |= {"cubic_coeff": number_of(place, "cubic_coeff_a", -0.75)} if method == "cubic" else {}
        settings |= {name: True for name in ("antialias", "exclude_outside") if place.attribute(name, 0)}
        y = place.layer("kResize", {}, **settings)(symbol)
    return as_sequence(place, y) if x.rank == 3 else y


def named(word: str) -> str:
    """Return the setting of kResize for a word of ONNX, as kHalfPixel for half_pixel."""
    return "k" + word.title().replace("_", "")


def new_sizes(place: NodePlace, x: Any, scales: Any, sizes: Any) -> tuple[list[float], list[int]]:
    """Return how many times as large a tensor becomes along each axis, and its sizes then."""
    if isinstance(scales, Value) or isinstance(sizes, Value):
        raise NotImportable("whose sizes depend on a batch")
    along, factors, counts = axes_given(place, x), [1.0] * x.rank, [*x.shape]
    if sizes is None or not sizes.array.size:
        numbers = place.attribute("scales") if scales is None else scales.array.tolist()
        for axis, factor in zip(along, map(decimal, numbers), strict=True):
            factors[axis], counts[axis] = factor, math.floor(x.shape[axis] * factor)
        return factors, counts
    given = dict(zip(along, sizes.array.tolist(), strict=True))
    given |= {0: x.shape[0]} if 0 in given else {}
    shares = [size / x.shape[axis] for axis, size in given.items()]
    policies = {"not_larger": min(shares), "not_smaller": max(shares)}
    share = policies.get(place.attribute("keep_aspect_ratio_policy", "stretch"))
    for axis, size in given.items():
        factors[axis] = size / x.shape[axis] if share is None else share
        counts[axis] = size if share is None else math.floor(share * x.shape[axis] + 0.5)
    return factors, counts


def in_blocks(rearranged: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of an operator that moves numbers between channels and blocks of points."""

    def operate(place: NodePlace, x: Any) -> Any:
        block_first = place.attribute("mode", "DCR") == "DCR"
        return rearranged(place, feature(x, 3), place.attribute("blocksize"), block_first)

    return operate


POINTS: Mapping[str, Callable[..., Any]] = {
    **{"Pad": pad, "Resize": resize, "Upsample": resize},
    **{"DepthToSpace": in_blocks(channels_to_blocks), "SpaceToDepth": in_blocks(blocks_to_channels)},
}
