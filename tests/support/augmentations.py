"""Augmentations made for a test, of images that are given, and their application to a batch."""

from typing import Any

import numpy as np

from dsinga.addons.augmentation import AugmentationList, create_augmentations
from dsinga.addons.augmentation.augmentation import Augmentation
from dsinga.job import StoreConf
from dsinga.layers import RecordInfo


def make_list(x: np.ndarray, *augment: dict[str, Any], training: bool = True, seed: int = 0) -> AugmentationList:
    """Return the augmentations of these messages for records like ``x`` (n, ...), with labels of ten classes."""
    labels = RecordInfo(x.shape[1:], 1, label_range=(0, 9))
    conf = StoreConf(augment=list(augment))
    return create_augmentations("data", conf, x.shape[1:], x.dtype, seed=seed, training=training, labels=labels)


def make_one(x: np.ndarray, **fields: Any) -> Augmentation:
    """Return the augmentation of this message for records like ``x``."""
    return make_list(x, fields)._augmentations[0]


def draws(augmentation: Augmentation, count: int, seed: int = 0) -> np.ndarray:
    """Return random numbers of ``count`` records for an augmentation."""
    return np.random.default_rng(seed).uniform(1e-9, 1 - 1e-9, (count, augmentation.draws))


def images(count: int = 6, height: int = 16, width: int = 20, channels: int = 3, seed: int = 0) -> np.ndarray:
    """Return random images (count, channels, height, width) uint8."""
    return np.random.default_rng(seed).integers(0, 256, (count, channels, height, width), dtype=np.uint8)
