"""Augmentations that mix each record with another of its batch: kMixup and kCutMix."""

from __future__ import annotations

import functools
import math
from typing import Annotated, Any

import numpy as np

from dsinga.augmentation.augmentation import Mixing, RecordFacts, pick
from dsinga.augmentation.erasing import box_mask
from dsinga.base.registry import register
from dsinga.job.component import Settings, setting
from dsinga.job.limits import Natural, Range, Unit

Alpha = Annotated[float, Range(0, 100, open_low=True)]
CLASSES = "how many classes there are; without it, as the store says, or its largest label plus 1"


@register("augmentation", kMixup=9)
class Mixup(Mixing):
    """Add a partner to each record: λ·x + (1 - λ)·partner, and their labels alike (Zhang et al., mixup, 2018).

    λ ~ Beta(alpha, alpha) is drawn for each record (torchvision draws one for a batch). The partner is the record
    before it in the batch of the worker group, as in torchvision. Records become float32.
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
    """Replace a random box of each image by its partner's, and mix labels by area (Yun et al., CutMix, 2019).

    The sides of the box are √(1 - λ) of the image's, λ ~ Beta(alpha, alpha) drawn for each record, around a uniform
    centre; what lies outside of the image is cut off, and λ becomes the share of the area that is left. The box is
    torchvision's, and so is the partner, the record before it in the batch of the worker group.
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


def symmetric_beta(uniform: np.ndarray, alpha: float) -> np.ndarray:
    """Return numbers (n,) in [0, 1] distributed as Beta(alpha, alpha), for uniform ones in (0, 1).

    It is the inverse of the distribution function, interpolated between 4096 places; the error is below 1e-5.
    """
    shares, places = _beta_table(alpha)
    upper = uniform > 0.5
    values = np.interp(np.where(upper, 1 - uniform, uniform) ** (1 / alpha), places, shares)
    return np.where(upper, 1 - values, values)


@functools.lru_cache(maxsize=8)
def _beta_table(alpha: float, count: int = 4096) -> tuple[np.ndarray, np.ndarray]:
    """Return x from 0 to ½ and F(x)^(1/alpha), in which the distribution function F is nearly a line.

    F(x) = (x·(1 - x))^a/(a·B(a, a))·Σ (2a)(2a + 1)...(2a + k - 1)/((a + 1)(a + 2)...(a + k))·x^k.
    """
    shares = np.linspace(0, 0.5, count)
    total, term = np.ones(count), np.ones(count)
    for k in range(60 + int(20 * alpha)):
        term = term * (2 * alpha + k) / (alpha + 1 + k) * shares
        total += term
    log_beta = 2 * math.lgamma(alpha) - math.lgamma(2 * alpha)
    return shares, shares * (1 - shares) * np.exp((np.log(total) - math.log(alpha) - log_beta) / alpha)
