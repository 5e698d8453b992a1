"""The augmentations of an input layer, applied in order to the records of each batch, and their random numbers."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.addons.augmentation.augmentation import Augmentation, Mixing, RecordFacts, Shape
from dsinga.job import StoreConf
from dsinga.job.component import error_note, resolve

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85  # what is added to the key in each round
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)


class AugmentationList:
    """The augmentations of the input layer of a phase, in order; outside training what they do to the shape alone.

    The random numbers of a record depend on the seed, the place in the list, the record and its epoch. So cutting the
    batch over workers, its size, the number of worker groups and the processes that read it change nothing, and two
    input layers whose lists begin alike, for images and their masks, are changed alike.

    Attributes:
        stored_shape: the shape of a record as the augmentations get it.
        shape: the shape of a record after them.
        classes: the length of mixed labels, 0 for labels that are not mixed or are no classes.
        partners: how many records of the places before a part of a batch are read for it, as partners.
    """

    def __init__(
        self,
        augmentations: Sequence[Augmentation],
        stored_shape: Shape,
        seed: int,
        training: bool,
        classes: int = 0,
        channels_last: bool = False,
    ):
        self._augmentations, self._seed, self._training = tuple(augmentations), seed, training
        self._has_rows = len(stored_shape) == 2 and len(augmentations[0].facts.shape) == 3  # without channels
        self._channels_last = channels_last
        self.stored_shape = stored_shape
        last = augmentations[-1].shape
        self.shape = last[1:] if self._has_rows else (*last[1:], last[0]) if channels_last else last
        self.partners = sum(isinstance(augmentation, Mixing) for augmentation in augmentations) if training else 0
        self.classes = classes

    @property
    def changes_shape(self) -> bool:
        """Whether records have another shape after the augmentations."""
        return self.shape != self.stored_shape

    def augment(
        self, records: np.ndarray, labels: np.ndarray | None, numbers: np.ndarray, epochs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Return the changed records of a part of a batch, and their labels.

        Args:
            records: (partners + n, ...) as stored: those of the places before the part, which are not returned, and
                those of its n rows. They may be overwritten.
            labels: their labels (partners + n, ...), None without.
            numbers: the number of each record in its store, (partners + n,).
            epochs: the epoch of each record, (partners + n,).

        Raises UserError for labels that are not in [0, classes).
        """
        records = self._as_images(records)
        if labels is not None:
            labels = self.cut_labels(labels)
        if not self._training:
            return self._as_stored(self._evaluate(records)), labels
        if self.partners and labels is not None:
            labels = self._as_floats(labels)
        for stream, augmentation in enumerate(self._augmentations):
            draws = uniform(stream_key(self._seed, stream), numbers, epochs, augmentation.draws)
            if isinstance(augmentation, Mixing):
                numbers, epochs = numbers[1:], epochs[1:]
                records, shares = augmentation.mix(records[1:], records[:-1].copy(), draws[1:])
                if labels is not None:
                    labels = _mixed(labels, shares)
            else:
                records = augmentation.augment(records, draws)
            augmentation.check_changed(records, len(numbers))
        return self._as_stored(records), labels

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        """Return records (n, *stored_shape) in the shape (n, *shape), without randomness."""
        return self._as_stored(self._evaluate(self._as_images(records)))

    def cut_labels(self, labels: np.ndarray) -> np.ndarray:
        """Return the labels of records of ``shape``: of sequences that are cut, the first of (n, T) step labels."""
        return np.ascontiguousarray(labels[:, : self.shape[0]]) if self.cuts_labels(labels.shape[1:]) else labels

    def cuts_labels(self, label_shape: Shape) -> bool:
        """Whether records with labels of this shape are sequences with a label for each step, which are cut."""
        return self.changes_shape and len(self.stored_shape) == 1 and tuple(label_shape) == self.stored_shape

    def _evaluate(self, records: np.ndarray) -> np.ndarray:
        for augmentation in self._augmentations:
            records = augmentation.evaluate(records)
        return records

    def _as_images(self, records: np.ndarray) -> np.ndarray:
        """Return records as the augmentations take them: those of the first one's shape."""
        if self._channels_last:
            return np.ascontiguousarray(np.moveaxis(records.reshape(len(records), *self.stored_shape), -1, 1))
        return records.reshape(len(records), *self._augmentations[0].facts.shape)

    def _as_stored(self, records: np.ndarray) -> np.ndarray:
        """Return images (n, C, H, W) with their axes as those of stored records."""
        if self._channels_last:
            return np.ascontiguousarray(np.moveaxis(records, 1, -1))
        return records[:, 0] if self._has_rows else records

    def _as_floats(self, labels: np.ndarray) -> np.ndarray:
        """Return labels as numbers that can be mixed: those of classes as vectors (n, classes)."""
        if not self.classes:
            return labels.astype(np.float32)
        if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
            wrong = labels[(labels < 0) | (labels >= self.classes)][0]
            mixing = next(each for each in self._augmentations if isinstance(each, Mixing))
            raise mixing.fail(f"gets the label {wrong}, which is none of {self.classes} classes; correct classes")
        vectors = np.zeros((len(labels), self.classes), np.float32)
        vectors[np.arange(len(labels)), labels] = 1
        return vectors


def mixes(conf: StoreConf) -> bool:
    """Whether an input layer mixes training records, and their labels, with those of others."""
    return any(issubclass(resolve(message), Mixing) for message in conf.augment)


def _mixed(labels: np.ndarray, shares: np.ndarray) -> np.ndarray:
    """Return share·label + (1 - share)·label of the place before, (n, ...), for labels (1 + n, ...)."""
    weights = shares.astype(np.float32).reshape(-1, *(1,) * (labels.ndim - 1))
    return weights * labels[1:] + (1 - weights) * labels[:-1]


def create_augmentations(
    layer: str,
    conf: StoreConf,
    shape: Shape,
    dtype: Any,
    *,
    seed: int,
    training: bool,
    label_shape: Shape | None = None,
    label_dtype: Any = None,
    label_range: tuple[float, float] | None = None,
    names: Sequence[str] = (),
) -> AugmentationList | None:
    """Return the augmentations of an input layer for a phase, None for a layer without.

    Args:
        layer: the name of the input layer.
        conf: its store_conf.
        shape: the shape of a record in the store.
        dtype: the dtype of the records.
        seed: the job's.
        training: whether the phase is training.
        label_shape: the shape of a record's label, None for records without labels.
        label_dtype: int64 or float32.
        label_range: the smallest and the largest label, where they are integers.
        names: the names of the classes, if known.

    Raises:
        JobError: an augmentation does not take these records or labels.
    """
    if not conf.augment:
        return None
    stored = tuple(conf.shape) or tuple(shape)
    if math.prod(stored) != math.prod(shape):
        of_stored = None if training else create_augmentations(layer, conf, stored, dtype, seed=seed, training=False)
        if of_stored is not None and of_stored.shape == tuple(shape):  # records to predict that are cropped already
            return create_augmentations(layer, conf.replace(shape=[]), shape, dtype, seed=seed, training=False)
        raise conf.error(
            f"layer {layer!r}: store_conf gives a record the shape {stored} ({math.prod(stored)} numbers), but the "
            f"store has records of {tuple(shape)} ({math.prod(shape)} numbers); leave shape out, or make them equal",
            "shape",
        )
    channels_last = conf.channels_last and len(stored) == 3  # the layer refuses other records
    images = (1, *stored) if len(stored) == 2 else (stored[2], *stored[:2]) if channels_last else stored
    facts = RecordFacts(layer, images, np.dtype(dtype))
    augmentations: list[Augmentation] = []
    for message in conf.augment:
        with error_note(f"in augmentation {message.type_name!r} of layer {layer!r}"):
            cls = resolve(message)
            if cls.augment is Augmentation.augment and not issubclass(cls, Mixing):
                raise message.error(f"{cls.__name__} defines no augment(self, records, uniform)", "user_type")
            augmentation = cls(message, facts)
        augmentations.append(augmentation)
        facts = RecordFacts(layer, augmentation.shape, augmentation.dtype)
    mixing = next((each for each in augmentations if isinstance(each, Mixing)), None)
    classes = 0
    if training and mixing is not None and label_shape is not None and np.dtype(label_dtype).kind != "f":
        if label_shape:
            raise mixing.fail(f"mixes one label a record, but the store has {label_shape} of them; leave it out")
        largest = max((each.settings.classes for each in augmentations if isinstance(each, Mixing)), default=0)
        classes = largest or len(names) or (int(label_range[1]) + 1 if label_range else 0)
        if label_range is not None and label_range[1] >= classes:
            raise mixing.fail(
                f"has classes: {classes}, but there is a label {label_range[1]:g}; give {label_range[1] + 1:g} or more",
                "classes",
            )
    return AugmentationList(augmentations, stored, seed, training, classes, channels_last)


def uniform(key: tuple[int, int], records: np.ndarray, epochs: np.ndarray, columns: int) -> np.ndarray:
    """Return uniform float64 numbers in (0, 1) of shape (n, ``columns``), a row for each record.

    They are words w of Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3, 2011), as
    (w + ½)/2³². The counter is the record, its epoch and the column, so that a row depends on nothing else.

    Args:
        key: two numbers below 2³², as :func:`stream_key` returns them.
        records: the number of each record, (n,) integers.
        epochs: the epoch of each record, (n,) integers.
        columns: how many numbers a record gets.
    """
    blocks = -(-columns // 4)
    records, epochs = np.asarray(records, np.uint64)[:, None], np.asarray(epochs, np.uint64)[:, None]
    shape = len(records), blocks
    counters = records & _LOW, records >> _HALF, epochs & _LOW, np.arange(blocks, dtype=np.uint64)[None, :]
    words = _philox(key, *(np.broadcast_to(counter, shape) for counter in counters))
    numbers = (np.stack(words, axis=2).reshape(shape[0], 4 * blocks)[:, :columns] + 0.5) * 2.0**-32
    return np.ascontiguousarray(numbers)


@functools.cache
def stream_key(seed: int, stream: int) -> tuple[int, int]:
    """Return the key of the random numbers of augmentation number ``stream`` of a job with this seed."""
    digest = hashlib.blake2b(f"augmentation {seed} {stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _philox(
    key: tuple[int, int], c0: np.ndarray, c1: np.ndarray, c2: np.ndarray, c3: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Return the four 32-bit words of Philox4x32-10 for each counter, as uint64."""
    for number in range(_ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFF_FFFF) for word, step in zip(key, _WEYL, strict=True))
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return c0, c1, c2, c3
