"""Augmentations that turn or move images: kRandomFlip, kRandomRotation and kRandomTranslation."""

from __future__ import annotations

import math

import numpy as np

from dsinga.augmentation.augmentation import Augmentation, between
from dsinga.augmentation.resampling import transform_bilinear
from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import NonNegative, Unit


@register("augmentation", kRandomFlip=3)
class RandomFlip(Augmentation):
    """Mirror images, each with a probability: from left to right, and from top to bottom.

    As torchvision's RandomHorizontalFlip and RandomVerticalFlip.
    """

    class Conf(Settings):
        """Settings of kRandomFlip."""

        horizontal: Unit = setting(0.5, "the probability that left and right are exchanged")
        vertical: Unit = setting(0.0, "the probability that top and bottom are exchanged")

    draws = 2

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        across, down = uniform[:, 0] < self.settings.horizontal, uniform[:, 1] < self.settings.vertical
        if across.any():
            records[across] = records[across, :, :, ::-1]
        if down.any():
            records[down] = records[down, :, ::-1]
        return records


@register("augmentation", kRandomRotation=4)
class RandomRotation(Augmentation):
    """Turn images around their centre by a random angle, bilinearly; what comes from outside is 0.

    The angle is uniform between -``degrees`` and ``degrees``, counter-clockwise; the size stays. torchvision's
    RandomRotation with bilinear interpolation (its default takes the nearest pixel).
    """

    class Conf(Settings):
        """Settings of kRandomRotation."""

        degrees: NonNegative = setting(15.0, "the largest angle, in degrees")

    draws = 1

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        angles = between(uniform[:, 0], -self.settings.degrees, self.settings.degrees)
        return transform_bilinear(records, rotations(angles, records.shape[2], records.shape[3]))


@register("augmentation", kRandomTranslation=12)
class RandomTranslation(Augmentation):
    """Move images by a random share of their height and width, bilinearly; what comes from outside is a mirror image.

    As Keras's RandomTranslation with its fill_mode "reflect".
    """

    class Conf(Settings):
        """Settings of kRandomTranslation."""

        height: Unit = setting(0.1, "the largest way up or down, as a share of the height")
        width: Unit = setting(0.1, "the largest way to the left or right, as a share of the width")

    draws = 2

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        height, width = records.shape[2:]
        most = self.settings.height * height, self.settings.width * width
        down, right = (between(uniform[:, axis], -way, way) for axis, way in enumerate(most))
        rows, columns = (math.ceil(way) + 1 for way in most)
        padded = np.pad(records, ((0, 0), (0, 0), (rows, rows), (columns, columns)), "symmetric")
        one, zero = np.ones(len(records)), np.zeros(len(records))
        moved = transform_bilinear(padded, np.stack([one, zero, -right, zero, one, -down], axis=1))
        return np.ascontiguousarray(moved[:, :, rows : rows + height, columns : columns + width])


def rotations(degrees: np.ndarray, height: int, width: int) -> np.ndarray:
    """Return the matrices (n, 6) of :func:`transform_nearest` that turn images around their centre."""
    angles = np.deg2rad(degrees)
    cosine, sine = np.round(np.cos(angles), 15), np.round(np.sin(angles), 15)
    x, y = width / 2, height / 2
    return np.stack([cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y], axis=1)
