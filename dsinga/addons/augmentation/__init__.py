"""Augmentation: random changes of training records, such as crops, colours and mixing, where batches are read."""

from dsinga.addons.augmentation.augmentation_list import AugmentationList, create_augmentations, mixes

__all__ = ["AugmentationList", "create_augmentations", "mixes"]
