"""The augmentation that hides a part of images: kRandomErasing."""

from __future__ import annotations

import math
from collections.abc import Iterator

import numpy as np

from dsinga.augmentation.augmentation import Augmentation, between, pick
from dsinga.augmentation.crops import ATTEMPTS, range_faults
from dsinga.base.registry import register
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Positive, Unit


@register("augmentation", kRandomErasing=5)
class RandomErasing(Augmentation):
    """Fill a random rectangle of some images with a number (Zhong et al., Random Erasing Data Augmentation, 2020).

    As torchvision's RandomErasing: a share of the area between the two ``scale``, and height/width between the two
    ``ratio``, uniform in its logarithm; of ten such rectangles the first that fits into the image, else none. With
    ``scale`` 0.25 0.25 and ``ratio`` 1 1 it is a square of half the side, as Cutout's, but always within the image.
    """

    class Conf(Settings):
        """Settings of kRandomErasing."""

        probability: Unit = setting(0.5, "the probability that an image is changed")
        scale: list[Positive] = setting([0.02, 0.33], "the least and the largest share of the area that is filled")
        ratio: list[Positive] = setting([0.3, 3.3], "the least and the largest height/width that is filled")
        value: float = setting(0.0, "the number that pixels become, in the units of the records")

        def faults(self) -> Iterator[Fault]:
            """Yield what is wrong with the bounds."""
            yield from range_faults("scale", self.scale, 1.0)
            yield from range_faults("ratio", self.ratio)

    draws = 2 * ATTEMPTS + 3

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        height, width = records.shape[2:]
        low, high = map(math.log, self.settings.ratio)
        areas = height * width * between(uniform[:, :ATTEMPTS], *self.settings.scale)
        ratios = np.exp(between(uniform[:, ATTEMPTS : 2 * ATTEMPTS], low, high))
        heights, widths = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (heights < height) & (widths < width)
        rows, first = np.arange(len(records)), fits.argmax(axis=1)
        heights, widths = heights[rows, first].astype(np.int64), widths[rows, first].astype(np.int64)
        tops, lefts = pick(uniform[:, -3], 0, height - heights + 1), pick(uniform[:, -2], 0, width - widths + 1)
        heights[~fits.any(axis=1) | (uniform[:, -1] >= self.settings.probability)] = 0
        inside = box_mask(tops, tops + heights, height)[:, :, None] & box_mask(lefts, lefts + widths, width)[:, None]
        np.copyto(records, np.asarray(self.settings.value).astype(records.dtype), where=inside[:, None])
        return records


def box_mask(starts: np.ndarray, stops: np.ndarray, length: int) -> np.ndarray:
    """Return which of ``length`` places lie from ``starts`` to ``stops`` - 1, (n, length) bool, for n images."""
    places = np.arange(length)
    return (places >= starts[:, None]) & (places < stops[:, None])
