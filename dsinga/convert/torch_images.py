"""PyTorch's operations on images, sequences (B, C, T) and volumes, as layers: pooling, padding, resizing."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from operator import floordiv
from typing import Any

from dsinga import nn
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing import images
from dsinga.nn.writing.images import KernelWindow
from dsinga.nn.writing.reshaping import NoLayer, refuse
from dsinga.nn.writing.tensor import Tensor, batched

# The settings of kResize for modes of interpolate; the others are linear.
RESIZING: Mapping[str, Mapping[str, str]] = {
    "nearest": {"method": "kNearest", "coordinates": "kAsymmetric", "rounding": "kFloor"},
    "nearest-exact": {"method": "kNearest", "rounding": "kPreferCeil"},
    "bicubic": {"method": "kCubic"},
}
PAD_MODES = {"constant": "kZero", "reflect": "kReflect", "replicate": "kEdge", "circular": "kPeriodic"}


def sizes_of(size: Any, axes: int) -> tuple[Any, ...]:
    """Expand PyTorch's size, a number or a tuple, to one for each axis."""
    sizes = tuple(size) if isinstance(size, (list, tuple)) else (size,)
    return sizes * axes if len(sizes) == 1 else sizes


def pooling(kind: str, axes: int) -> Callable[..., Tensor]:
    """Return a converter of max or average pooling of sequences (B, C, T), images or volumes."""

    def pool(
        input: Tensor, kernel_size: Any, stride: Any = None, padding: Any = 0, ceil_mode: bool = False,
        count_include_pad: bool = True, divisor_override: Any = None, *, dilation: Any = 1,
        return_indices: bool = False,
    ) -> Tensor:  # fmt: skip
        refuse({"divisor_override": divisor_override, "return_indices": return_indices})
        input.feature(axes + 1)
        given = (kernel_size, stride or kernel_size, dilation, padding, padding)
        window = KernelWindow(*(sizes_of(size, axes) for size in given))
        return images.pooled(input, window, kind, ceil_mode, count_include_pad)

    return pool


def adaptive(kind: str, axes: int) -> Callable[..., Tensor]:
    """Return a converter of adaptive pooling, with as many windows as the result has pixels."""

    def adapt(input: Tensor, output_size: Any, return_indices: bool = False) -> Tensor:
        refuse({"return_indices": return_indices})
        sizes, given = input.shape[2:], sizes_of(output_size, axes)
        counts = tuple(size if count is None else count for size, count in zip(sizes, given, strict=True))
        input.feature(axes + 1)
        if {*counts} == {1} and axes > 1 and kind == "AVG":
            return images.pooled_whole(input, kind)
        if not any(size % count for size, count in zip(sizes, counts, strict=True)):
            return pooling(kind, axes)(input, tuple(map(floordiv, sizes, counts)))
        make = getattr(nn, f"Adaptive{'Max' if kind == 'MAX' else 'Average'}Pooling{max(axes, 2)}D")

        def compute(x: Tensor, window: KernelWindow) -> Tensor:
            return batched(x.place, make(window.kernel, name=x.place.name())(x.symbol))

        return images.over_images(input, KernelWindow(*[counts] * 5), compute)

    return adapt


def pad(input: Tensor, pad: Any, mode: str = "constant", value: float | None = None) -> Tensor:
    """Pad a tensor around its last axes, which count as an image's or volume's axes."""
    rank = input.rank - 1
    sides = [pad] * 2 * (rank - 1) if isinstance(pad, int) else [*pad]
    pairs = [*zip(sides[::2], sides[1::2], strict=True)][::-1]
    is_wrong = len(pairs) > rank or max(rank + (len(pairs) == rank > 2), 3) > 4
    if is_wrong or (min(sides) < 0 and mode != "constant") or not math.isfinite(value or 0):
        raise NoLayer(f"of {tuple(sides)} with the value {value or 0} around {rank} axes")
    return images.surrounded(input, [(0, 0)] * (rank - len(pairs)) + pairs, PAD_MODES[mode], value or 0.0)


def interpolate(
    place: ModulePlace, input: Tensor, size: Any = None, scale_factor: Any = None, mode: str = "nearest",
    align_corners: Any = None, recompute_scale_factor: Any = None, antialias: bool = False,
) -> Tensor:  # fmt: skip
    """Resize sequences (B, C, T), images or volumes."""
    axes = input.rank - 2
    given = (size, scale_factor, mode, align_corners, recompute_scale_factor, antialias)
    new = tuple(place.torch_result(input, *given).shape[2:])
    if mode == "area":
        return adaptive("AVG", axes)(input, new)
    scales = None if size or recompute_scale_factor or align_corners else sizes_of(scale_factor, axes)
    settings: dict[str, Any] = {"method": "kLinear", **RESIZING.get(mode, {})}
    settings |= {"coordinates": "kAlignCorners"} if align_corners else {}
    settings |= {"antialias": True, "exclude_outside": True} if antialias else {}
    settings |= {"cubic_coeff": -0.5} if antialias and mode == "bicubic" else {}
    return images.resized(input, new, scales and [*map(float, scales)], **settings)


def with_indices(*args: Any, **kwargs: Any) -> Tensor:
    """Raise NoLayer, because layers compute no indices of maxima."""
    raise NoLayer("with return_indices")


IMAGES: Mapping[str, Callable[..., Any]] = {
    **{f"max_pool{axes}d": pooling("MAX", axes) for axes in (1, 2, 3)},
    **{f"avg_pool{axes}d": pooling("AVG", axes) for axes in (1, 2, 3)},
    **{f"adaptive_avg_pool{axes}d": adaptive("AVG", axes) for axes in (1, 2, 3)},
    **{f"adaptive_max_pool{axes}d": adaptive("MAX", axes) for axes in (1, 2, 3)},
    **{f"{kind}_pool{axes}d_with_indices": with_indices for kind in ("max", "adaptive_max") for axes in (1, 2, 3)},
    **{"pad": pad, "interpolate": interpolate},
}
