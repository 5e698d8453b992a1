"""Augmentations that cut a part out: kRandomCrop and kRandomResizedCrop of images, kTruncate of sequences."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np

from dsinga.addons.augmentation.augmentation import Augmentation, RecordFacts, between, pick
from dsinga.addons.augmentation.resampling import Boxes, crop, resize
from dsinga.base.registry import register
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.limits import Count, Padding, Positive

ATTEMPTS = 10  # to find a box that lies within the image
CENTRAL_SHARE = 7 / 8  # of the shorter side, what is kept of images outside training


@register("augmentation", kRandomCrop=1)
class RandomCrop(Augmentation):
    """Crop of images at a random place, after ``pad`` pixels of zeros are put around them; the centre in other phases.

    As torchvision's RandomCrop. Images (C, H, W) become (C, *size).
    """

    class Conf(Settings):
        """Settings of kRandomCrop."""

        size: list[Count] = setting([], "height and width of the result, or one number for both; that of the image")
        pad: Padding = setting(0, "how many pixels of zeros are added on every side before the crop")

        def faults(self) -> Iterator[Fault]:
            """Yield what is wrong with the size."""
            yield from size_faults(self.size)

    draws = 2

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        channels, height, width = facts.shape
        self.pad = self.settings.pad
        self.size = pair(self.settings.size) or (height, width)
        self.margins = height + 2 * self.pad - self.size[0], width + 2 * self.pad - self.size[1]
        if min(self.margins) < 0:
            raise self.fail(
                f"cannot cut {self.size[0]} x {self.size[1]} out of images of {height} x {width} with a pad of "
                f"{self.pad}; make size smaller or pad larger",
                "size",
            )
        self.shape = (channels, *self.size)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        tops, lefts = (pick(uniform[:, axis], 0, self.margins[axis] + 1) for axis in (0, 1))
        return crop(records, tops, lefts, self.size, self.pad)

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        if records.shape[2:] == self.size:
            return records
        top, left = self.margins[0] // 2, self.margins[1] // 2
        places = np.full(len(records), top), np.full(len(records), left)
        return crop(records, *places, self.size, self.pad)


@register("augmentation", kRandomResizedCrop=2)
class RandomResizedCrop(Augmentation):
    """Crop of images of a random area and aspect ratio, resized to ``size`` bilinearly, with antialiasing.

    As torchvision's RandomResizedCrop: a share of the area between the two ``scale``, and width/height between the two
    ``ratio``, uniform in its logarithm; of ten such boxes the first that fits into the image, else the largest in the
    centre. In other phases images of another size than ``size`` are resized, too: 7/8 of the shorter side, in the
    centre, as by Resize(256) and CenterCrop(224).
    """

    class Conf(Settings):
        """Settings of kRandomResizedCrop."""

        size: list[Count] = setting([], "height and width of the result, or one number for both; that of the image")
        scale: list[Positive] = setting([0.08, 1.0], "the least and the largest share of the area that is cut out")
        ratio: list[Positive] = setting([0.75, 4 / 3], "the least and the largest width/height that is cut out")

        def faults(self) -> Iterator[Fault]:
            """Yield what is wrong with the size and the bounds."""
            yield from size_faults(self.size)
            yield from range_faults("scale", self.scale, 1.0)
            yield from range_faults("ratio", self.ratio)

    draws = 2 * ATTEMPTS + 2

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        self.size = pair(self.settings.size) or (facts.shape[1], facts.shape[2])
        self.shape = (facts.shape[0], *self.size)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        return resize(records, self.boxes(uniform), self.size)

    def boxes(self, uniform: np.ndarray) -> Boxes:
        """Return what is cut out of images for their random numbers (n, ``draws``)."""
        height, width = self.facts.shape[1:]
        low, high = map(math.log, self.settings.ratio)
        areas = height * width * between(uniform[:, :ATTEMPTS], *self.settings.scale)
        ratios = np.exp(between(uniform[:, ATTEMPTS : 2 * ATTEMPTS], low, high))
        widths, heights = np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))
        fits = (widths > 0) & (widths <= width) & (heights > 0) & (heights <= height)
        rows, first = np.arange(len(uniform)), fits.argmax(axis=1)
        heights, widths = (sizes[rows, first].astype(np.int64) for sizes in (heights, widths))
        tops, lefts = pick(uniform[:, -2], 0, height - heights + 1), pick(uniform[:, -1], 0, width - widths + 1)
        without = ~fits.any(axis=1)
        if without.any():
            middle = self._largest_box(height, width)
            for values, value in zip((tops, lefts, heights, widths), middle, strict=True):
                values[without] = value
        return Boxes(tops, lefts, heights, widths)

    def _largest_box(self, height: int, width: int) -> tuple[int, int, int, int]:
        """Return top, left, height and width of the largest box in the centre whose ratio is within the bounds."""
        low, high = self.settings.ratio
        if width / height < low:
            box = round(width / low), width
        elif width / height > high:
            box = height, round(height * high)
        else:
            box = height, width
        return (height - box[0]) // 2, (width - box[1]) // 2, *box

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        height, width = records.shape[2:]
        if (height, width) == self.size:
            return records
        scale = CENTRAL_SHARE * min(height / self.size[0], width / self.size[1])
        box = max(1, round(scale * self.size[0])), max(1, round(scale * self.size[1]))
        values = (height - box[0]) // 2, (width - box[1]) // 2, *box
        return resize(records, Boxes(*(np.full(len(records), value) for value in values)), self.size)


def pair(size: list[int]) -> tuple[int, int] | None:
    """Return (height, width) for one or two numbers, None for none."""
    return (size[0], size[-1]) if size else None


def size_faults(size: list[int]) -> Iterator[Fault]:
    """Yield that a size has more than two numbers."""
    if len(size) > 2:
        yield Fault(f"size has {len(size)} numbers; give height and width, or one number for both", "size")


def range_faults(name: str, bounds: list[float], most: float = math.inf) -> Iterator[Fault]:
    """Yield that ``bounds`` are not two numbers, the smaller first, of at most ``most``."""
    if len(bounds) != 2 or bounds[0] > bounds[1] or bounds[1] > most:
        limit = "" if most == math.inf else f", which is at most {most:g}"
        yield Fault(f"{name} must be two numbers, the least and the largest{limit}, not {bounds}", name)


@register("augmentation", kTruncate=11)
class Truncate(Augmentation):
    """Keep the first ``length`` steps of sequences (T,), and of their labels where each step has one; in all phases."""

    class Conf(Settings):
        """Settings of kTruncate."""

        length: Count = required("how many steps are kept; shorter sequences stay as they are")

    dtypes = (np.uint8, np.int32, np.float32)
    axes = 1

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        self.shape = (min(facts.shape[0], self.settings.length),)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        return self.evaluate(records)

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(records[:, : self.shape[0]])
