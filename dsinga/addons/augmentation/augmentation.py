"""The base class of augmentations, and the list of augmentations that an input layer applies to each batch."""

from __future__ import annotations

import functools
import hashlib
import math
from collections.abc import Sequence
from dataclasses import replace
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job import LayerConf, StoreConf
from dsinga.job.component import Configured, error_note, resolve
from dsinga.layers import RecordInfo

_ROUNDS = 10
_MULTIPLIERS = np.uint64(0xD2511F53), np.uint64(0xCD9E8D57)
_WEYL = 0x9E3779B9, 0xBB67AE85  # added to the key in each round
_LOW, _HALF = np.uint64(0xFFFF_FFFF), np.uint64(32)
Shape = tuple[int, ...]


class RecordFacts(NamedTuple):
    """The layer, shape and dtype of the records that an augmentation receives.

    ``shape`` is (C, H, W) for images, (T,) for sequences; ``dtype`` is uint8, int32 or float32.
    """

    layer: str
    shape: Shape
    dtype: np.dtype


class Augmentation(Configured):
    """Base class of augmentations, which change a batch of images (n, C, H, W) with random numbers for each record.

    Register a subclass with ``@register("augmentation", "Name")``; it may have settings, ``Conf``. Its ``__init__``
    sets ``shape`` and ``dtype`` if they differ from the received records'.

    Attributes:
        draws: the number of random numbers for each record.
        dtypes: the accepted dtypes of records.
    """

    draws: int = 0
    dtypes: ClassVar[tuple[Any, ...]] = (np.uint8, np.float32)
    axes: ClassVar[int] = 3  # of a record
    mixes_records: ClassVar[bool] = False

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf)
        self.facts = facts
        self.shape, self.dtype = facts.shape, facts.dtype
        if len(facts.shape) != self.axes:
            takes = "images (channels, height, width)" if self.axes == 3 else "sequences of one number a step"
            raise self.fail(
                f"takes {takes}, but a record has {len(facts.shape)} axes; give the shape of a record in store_conf"
            )
        if facts.dtype not in self.dtypes:
            names = " or ".join(np.dtype(dtype).name for dtype in self.dtypes)
            raise self.fail(
                f"takes records of {names}, but gets {facts.dtype.name}; store images as uint8, and put what gives "
                "float32, such as kLighting and kMixup, after it"
            )

    def fail(self, message: str, field: str | None = None) -> Exception:
        """Return an error about this augmentation, naming its layer; the caller raises it."""
        return self.conf.error(f"layer {self.facts.layer!r}: {self.conf.type_name} {message}", field)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return augmented records (n, *shape); may overwrite the given ones.

        ``uniform`` has the random numbers of each record, (n, ``draws``) float64 in (0, 1).
        """
        raise NotImplementedError

    def check_changed(self, records: Any, count: int) -> None:
        """Check that :meth:`augment` returned ``count`` records of shape ``shape``; raise JobError otherwise."""
        if not isinstance(records, np.ndarray) or records.shape != (count, *self.shape):
            given = f"the shape {records.shape}" if isinstance(records, np.ndarray) else type(records).__name__
            raise self.fail(
                f"returned {given} for {count} records of the shape {self.shape}: return an array of all changed "
                "records, and set self.shape in __init__ where their shape is another one"
            )

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        """Bring records to ``shape`` without randomness, for phases other than training."""
        return records

    @staticmethod
    def augmented_info(
        layer: LayerConf, info: RecordInfo, dtype: Any, seed: int, training: bool
    ) -> tuple[RecordInfo, AugmentationList | None]:
        """Describe an input layer's records after augmentation; also return its augmentations, or None.

        ``info`` and ``dtype`` describe stored records. Augmented records have the same shape in all phases.
        """
        assert layer.store_conf is not None
        labels = info if info.has_labels else None
        augmentations = create_augmentations(
            layer.name, layer.store_conf, info.shape, dtype, seed=seed, training=training, labels=labels
        )
        info = replace(info, shape=augmentations.shape, fit=augmentations if augmentations.changes_shape else None)
        if augmentations.cuts_labels(info.label_shape):
            info = replace(info, label_shape=augmentations.shape)
        if augmentations.partners and info.has_labels:
            shape = (augmentations.classes,) if augmentations.classes else info.label_shape
            info = replace(info, label_shape=shape, label_dtype=np.dtype(np.float32), label_range=None)
        return info, augmentations if training or augmentations.changes_shape else None


class Mixing(Augmentation):
    """Base class of augmentations that mix each record with the record before it in the group's batch.

    The first record's partner is the last one. Labels are mixed, too, as numbers: classes become vectors (K,) with a 1
    for the class. kSoftmaxLoss computes -Σ t·log p of them, and accuracy for the largest share.
    """

    mixes_records = True

    def mix(self, records: np.ndarray, partners: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mixed records (n, *shape), and each record's own share, (n,) float64, which also mixes labels."""
        raise NotImplementedError


class AugmentationList:
    """The augmentations of an input layer, in order; outside training only their changes of shape apply.

    Random numbers depend only on the seed, the place in the list, the record and its epoch. So two input layers with
    lists that begin alike, for images and their masks, change them alike.

    Attributes:
        classes: the length of mixed labels; 0 for other labels.
        partners: how many preceding records a part of a batch reads as partners.
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
        """Whether augmented records have another shape than stored ones."""
        return self.shape != self.stored_shape

    def augment(
        self, records: np.ndarray, labels: np.ndarray | None, numbers: np.ndarray, epochs: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray | None]:
        """Augment a part of a batch, and mix or cut its labels accordingly.

        ``records`` (may be overwritten) and ``labels`` begin with the preceding partners, which are not returned;
        ``numbers`` are the records' numbers in their store.
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
        """Bring records (n, *stored_shape) to the shape (n, *shape), without randomness."""
        return self._as_stored(self._evaluate(self._as_images(records)))

    def cut_labels(self, labels: np.ndarray) -> np.ndarray:
        """Cut labels with one number per step, (n, T), to the length of cut sequences; return others unchanged."""
        return np.ascontiguousarray(labels[:, : self.shape[0]]) if self.cuts_labels(labels.shape[1:]) else labels

    def cuts_labels(self, label_shape: Shape) -> bool:
        """Whether labels of this shape have one number per step of sequences that are cut."""
        return self.changes_shape and len(self.stored_shape) == 1 and tuple(label_shape) == self.stored_shape

    def _evaluate(self, records: np.ndarray) -> np.ndarray:
        for augmentation in self._augmentations:
            records = augmentation.evaluate(records)
        return records

    def _as_images(self, records: np.ndarray) -> np.ndarray:
        if self._channels_last:
            return np.ascontiguousarray(np.moveaxis(records.reshape(len(records), *self.stored_shape), -1, 1))
        return records.reshape(len(records), *self._augmentations[0].facts.shape)

    def _as_stored(self, records: np.ndarray) -> np.ndarray:
        if self._channels_last:
            return np.ascontiguousarray(np.moveaxis(records, 1, -1))
        return records[:, 0] if self._has_rows else records

    def _as_floats(self, labels: np.ndarray) -> np.ndarray:
        if not self.classes:
            return labels.astype(np.float32)
        if labels.size and not 0 <= labels.min() <= labels.max() < self.classes:
            wrong = labels[(labels < 0) | (labels >= self.classes)][0]
            mixing = next(each for each in self._augmentations if isinstance(each, Mixing))
            raise mixing.fail(f"gets the label {wrong}, which is none of {self.classes} classes; correct classes")
        vectors = np.zeros((len(labels), self.classes), np.float32)
        vectors[np.arange(len(labels)), labels] = 1
        return vectors


def _mixed(labels: np.ndarray, shares: np.ndarray) -> np.ndarray:
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
    labels: RecordInfo | None = None,
) -> AugmentationList:
    """Create the augmentations in an input layer's settings, and check that they accept its records."""
    stored = tuple(conf.shape) or tuple(shape)
    if math.prod(stored) != math.prod(shape):
        if not training:
            of_stored = create_augmentations(layer, conf, stored, dtype, seed=seed, training=False)
            if of_stored.shape == tuple(shape):  # records to predict that are cropped already
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
    if training and mixing is not None and labels is not None and np.dtype(labels.label_dtype).kind != "f":
        if labels.label_shape:
            raise mixing.fail(f"mixes one label a record, but the store has {labels.label_shape} of them; leave it out")
        highest = int(labels.label_range[1]) if labels.label_range else -1
        largest = max((each.settings.classes for each in augmentations if isinstance(each, Mixing)), default=0)
        classes = largest or len(labels.label_names) or highest + 1
        if highest >= classes:
            text = f"has classes: {classes}, but there is a label {highest}; give {highest + 1} or more"
            raise mixing.fail(text, "classes")
    return AugmentationList(augmentations, stored, seed, training, classes, channels_last)


def uniform(key: tuple[int, int], records: np.ndarray, epochs: np.ndarray, columns: int) -> np.ndarray:
    """Return uniform float64 numbers in (0, 1) of shape (n, ``columns``), a row for each record.

    They are (w + ½)/2³² for words w of Philox4x32-10 (Salmon et al., Parallel Random Numbers: As Easy as 1, 2, 3,
    2011). The counter is the record, its epoch and the column. ``key`` is from :func:`stream_key`; ``records`` and
    ``epochs`` are (n,).
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
    """Return the Philox key for the random numbers of augmentation number ``stream`` in a job."""
    digest = hashlib.blake2b(f"augmentation {seed} {stream}".encode(), digest_size=8).digest()
    return int.from_bytes(digest[:4], "little"), int.from_bytes(digest[4:], "little")


def _philox(
    key: tuple[int, int], c0: np.ndarray, c1: np.ndarray, c2: np.ndarray, c3: np.ndarray
) -> tuple[np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    for number in range(_ROUNDS):
        k0, k1 = (np.uint64((word + number * step) & 0xFFFF_FFFF) for word, step in zip(key, _WEYL, strict=True))
        first, second = c0 * _MULTIPLIERS[0], c2 * _MULTIPLIERS[1]
        c0, c1 = (second >> _HALF) ^ c1 ^ k0, second & _LOW
        c2, c3 = (first >> _HALF) ^ c3 ^ k1, first & _LOW
    return c0, c1, c2, c3


def pick(uniform: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return random integers from ``low`` to ``high`` - 1, int64, made from uniform numbers in (0, 1)."""
    low, high = np.asarray(low, np.int64), np.asarray(high, np.int64)
    return low + np.floor(uniform * (high - low)).astype(np.int64)


def between(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """Scale uniform numbers in (0, 1) to the range from ``low`` to ``high``, float64."""
    return low + uniform * (high - low)
