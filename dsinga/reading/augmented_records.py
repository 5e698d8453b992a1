"""The description of records after the augmentations of their input layer."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.augmentation import AugmentationList, create_augmentations
from dsinga.job import LayerConf, Phase
from dsinga.layers import RecordInfo


def augmented_info(
    layer: LayerConf, info: RecordInfo, dtype: Any, seed: int, phase: Phase
) -> tuple[RecordInfo, AugmentationList | None]:
    """Return the description of records after the augmentations of an input layer, and these, None where none act.

    Args:
        layer: the input layer.
        info: the description of its records as stored.
        dtype: their dtype.
        seed: the job's.
        phase: the phase; the augmentations keep the shape of records equal in all phases.

    Raises UserError where an augmentation does not take these records.
    """
    assert layer.store_conf is not None
    training = bool(phase & Phase.kTrain)
    augmentations = create_augmentations(
        layer.name,
        layer.store_conf,
        info.shape,
        dtype,
        seed=seed,
        training=training,
        label_shape=info.label_shape if info.has_labels else None,
        label_dtype=info.label_dtype,
        label_range=info.label_range,
        names=info.label_names,
    )
    if augmentations is None:
        return info, None
    info = replace(info, shape=augmentations.shape, fit=augmentations if augmentations.changes_shape else None)
    if augmentations.cuts_labels(info.label_shape):
        info = replace(info, label_shape=augmentations.shape)
    if augmentations.partners and info.has_labels:
        shape = (augmentations.classes,) if augmentations.classes else info.label_shape
        info = replace(info, label_shape=shape, label_dtype=np.dtype(np.float32), label_range=None)
    return info, augmentations if training or augmentations.changes_shape else None
