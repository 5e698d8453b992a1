"""Augmentation: changes training records at random while reading batches, for example by crops, colours and mixing."""

from dsinga.addons.augmentation.augmentation import AugmentationList, create_augmentations

__all__ = ["AugmentationList", "create_augmentations"]
