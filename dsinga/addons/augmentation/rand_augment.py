"""RandAugment: a few operations on each image, chosen at random from fourteen, of one magnitude."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import numpy as np

from dsinga.addons.augmentation import image_filters
from dsinga.addons.augmentation.augmentation import Augmentation, RecordFacts, pick
from dsinga.addons.augmentation.images import check_channels, rotations
from dsinga.addons.augmentation.resampling import transform_nearest
from dsinga.base.registry import register
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.limits import Count, Natural

BINS = 31  # of magnitudes
Operation = Callable[[np.ndarray, np.ndarray, int], np.ndarray]


@register("augmentation", kRandAugment=8)
class RandAugment(Augmentation):
    """Change each uint8 image by ``num_ops`` operations, each drawn from fourteen (Cubuk et al., RandAugment, 2020).

    The operations, their strengths by ``magnitude`` and the random signs are those of torchvision's RandAugment with
    31 bins and black for what comes from outside; geometric ones take the nearest pixel. Each has Pillow's bits.
    """

    class Conf(Settings):
        """Settings of kRandAugment."""

        num_ops: Count = setting(2, "how many operations are applied to an image, one after another")
        magnitude: Natural = setting(9, "the strength of the operations, from 0 to 30")

        def faults(self) -> Iterator[Fault]:
            """Yield that the magnitude is too large."""
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
    """Return uint8 images (n, C, H, W) after an operation of ``OPERATIONS``; ``signs`` are 1 or -1, (n,)."""
    return OPERATIONS[name](images, signs, magnitude)


def _share(magnitude: int) -> float:
    return magnitude / (BINS - 1)


def _affine(a: Any = 1, b: Any = 0, c: Any = 0, d: Any = 0, e: Any = 1, f: Any = 0) -> np.ndarray:
    """Return matrices (n, 6) of numbers and arrays (n,)."""
    return np.stack(np.broadcast_arrays(*map(np.float64, (a, b, c, d, e, f))), axis=-1)


def _translate_x(images: np.ndarray, signs: np.ndarray, magnitude: int) -> np.ndarray:
    return transform_nearest(images, _affine(c=-_pixels(images.shape[3], magnitude) * signs))


def _translate_y(images: np.ndarray, signs: np.ndarray, magnitude: int) -> np.ndarray:
    return transform_nearest(images, _affine(f=-_pixels(images.shape[2], magnitude) * signs))


def _pixels(length: int, magnitude: int) -> int:
    """Return by how many pixels images of this width or height are moved."""
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
