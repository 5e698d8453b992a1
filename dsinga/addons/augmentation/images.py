"""Augmentations that flip, turn or move images, or change their colours; RandAugment chooses among such operations."""

from __future__ import annotations

import math
from collections.abc import Callable, Iterator
from typing import Annotated, Any

import numpy as np

from dsinga.addons.augmentation import image_filters
from dsinga.addons.augmentation.augmentation import Augmentation, RecordFacts, between, pick
from dsinga.addons.augmentation.resampling import transform_bilinear, transform_nearest
from dsinga.base.registry import register
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Count, Natural, NonNegative, Positive, Range, Unit

HalfTurn = Annotated[float, Range(0, 0.5)]
# The principal components of the colours of ImageNet, of pixels from 0 to 255 (Krizhevsky's, as in common use).
EIGENVALUES = np.array([55.46, 4.794, 1.148])
EIGENVECTORS = np.array([[-0.5675, 0.7192, 0.4009], [-0.5808, -0.0045, -0.8140], [-0.5836, -0.6948, 0.4203]])


@register("augmentation", kRandomFlip=3)
class RandomFlip(Augmentation):
    """Mirror images, each with a probability: from left to right, and from top to bottom.

    Like torchvision's RandomHorizontalFlip and RandomVerticalFlip.
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
    """Rotate images around their centre by a random angle, bilinearly, with 0 outside the image.

    The angle is uniform between -``degrees`` and ``degrees``, counter-clockwise; the size stays. It is torchvision's
    RandomRotation with bilinear interpolation.
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
    """Move images by a random share of their height and width, bilinearly, and fill the border by reflection.

    Like Keras's RandomTranslation with its fill_mode "reflect".
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
    """Return matrices (n, 6) that rotate images around their centre, for :func:`transform_nearest`."""
    angles = np.deg2rad(degrees)
    cosine, sine = np.round(np.cos(angles), 15), np.round(np.sin(angles), 15)
    x, y = width / 2, height / 2
    return np.stack([cosine, -sine, x - cosine * x + sine * y, sine, cosine, y - sine * x - cosine * y], axis=1)


@register("augmentation", kColorJitter=6)
class ColorJitter(Augmentation):
    """Change brightness, contrast, saturation and hue of uint8 images at random, in this order.

    It is torchvision's ColorJitter in a fixed order. The factor of each of the first three is uniform between 1 - x and
    1 + x, at least 0. The hue rotates by a share of the circle between -``hue`` and ``hue``. The first three equal
    Pillow's ImageEnhance bit for bit.
    """

    class Conf(Settings):
        """Settings of kColorJitter."""

        brightness: NonNegative = setting(0.0, "by how much the factor of the brightness may differ from 1")
        contrast: NonNegative = setting(0.0, "by how much the factor of the contrast may differ from 1")
        saturation: NonNegative = setting(0.0, "by how much the factor of the saturation may differ from 1")
        hue: HalfTurn = setting(0.0, "the largest turn of the hue, as a share of the circle")

    draws = 4
    dtypes = (np.uint8,)

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        check_channels(self)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        for column, name in enumerate(("brightness", "contrast", "saturation")):
            if most := getattr(self.settings, name):
                factors = between(uniform[:, column], max(0.0, 1 - most), 1 + most)
                records = getattr(image_filters, name)(records, factors)
        if self.settings.hue:
            records = image_filters.hue(records, between(uniform[:, 3], -self.settings.hue, self.settings.hue))
        return records


@register("augmentation", kLighting=7)
class Lighting(Augmentation):
    """Add to all pixels of an image a random sum of the principal components of ImageNet's colours, as AlexNet does.

    Krizhevsky et al., ImageNet Classification with Deep Convolutional Neural Networks (2012), 4.1: (p1, p2, p3)·(α1·λ1,
    α2·λ2, α3·λ3). αi is normally distributed with the standard deviation ``std``. The result is float32, not rounded
    and not limited.
    """

    class Conf(Settings):
        """Settings of kLighting."""

        std: NonNegative = setting(0.1, "the standard deviation of the factors")
        pixel_max: Positive = setting(255.0, "the number of a white pixel: 255, or 1 for records from 0 to 1")

    draws = 4

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        check_channels(self, 3)
        self.dtype = np.dtype(np.float32)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        factors = normal(uniform)[:, :3] * (self.settings.std * self.settings.pixel_max / 255) * EIGENVALUES
        shift = (factors[:, None, :] * EIGENVECTORS).sum(axis=2).astype(np.float32)
        return records + shift[:, :, None, None]


def normal(uniform: np.ndarray) -> np.ndarray:
    """Turn uniform numbers in (0, 1), (n, an even number), into normal ones by Box and Muller."""
    radius = np.sqrt(-2 * np.log(uniform[:, ::2]))
    angle = 2 * np.pi * uniform[:, 1::2]
    return np.concatenate([radius * np.cos(angle), radius * np.sin(angle)], axis=1)


def check_channels(augmentation: Augmentation, *counts: int) -> None:
    """Raise JobError unless images have one of these numbers of channels, by default 1 or 3."""
    shape, counts = augmentation.facts.shape, counts or (1, 3)
    if shape[0] in counts:
        return
    remedy = "leave it out"
    if shape[-1] in counts:
        remedy = f'if the channels are last, begin with nn.Input({shape}, data_format="channels_last", augment=...)'
    takes = " or ".join(map(str, counts))
    raise augmentation.fail(f"takes images of {takes} channels, not of {shape[0]}; {remedy}")


BINS = 31  # of magnitudes
Operation = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@register("augmentation", kRandAugment=8)
class RandAugment(Augmentation):
    """Change each uint8 image by ``num_ops`` operations, each drawn from fourteen (Cubuk et al., RandAugment, 2020).

    The operations, their strengths by ``magnitude`` and the random signs match torchvision's RandAugment with 31 bins.
    Geometric operations use the nearest pixel, and black outside the image; all equal Pillow's bit for bit.
    """

    class Conf(Settings):
        """Settings of kRandAugment."""

        num_ops: Count = setting(2, "how many operations are applied to an image, one after another")
        magnitude: Natural = setting(9, "the strength of the operations, from 0 to 30")

        def faults(self) -> Iterator[Fault]:
            """Yield an error if ``magnitude`` is too large."""
            if self.magnitude >= BINS:
                yield Fault(f"magnitude is {self.magnitude}; give 0 to {BINS - 1}", "magnitude")

    dtypes = (np.uint8,)

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        check_channels(self)
        self.draws = 2 * self.settings.num_ops

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        names = list(OPERATIONS)
        for number in range(self.settings.num_ops):
            choices = pick(uniform[:, 2 * number], 0, len(names))
            signs = np.where(uniform[:, 2 * number + 1] < 0.5, 1.0, -1.0)
            for choice in np.unique(choices):
                chosen = np.flatnonzero(choices == choice)
                records[chosen] = apply(names[choice], records[chosen], self.settings.magnitude, signs[chosen])
        return records


def apply(name: str, images: np.ndarray, magnitude: int, signs: np.ndarray) -> np.ndarray:
    """Apply the operation ``name`` of RandAugment to uint8 images (n, C, H, W); ``signs`` are 1 or -1, (n,)."""
    return OPERATIONS[name](images, signs, magnitude)


def _share(magnitude: int) -> float:
    return magnitude / (BINS - 1)


def _affine(a: Any = 1, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 1, f: Any = 0) -> np.ndarray:
    return np.stack(np.broadcast_arrays(*map(np.float64, (a, b, c, d, e, f))), axis=-1)


def _translate_x(images: np.ndarray, signs: np.ndarray, magnitude: int) -> np.ndarray:
    return transform_nearest(images, _affine(c=-_pixels(images.shape[3], magnitude) * signs))


def _translate_y(images: np.ndarray, signs: np.ndarray, magnitude: int) -> np.ndarray:
    return transform_nearest(images, _affine(f=-_pixels(images.shape[2], magnitude) * signs))


def _pixels(length: int, magnitude: int) -> int:
    return int(150 / 331 * length * _share(magnitude))


def _factor(signs: np.ndarray, magnitude: int) -> np.ndarray:
    return 1 + signs * 0.9 * _share(magnitude)


def _posterize(images: np.ndarray, signs: np.ndarray, magnitude: int) -> np.ndarray:
    return image_filters.posterize(images, np.full(len(images), 8 - round(magnitude / ((BINS - 1) / 4))))


OPERATIONS: dict[str, Operation] = {
    "Identity": lambda images, signs, magnitude: images,
    "ShearX": lambda images, signs, magnitude: transform_nearest(images, _affine(b=signs * 0.3 * _share(magnitude))),
    "ShearY": lambda images, signs, magnitude: transform_nearest(images, _affine(d=signs * 0.3 * _share(magnitude))),
    "TranslateX": _translate_x,
    "TranslateY": _translate_y,
    "Rotate": lambda images, signs, magnitude: transform_nearest(
        images, rotations(signs * 30 * _share(magnitude), *images.shape[2:])
    ),
    "Brightness": lambda images, signs, magnitude: image_filters.brightness(images, _factor(signs, magnitude)),
    "Color": lambda images, signs, magnitude: image_filters.saturation(images, _factor(signs, magnitude)),
    "Contrast": lambda images, signs, magnitude: image_filters.contrast(images, _factor(signs, magnitude)),
    "Sharpness": lambda images, signs, magnitude: image_filters.sharpness(images, _factor(signs, magnitude)),
    "Posterize": _posterize,
    "Solarize": lambda images, signs, magnitude: image_filters.solarize(
        images, np.full(len(images), 255 * (1 - _share(magnitude)))
    ),
    "AutoContrast": lambda images, signs, magnitude: image_filters.autocontrast(images),
    "Equalize": lambda images, signs, magnitude: image_filters.equalize(images),
}
