"""Instances from what a net predicts, and how well they agree with those of a label image."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.fields.microscopes.instances import components, grow
from dsinga.base.arguments import check_whole
from dsinga.base.errors import UserError


def label_instances(seeds: Any, foreground: Any, *, smallest: int = 1) -> np.ndarray:
    """Return a label image: the connected parts of ``seeds`` that have grown into ``foreground``, numbered from 1.

    Of predicted borders, ``label_instances(classes == 1, classes > 0)``; of predicted distances,
    ``label_instances(distance > 3, distance > 0.5)``.

    Args:
        seeds: where instances are apart (bool), of one plane or volume.
        foreground: where there is any instance (bool), of the same shape.
        smallest: points that the seed of an instance has at least.

    Raises:
        UserError: the shapes differ, or are not those of a plane or a volume.
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
    """Return a label image: points whose flows lead to one place are one instance, numbered from 1.

    Each point moves by the flow at the nearest point, ``steps`` times, and stays where there is none; places next to
    each other are one. So does Cellpose (Stringer et al., 2021), with interpolation.

    Args:
        flows: (axes, *space), vectors in points, as the targets "flow_y(cells)" and "flow_x(cells)" have them.
        inside: where there is any instance (bool), (*space).
        steps: the number of steps, at least the radius of the largest instance.
        smallest: points of an instance at least.

    Raises:
        UserError: the shapes do not fit.
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


def instance_scores(labels: Any, predicted: Any, iou: float = 0.5) -> dict[str, float]:
    """Return F1, precision and recall of the instances of a predicted label image.

    A predicted instance is right where it and one of ``labels`` have more than ``iou`` of their joint points in common;
    from 0.5 on there is one such pair at most. F1 is 2·right / (instances + predicted instances).

    Raises:
        UserError: the shapes differ, numbers are no integers, or ``iou`` is not from 0.5 to below 1.
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
    """Return a label image without instances of fewer points, numbered from 1, int32."""
    is_kept = np.bincount(labels.reshape(-1)) >= smallest
    is_kept[0] = False
    numbers: np.ndarray = np.where(is_kept, np.cumsum(is_kept), 0).astype(np.int32)
    return numbers[labels]
