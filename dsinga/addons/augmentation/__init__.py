"""Augmentation: random changes of training records, such as crops, colours and mixing, where batches are read."""

from dsinga.addons.augmentation.augmentation import AugmentationList, create_augmentations

__all__ = ["AugmentationList", "create_augmentations"]
