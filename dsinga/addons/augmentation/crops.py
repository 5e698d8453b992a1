"""Augmentations that crop images, cut sequences, erase parts of images, or mix records in pairs."""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Annotated, Any

import numpy as np

from dsinga.addons.augmentation.augmentation import Augmentation, Mixing, RecordFacts, between, pick
from dsinga.addons.augmentation.resampling import Boxes, crop, resize
from dsinga.base.registry import register
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.limits import Count, Natural, Padding, Positive, Range, Unit

ATTEMPTS = 10  # to find a box that lies within the image
CENTRAL_SHARE = 7 / 8  # of the shorter side, kept of images outside training


@register("augmentation", kRandomCrop=1)
class RandomCrop(Augmentation):
    """Pad images with ``pad`` pixels of zeros and crop them at a random place; outside training, crop the centre.

    Like torchvision's RandomCrop. Images (C, H, W) become (C, *size).
    """

    class Conf(Settings):
        """Settings of kRandomCrop."""

        size: list[Count] = setting(
            [], "height and width of the result, or one number for both; by default the image's"
        )
        pad: Padding = setting(0, "how many pixels of zeros are added on every side before the crop")

        def faults(self) -> Iterator[Fault]:
            """Yield an error for an invalid ``size``."""
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
    """Crop images at a random area and aspect ratio, and resize them to ``size`` bilinearly, with antialiasing.

    It is torchvision's RandomResizedCrop. The box's share of the area lies between the two numbers of ``scale``, its
    width/height between the numbers of ``ratio``, uniform in the logarithm. Of ten such boxes the first that fits into
    the image is used, else the largest in the centre.

    Outside training, images of another size are resized, too: 7/8 of the shorter side, in the centre, as Resize(256)
    and CenterCrop(224) do.
    """

    class Conf(Settings):
        """Settings of kRandomResizedCrop."""

        size: list[Count] = setting(
            [], "height and width of the result, or one number for both; by default the image's"
        )
        scale: list[Positive] = setting([0.08, 1.0], "the least and the largest share of the area that is cut out")
        ratio: list[Positive] = setting([0.75, 4 / 3], "the least and the largest width/height that is cut out")

        def faults(self) -> Iterator[Fault]:
            """Yield an error for an invalid ``size``, ``scale`` or ``ratio``."""
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
        """Return the crop box of each image, computed from its random numbers (n, ``draws``)."""
        height, width = self.facts.shape[1:]
        widths, heights = _random_sides(uniform, height * width, self.settings)
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


def _random_sides(uniform: np.ndarray, area: int, settings: Any) -> tuple[np.ndarray, np.ndarray]:
    """Draw the sides of ATTEMPTS candidate boxes per image, whole numbers (n, attempts); first / second = ratio."""
    low, high = map(math.log, settings.ratio)
    areas = area * between(uniform[:, :ATTEMPTS], *settings.scale)
    ratios = np.exp(between(uniform[:, ATTEMPTS : 2 * ATTEMPTS], low, high))
    return np.rint(np.sqrt(areas * ratios)), np.rint(np.sqrt(areas / ratios))


def pair(size: list[int]) -> tuple[int, int] | None:
    """Return a size setting of one or two numbers as (height, width); None for an empty one."""
    return (size[0], size[-1]) if size else None


def size_faults(size: list[int]) -> Iterator[Fault]:
    """Yield an error for a ``size`` of more than two numbers."""
    if len(size) > 2:
        yield Fault(f"size has {len(size)} numbers; give height and width, or one number for both", "size")


def range_faults(name: str, bounds: list[float], most: float = math.inf) -> Iterator[Fault]:
    """Yield an error unless ``bounds`` are two numbers of at most ``most``, the smaller first."""
    if len(bounds) != 2 or bounds[0] > bounds[1] or bounds[1] > most:
        limit = "" if most == math.inf else f", which is at most {most:g}"
        yield Fault(f"{name} must be two numbers, the least and the largest{limit}, not {bounds}", name)


@register("augmentation", kTruncate=11)
class Truncate(Augmentation):
    """Keep the first ``length`` steps of sequences (T,), and of their step labels; in all phases."""

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


Alpha = Annotated[float, Range(0, 100, open_low=True)]
CLASSES = "how many classes there are; without it, as the store says, or its largest label plus 1"


@register("augmentation", kRandomErasing=5)
class RandomErasing(Augmentation):
    """Fill a random rectangle of some images with a constant (Zhong et al., Random Erasing Data Augmentation, 2020).

    It is torchvision's RandomErasing. Its share of the area lies between the two numbers of ``scale``, its height/width
    between the numbers of ``ratio``, uniform in the logarithm. Of ten such rectangles the first that fits into the
    image is used, else none. With ``scale`` 0.25 0.25 and ``ratio`` 1 1 it is a square of half the side, as in Cutout,
    within the image.
    """

    class Conf(Settings):
        """Settings of kRandomErasing."""

        probability: Unit = setting(0.5, "the probability that an image is changed")
        scale: list[Positive] = setting([0.02, 0.33], "the least and the largest share of the area that is filled")
        ratio: list[Positive] = setting([0.3, 3.3], "the least and the largest height/width that is filled")
        value: float = setting(0.0, "the number that pixels become, in the units of the records")

        def faults(self) -> Iterator[Fault]:
            """Yield an error for an invalid ``scale`` or ``ratio``."""
            yield from range_faults("scale", self.scale, 1.0)
            yield from range_faults("ratio", self.ratio)

    draws = 2 * ATTEMPTS + 3

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        height, width = records.shape[2:]
        heights, widths = _random_sides(uniform, height * width, self.settings)
        fits = (heights < height) & (widths < width)
        rows, first = np.arange(len(records)), fits.argmax(axis=1)
        heights, widths = heights[rows, first].astype(np.int64), widths[rows, first].astype(np.int64)
        tops, lefts = pick(uniform[:, -3], 0, height - heights + 1), pick(uniform[:, -2], 0, width - widths + 1)
        heights[~fits.any(axis=1) | (uniform[:, -1] >= self.settings.probability)] = 0
        inside = box_mask(tops, tops + heights, height)[:, :, None] & box_mask(lefts, lefts + widths, width)[:, None]
        np.copyto(records, np.asarray(self.settings.value).astype(records.dtype), where=inside[:, None])
        return records


@register("augmentation", kMixup=9)
class Mixup(Mixing):
    """Mix each record with a partner, λ·x + (1 - λ)·partner, and their labels (Zhang et al., mixup, 2018).

    λ ~ Beta(alpha, alpha) is drawn for each record (in torchvision for each batch). The partner is the previous record
    in the worker group's batch, as in torchvision. Records become float32.
    """

    class Conf(Settings):
        """Settings of kMixup."""

        alpha: Alpha = setting(0.2, "λ is drawn from Beta(alpha, alpha)")
        probability: Unit = setting(1.0, "the probability that a record is mixed")
        classes: Natural = setting(0, CLASSES)

    draws = 2

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        self.dtype = np.dtype(np.float32)

    def mix(self, records: np.ndarray, partners: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        shares = symmetric_beta(uniform[:, 0], self.settings.alpha)
        shares[uniform[:, 1] >= self.settings.probability] = 1
        weights = shares.astype(np.float32).reshape(-1, *(1,) * (records.ndim - 1))
        mixed = records * weights
        mixed += partners * (1 - weights)
        return mixed, shares


@register("augmentation", kCutMix=10)
class CutMix(Mixing):
    """Replace a random box of each image by a box of its partner, and mix labels by area (Yun et al., CutMix, 2019).

    The box's sides are √(1 - λ) times the image's, around a uniform centre; λ ~ Beta(alpha, alpha) is drawn for each
    record. The box is cut off at the edges of the image, and λ becomes the share of the area that is left. The partner
    is the previous record in the worker group's batch.
    """

    class Conf(Settings):
        """Settings of kCutMix."""

        alpha: Alpha = setting(1.0, "λ is drawn from Beta(alpha, alpha)")
        probability: Unit = setting(1.0, "the probability that an image is mixed")
        classes: Natural = setting(0, CLASSES)

    draws = 4

    def mix(self, records: np.ndarray, partners: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        height, width = records.shape[2:]
        half = 0.5 * np.sqrt(1 - symmetric_beta(uniform[:, 0], self.settings.alpha))
        half[uniform[:, 3] >= self.settings.probability] = 0
        sides = []
        for column, length in ((1, width), (2, height)):
            centre, reach = pick(uniform[:, column], 0, length), (half * length).astype(np.int64)
            sides.append((np.maximum(centre - reach, 0), np.minimum(centre + reach, length)))
        (lefts, rights), (tops, bottoms) = sides
        inside = box_mask(tops, bottoms, height)[:, :, None] & box_mask(lefts, rights, width)[:, None]
        np.copyto(records, partners, where=inside[:, None])
        return records, 1 - (rights - lefts) * (bottoms - tops) / (height * width)


def box_mask(starts: np.ndarray, stops: np.ndarray, length: int) -> np.ndarray:
    """Return a mask that is True from ``starts`` to ``stops`` - 1 among ``length`` places, (n, length) bool."""
    places = np.arange(length)
    return (places >= starts[:, None]) & (places < stops[:, None])


def symmetric_beta(uniform: np.ndarray, alpha: float) -> np.ndarray:
    """Turn uniform numbers (n,) in (0, 1) into numbers distributed as Beta(alpha, alpha).

    The inverse distribution function is interpolated between 4096 places; the error is below 1e-5.
    """
    shares, places = _beta_table(alpha)
    upper = uniform > 0.5
    values = np.interp(np.where(upper, 1 - uniform, uniform) ** (1 / alpha), places, shares)
    return np.where(upper, 1 - values, values)


@functools.lru_cache(maxsize=8)
def _beta_table(alpha: float, count: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Tabulate Beta(alpha, alpha): x from 0 to ½, and F(x)^(1/alpha), which is nearly linear in x.

    F(x) = (x·(1 - x))^a/(a·B(a, a))·Σ (2a)(2a + 1)...(2a + k - 1)/((a + 1)(a + 2)...(a + k))·x^k.
    """
    shares = np.linspace(0, 0.5, count)
    total, term = np.ones(count), np.ones(count)
    for k in range(60 + int(20 * alpha)):
        term = term * (2 * alpha + k) / (alpha + 1 + k) * shares
        total += term
    log_beta = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha)
    return shares, shares * (1 - shares) * np.exp((np.log(total) - math.log(alpha) - log_beta) / alpha)
