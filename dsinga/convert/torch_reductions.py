"""Layers for PyTorch's sums, means, extrema and variances along axes of tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, NamedTuple

from dsinga.convert.torch_operations import divide, maximum, minimum, multiply, power, subtract
from dsinga.convert.torch_shapes import feature, in_shape
from dsinga.convert.torch_tensors import NotConvertible
from dsinga.convert.torch_tracing import ModulePlace
from dsinga.nn.writing.composed import reduced

Axes = int | Sequence[int] | None


def reduce(place: ModulePlace, x: Any, dim: Axes, keepdim: bool, pool: str) -> Any:
    """Return the mean (AVG), sum (SUM) or maximum (MAX) over axes other than that of the batch."""
    symbol, batch, rank = feature(x), x.batch_axis, x.dim()
    axes = sorted({axis % rank for axis in (range(rank) if dim is None else [dim] if isinstance(dim, int) else dim)})
    if batch in axes:
        raise NotConvertible("over the records of a batch")
    return in_shape(x, *reduced(place, symbol, x.shape, batch, axes, keepdim, pool))


def over_axes(pool: str) -> Callable[..., Any]:
    """Return the function of means, sums or maxima over axes; of equal numbers the first maximum has the gradient."""

    def operate(place: ModulePlace, input: Any, dim: Axes = None, keepdim: bool = False, dtype: Any = None) -> Any:
        return reduce(place, input, dim, keepdim, pool)

    return operate


mean, total, largest = map(over_axes, ("AVG", "SUM", "MAX"))


def smallest(place: ModulePlace, input: Any, dim: Axes = None, keepdim: bool = False) -> Any:
    """Return minima over axes, as the maxima of -x times -1."""
    y = reduce(place, place.trace.wrapped(multiply(place, input, -1.0)), dim, keepdim, "MAX")
    return in_shape(y, feature(place.trace.wrapped(multiply(place, y, -1.0))), y.shape, y.batch_axis)


class Extrema(NamedTuple):
    """The result of torch.max or torch.min along an axis; layers compute no indices."""

    values: Any
    indices: Any


def extrema(along: Callable[..., Any], elementwise: Callable[..., Any]) -> Callable[..., Any]:
    """Return the function of a tensor and an axis, or of two tensors."""

    def operate(place: ModulePlace, input: Any, dim: Any = None, keepdim: bool = False, other: Any = None) -> Any:
        if not isinstance(dim, int):
            return elementwise(place, input, other if dim is None else dim)
        values = along(place, input, dim, keepdim)
        indices = in_shape(values, values.symbol, values.shape, values.batch_axis)
        indices.fault = "on the indices of extrema"
        return Extrema(values, indices)

    return operate


def variance(
    place: ModulePlace, input: Any, dim: Axes = None, unbiased: bool = True, keepdim: bool = False, *,
    correction: float | None = None,
) -> Any:  # fmt: skip
    """Return variances over axes."""
    wrapped = place.trace.wrapped
    centred = wrapped(subtract(place, input, mean(place, input, dim, True)))
    y = reduce(place, wrapped(multiply(place, centred, centred)), dim, keepdim, "AVG")
    count = math.prod(input.shape) / math.prod(y.shape)
    less = float(unbiased) if correction is None else correction
    if less:
        y = in_shape(y, wrapped(multiply(place, y, count / (count - less))).symbol, y.shape, y.batch_axis)
    return y


def deviation(place: ModulePlace, *args: Any, **kwargs: Any) -> Any:
    """Return standard deviations over axes."""
    return power(place, variance(place, *args, **kwargs), 0.5)


def normalise(place: ModulePlace, input: Any, p: float = 2.0, dim: int = 1, eps: float = 1e-12, out: Any = None) -> Any:
    """Return vectors along an axis divided by their lengths."""
    if p != 2:
        raise NotConvertible(f"with p={p}")
    wrapped = place.trace.wrapped
    squares = reduce(place, wrapped(multiply(place, input, input)), dim, True, "SUM")
    lengths = wrapped(maximum(place, wrapped(power(place, squares, 0.5)), eps))
    return divide(place, input, lengths)


REDUCTIONS: Mapping[str, Callable[..., Any]] = {
    **{"mean": mean, "sum": total, "amax": largest, "amin": smallest},
    **{"var": variance, "std": deviation, "normalize": normalise},
    **{"max": extrema(largest, maximum), "min": extrema(smallest, minimum)},
}
