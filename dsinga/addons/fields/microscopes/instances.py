"""Computes borders, distances and flows of label images, and instances from predictions, in numpy.

A label image has an integer at each point: 0 for the background, another number for each instance.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import product
from typing import Any

import numpy as np

from dsinga.base.arguments import check_whole
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError


def components(labels: np.ndarray) -> np.ndarray:
    """Number the connected parts of a label image from 1 by their first points, int32.

    Points are connected if they are neighbours along one axis and have the same number, not 0.
    """
    numbers = np.arange(labels.size).reshape(labels.shape)
    pairs = []
    for axis in range(labels.ndim):
        low, high = (labels.take(range(*ends), axis) for ends in ((0, labels.shape[axis] - 1), (1, labels.shape[axis])))
        firsts = numbers.take(range(labels.shape[axis] - 1), axis)[(low == high) & (low != 0)]
        pairs.append(np.stack([firsts, firsts + math.prod(labels.shape[axis + 1 :])]))
    edges, roots = np.concatenate(pairs, axis=1), numbers.reshape(-1).copy()
    while edges.size:
        low, high = np.sort(roots[edges], axis=0)
        np.minimum.at(roots, high, low)
        while not np.array_equal(following := roots[roots], roots):
            roots = following
        edges = edges[:, roots[edges[0]] != roots[edges[1]]]
    inside = labels.reshape(-1) != 0
    parts = np.zeros(labels.size, np.int32)
    if inside.any():
        parts[inside] = np.unique(roots[inside], return_inverse=True)[1] + 1
    return parts.reshape(labels.shape)


def grow(seeds: np.ndarray, foreground: np.ndarray) -> np.ndarray:
    """Grow seeds (instance numbers, 0 for none) ring by ring into the foreground (bool).

    If several seeds reach a point at once, the neighbour before it along the first axis wins, then the one after it,
    then those along the next axis.
    """
    labels = np.where(foreground, seeds, 0)
    while True:
        around, ring = np.pad(labels, 1), np.zeros_like(labels)
        for axis, start in product(range(labels.ndim), (0, 2)):
            place = tuple(slice(start if each == axis else 1, None) for each in range(labels.ndim))
            neighbours = around[place][tuple(map(slice, labels.shape))]
            ring = np.where(ring == 0, neighbours, ring)
        ring[(labels != 0) | ~foreground] = 0
        if not ring.any():
            return labels
        labels = labels + ring


def borders(labels: np.ndarray) -> np.ndarray:
    """Classify each point of a label image, float32: 0 background, 1 inside an instance, 2 at its border.

    A point is at the border if a neighbour, diagonal ones included, belongs to something else.
    """
    lowest = highest = labels
    for axis in range(labels.ndim):
        ends = [(0, 0)] * labels.ndim
        ends[axis] = (1, 1)
        lowest, highest = (
            np.lib.stride_tricks.sliding_window_view(np.pad(part, ends, "edge"), 3, axis) for part in (lowest, highest)
        )
        lowest, highest = lowest.min(axis=-1), highest.max(axis=-1)
    classes: np.ndarray = np.where(labels == 0, 0, np.where(lowest == highest, 1, 2)).astype(np.float32)
    return classes


def distances(labels: np.ndarray, most: float, spacing: Sequence[float]) -> np.ndarray:
    """Return the distance of each instance point to the nearest point outside its instance, at most ``most``.

    Distances are float32, and 0 in the background. The ends of the array do not count as outside. ``spacing`` is the
    distance of neighbours along each axis. Squared distances are minimised along one axis after the other: Felzenszwalb
    and Huttenlocher, Distance Transforms of Sampled Functions (2012).
    """
    squares = np.full(labels.shape, float(most) ** 2)
    for axis, step in enumerate(spacing):
        nearest = squares.copy()
        length = labels.shape[axis]
        for offset in range(1, min(math.ceil(most / step), length - 1) + 1):
            square = (offset * step) ** 2
            ends = ((0, length - offset), (offset, length))
            low, high = (
                tuple(slice(*end) if each == axis else slice(None) for each in range(labels.ndim)) for end in ends
            )
            is_same = labels[low] == labels[high]
            for here, there in ((low, high), (high, low)):
                np.minimum(nearest[here], np.where(is_same, squares[there] + square, square), out=nearest[here])
        squares = nearest
    return np.where(labels == 0, 0, np.sqrt(squares)).astype(np.float32)


def flows(parts: np.ndarray) -> np.ndarray:
    """Return unit vectors (axes, *space) float32 that lead to the centre of each instance, 0 in the background.

    They are the gradient of heat that spreads from the centre, the instance's point nearest to the mean of its points:
    Stringer et al., Cellpose: a generalist algorithm for cellular segmentation (2021). ``parts`` are whole
    :func:`components`.
    """
    points = np.argwhere(parts)
    vectors = np.zeros((parts.ndim, *parts.shape), np.float32)
    if not len(points):
        return vectors
    ids = np.unique(parts[tuple(points.T)], return_inverse=True)[1]
    count = np.bincount(ids)
    lows, highs = np.full((len(count), parts.ndim), parts.size), np.zeros((len(count), parts.ndim), np.int64)
    np.minimum.at(lows, ids, points)
    np.maximum.at(highs, ids, points)
    steps = 2 * (highs - lows + 3).sum(axis=1)  # as many as Cellpose 3 takes of an instance alone
    order = np.argsort(-steps[ids], kind="stable")  # points that still spread come first
    points, ids = points[order], ids[order]
    inside = points - lows[ids]
    totals = np.stack([np.bincount(ids, inside[:, axis]) for axis in range(parts.ndim)], axis=1).astype(np.int64)
    far = ((inside * count[ids][:, None] - totals[ids]) ** 2).sum(axis=1)
    nearest = np.lexsort((np.ravel_multi_index(tuple(points.T), parts.shape), far, ids))
    centres = np.sort(nearest[np.unique(ids[nearest], return_index=True)[1]])
    neighbours = _neighbours(parts, points)
    heat = np.zeros(len(points) + 1)  # the last one is no point
    spreading = steps[ids]
    for step in range(int(steps.max())):
        active = int(np.searchsorted(-spreading, -step, "left"))
        heat[centres[: np.searchsorted(centres, active)]] += 1
        total = heat[neighbours[0][:active]]
        for row in neighbours[1:]:
            total += heat[row[:active]]
        heat[:active] = total / len(neighbours)
    middle = len(neighbours) // 2
    slopes = [heat[neighbours[middle + 3**axis]] - heat[neighbours[middle - 3**axis]] for axis in range(parts.ndim)]
    gradient = np.stack(slopes[::-1])
    vectors[(slice(None), *points.T)] = gradient / np.maximum(np.sqrt((gradient**2).sum(axis=0)), 1e-60)
    return vectors


def _neighbours(parts: np.ndarray, points: np.ndarray) -> list[np.ndarray]:
    """Return the numbers of the 3^axes neighbours of points; len(points) if a neighbour is in another part."""
    padded = np.pad(parts, 1)
    numbers = np.full(padded.shape, len(points))
    numbers[tuple(points.T + 1)] = np.arange(len(points))
    here = padded[tuple(points.T + 1)]
    rows = []
    for offset in product((-1, 0, 1), repeat=parts.ndim):
        place = tuple((points + 1 + offset).T)
        rows.append(np.where(padded[place] == here, numbers[place], len(points)))
    return rows


@public
def label_instances(seeds: Any, foreground: Any, *, smallest: int = 1) -> np.ndarray:
    """Return a label image: the connected parts of ``seeds``, grown into ``foreground``, numbered from 1.

    For predicted borders, use ``label_instances(classes == 1, classes > 0)``; for predicted distances,
    ``label_instances(distance > 3, distance > 0.5)``.

    Args:
        seeds: where instances are apart (bool), a plane or volume.
        foreground: where there is any instance (bool), of the same shape.
        smallest: the least number of points in the seed of an instance.

    Raises:
        UserError: the shapes differ, or are no plane or volume.
    """
    seeds, foreground = np.asarray(seeds).astype(bool), np.asarray(foreground).astype(bool)
    if seeds.shape != foreground.shape or seeds.ndim not in (1, 2, 3):
        raise UserError(
            f"seeds {seeds.shape} and foreground {foreground.shape} are not planes or volumes of one shape; label each "
            "step of time by itself"
        )
    check_whole("smallest", smallest, 1)
    return grow(_large(components(seeds), smallest), seeds | foreground)


def follow_flows(flows: Any, inside: Any, *, steps: int = 100, smallest: int = 16) -> np.ndarray:
    """Return a label image: points with flows to one place are one instance, numbered from 1.

    Each point moves ``steps`` times by the flow at the nearest point, and stays where the flow is 0. Adjacent end
    points are one instance. Cellpose (Stringer et al., 2021) does the same, with interpolation.

    Args:
        flows: (axes, *space), vectors in points, such as the targets "flow_y(cells)" and "flow_x(cells)".
        inside: where there is any instance (bool), (*space).
        steps: the number of steps, at least the radius of the largest instance.
        smallest: the least number of points in an instance.
    """
    flows, inside = np.asarray(flows, np.float32), np.asarray(inside).astype(bool)
    if flows.shape != (inside.ndim, *inside.shape):
        raise UserError(
            f"flows are (axes, *space), here {(inside.ndim, *inside.shape)}, not {flows.shape}; stack those along each "
            "axis: numpy.stack([flow_y, flow_x])"
        )
    check_whole("steps", steps, 1)
    check_whole("smallest", smallest, 1)
    points = np.argwhere(inside).astype(np.float32)
    last = np.array(inside.shape) - 1
    for _ in range(steps):
        points += flows[(slice(None), *_nearest(points))].T
        points = points.clip(0, last)
    ends = np.zeros(inside.shape, bool)
    ends[_nearest(points)] = True
    for axis in range(ends.ndim):  # places next to each other become one part
        before, after = np.roll(ends, -1, axis), np.roll(ends, 1, axis)
        before.swapaxes(0, axis)[-1], after.swapaxes(0, axis)[0] = False, False
        ends = ends | before | after
    labels = np.zeros(inside.shape, np.int32)
    labels[inside] = components(ends)[_nearest(points)]
    return _large(labels, smallest)


@public
def instance_scores(labels: Any, predicted: Any, iou: float = 0.5) -> dict[str, float]:
    """Return F1, precision and recall of the instances of a predicted label image.

    A predicted instance is right if its intersection over union with an instance of ``labels`` is above ``iou``; from
    0.5, at most one pair can match. F1 is 2·right / (instances + predicted instances).

    Raises:
        UserError: the shapes differ, numbers are no integers, or ``iou`` is not in [0.5, 1).
    """
    labels, predicted = np.asarray(labels), np.asarray(predicted)
    if labels.shape != predicted.shape or {labels.dtype.kind, predicted.dtype.kind} - set("iub"):
        raise UserError(
            f"label images are integers of one shape, not {labels.dtype} {labels.shape} and {predicted.dtype} "
            f"{predicted.shape}"
        )
    if not 0.5 <= iou < 1:
        raise UserError(f"iou is from 0.5, where pairs are unique, to below 1, not {iou!r}")
    (true_ids, true), (ids, found) = (
        (names, places) for names, places in (np.unique(each, return_inverse=True) for each in (labels, predicted))
    )
    common = np.zeros((len(true_ids), len(ids)), np.int64)
    np.add.at(common, (true.reshape(-1), found.reshape(-1)), 1)
    joint = common.sum(axis=1)[:, None] + common.sum(axis=0) - common
    is_right = (common > iou * joint) & (true_ids != 0)[:, None] & (ids != 0)
    right, instances, guesses = int(is_right.sum()), int((true_ids != 0).sum()), int((ids != 0).sum())
    return {
        "f1": 2 * right / max(instances + guesses, 1),
        "precision": right / max(guesses, 1),
        "recall": right / max(instances, 1),
    }


def _nearest(points: np.ndarray) -> tuple[np.ndarray, ...]:
    return tuple(np.rint(points).astype(np.int64).T)


def _large(labels: np.ndarray, smallest: int) -> np.ndarray:
    """Remove instances of fewer than ``smallest`` points, and renumber the others from 1, int32."""
    is_kept = np.bincount(labels.reshape(-1)) >= smallest
    is_kept[0] = False
    numbers: np.ndarray = np.where(is_kept, np.cumsum(is_kept), 0).astype(np.int32)
    return numbers[labels]
