"""Weighted sums and maxima over source points along one axis, for windows and interpolations without a kernel."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import cached_property

import numpy as np

from dsinga.layers.interface.region import Region
from dsinga.ops import Array, Ops
from dsinga.ops.layout import LAST, contiguous, to_image


@dataclass(frozen=True, eq=False)
class Taps:
    """Which source points each point of a feature reads, and with which weights, both (n, T).

    A point that a window lacks has weight 0.
    """

    points: np.ndarray
    weights: np.ndarray
    size: int

    @classmethod
    def of(cls, points: np.ndarray, weights: np.ndarray, size: int) -> Taps:
        """Return taps with weights; points with weight 0 may lie outside the source."""
        first = np.take_along_axis(points, (weights != 0).argmax(axis=1)[:, None], axis=1)
        return cls(np.where(weights != 0, points, first), weights, size)

    @property
    def keeps_all(self) -> bool:
        """Whether the feature equals the source."""
        return self.points.shape == (self.size, 1) and (self.points[:, 0] == np.arange(self.size)).all()

    def needed(self, start: int, stop: int) -> np.ndarray:
        """Return the range of source points that the points ``start`` to ``stop`` - 1 of the feature need."""
        points = self.points[start:stop]
        return np.arange(points.min(), points.max() + 1)

    def part(self, start: int, stop: int) -> Taps:
        """Return the taps of the points ``start`` to ``stop`` - 1, for just the source points that they need."""
        needed = self.needed(start, stop)
        return Taps(self.points[start:stop] - needed[0], self.weights[start:stop], len(needed))

    @cached_property
    def transposed(self) -> Taps:
        """The taps of the backward pass: from the gradient for a weighted sum to the gradient for its source."""
        count, width = self.points.shape
        pairs = np.flatnonzero(self.weights)
        pairs = pairs[np.argsort(self.points.ravel()[pairs], kind="stable")]
        sources = self.points.ravel()[pairs]
        counts = np.bincount(sources, minlength=self.size)
        places = np.arange(len(pairs)) - (counts.cumsum() - counts)[sources]
        points, weights = np.zeros((2, self.size, max(1, counts.max())))
        points[sources, places], weights[sources, places] = pairs // width, self.weights.ravel()[pairs]
        return Taps.of(points.astype(np.int64), weights, count)

    @cached_property
    def of_choice(self) -> Taps:
        """The taps of a maximum's backward pass: from gradients for the windows' i-th points to the source's."""
        points = self.points.T.reshape(-1, 1)
        return Taps(points, np.ones(points.shape), self.size).transposed


def taps_of_region(taps: Sequence[Taps], region: Region) -> tuple[Taps, ...]:
    """Cut the taps of each axis to a worker's region."""
    ranges = {axis - 2: (start, stop) for axis, (start, stop, _) in zip(region.axes, region.ranges, strict=True)}
    return tuple(of_axis.part(*ranges[k]) if k in ranges else of_axis for k, of_axis in enumerate(taps))


def _take(rows: Array, points: np.ndarray, axis: int, ops: Ops) -> Array:
    return ops.xp.take(rows, ops.asarray(contiguous(points)), axis=axis)


def weighted(rows: Array, axis: int, taps: Taps, ops: Ops) -> Array:
    """Compute the weighted sums along an axis of an array."""
    total = None
    for points, weights in zip(taps.points.T, taps.weights.T, strict=True):
        term = _take(rows, points, axis, ops)
        if (weights != 1).any():
            term *= ops.asarray(weights.astype(rows.dtype).reshape(-1, *(1,) * (rows.ndim - axis - 1)))
        total = term if total is None else ops.xp.add(total, term, out=total)
    return total


def maxima(rows: Array, axis: int, taps: Taps, ops: Ops) -> Array:
    """Compute the maximum of each window along an axis of an array."""
    best, *others = (_take(rows, points, axis, ops) for points in taps.points.T)
    for other in others:
        best = ops.xp.maximum(best, other, out=best)
    return best


def maxima_grad(rows: Array, best: Array, grad: Array, axis: int, taps: Taps, ops: Ops) -> Array:
    """Return the gradient for ``rows``: each maximum's goes to the first point that has it."""
    by_tap, is_pending = [], True
    for points in taps.points.T:
        is_first = (_take(rows, points, axis, ops) == best) & is_pending
        is_pending = ~is_first & is_pending
        by_tap.append(grad * is_first)
    return weighted(ops.xp.concatenate(by_tap, axis=axis), axis, taps.of_choice, ops)


def axis_steps(x: Array, taps: Sequence[Taps], compute: Callable[..., Array], ops: Ops) -> list[Array]:
    """Apply ``compute`` axis by axis, the last first, and return the images (B, H, W, C) before and after each axis."""
    steps = [x.transpose(LAST[x.ndim])]
    for axis in reversed(range(len(taps))):
        steps.append(steps[-1] if taps[axis].keeps_all else compute(steps[-1], axis + 1, taps[axis], ops))
    return steps


def combine(x: Array, taps: Sequence[Taps], takes_maximum: bool, ops: Ops) -> Array:
    """Compute the maxima or weighted sums over windows of images."""
    return to_image(contiguous(axis_steps(x, taps, maxima if takes_maximum else weighted, ops)[-1]))


def combine_grad(x: Array, grad: Array, taps: Sequence[Taps], takes_maximum: bool, ops: Ops) -> Array:
    """Return the gradient of :func:`combine` for x."""
    rows = grad.transpose(LAST[x.ndim])
    steps = axis_steps(x, taps, maxima, ops)[::-1] if takes_maximum else []
    for axis, of_axis in enumerate(taps):
        if of_axis.keeps_all:
            continue
        if takes_maximum:
            rows = maxima_grad(steps[axis + 1], steps[axis], rows, axis + 1, of_axis, ops)
        else:
            rows = weighted(rows, axis + 1, of_axis.transposed, ops)
    return to_image(contiguous(rows))
