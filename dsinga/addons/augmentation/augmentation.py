"""The base class of augmentations, and the facts about records that they are made for."""

from __future__ import annotations

from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.job.component import Configured

Shape = tuple[int, ...]


class RecordFacts(NamedTuple):
    """The records that an augmentation gets.

    Attributes:
        layer: the name of the input layer, for messages.
        shape: (C, H, W) of images, (T,) of sequences.
        dtype: uint8, int32 or float32.
    """

    layer: str
    shape: Shape
    dtype: np.dtype


class Augmentation(Configured):
    """Base of augmentations: each changes a batch of images (n, C, H, W) by random numbers of its records.

    A subclass is registered, ``@register("augmentation", "Name")``, and may have settings, ``Conf``. It sets ``shape``
    and ``dtype`` in ``__init__`` where they differ from those of the records that it gets.

    Attributes:
        draws: how many random numbers it takes for each record.
        dtypes: the dtypes of the records that it takes.
        facts: the records that it gets.
        shape: the shape of a record that it returns.
        dtype: the dtype of the records that it returns.

    Args:
        conf: its message in a job.
        facts: the records that it will get.

    Raises:
        JobError: settings are wrong, or do not fit the records.
    """

    draws: int = 0
    dtypes: ClassVar[tuple[Any, ...]] = (np.uint8, np.float32)
    axes: ClassVar[int] = 3  # of a record

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
        """Return an error about this augmentation, with the name of its layer; the caller raises it."""
        return self.conf.error(f"layer {self.facts.layer!r}: {self.conf.type_name} {message}", field)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        """Return changed records (n, *shape); those that are given may be overwritten.

        Args:
            records: (n, ...) of the shape and dtype of ``facts``.
            uniform: (n, ``draws``) float64 in (0, 1), the random numbers of each record.
        """
        raise NotImplementedError

    def check_changed(self, records: Any, count: int) -> None:
        """Raise JobError unless ``records``, which :meth:`augment` returned, are ``count`` of the shape ``shape``."""
        if not isinstance(records, np.ndarray) or records.shape != (count, *self.shape):
            given = f"the shape {records.shape}" if isinstance(records, np.ndarray) else type(records).__name__
            raise self.fail(
                f"returned {given} for {count} records of the shape {self.shape}: return an array of all changed "
                "records, and set self.shape in __init__ where their shape is another one"
            )

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        """Return records as phases other than training get them: unchanged, but of the shape ``shape``."""
        return records


class Mixing(Augmentation):
    """Base of augmentations that mix each record with a partner: that of the place before it in the group's batch.

    The partner of the first place is the last one. Labels are mixed, too, as numbers: those of classes are vectors (K,)
    with a 1 for the class.
    """

    def mix(self, records: np.ndarray, partners: np.ndarray, uniform: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Return mixed records (n, *shape), and the share of the own record, (n,) float64, which labels have, too."""
        raise NotImplementedError


def pick(uniform: np.ndarray, low: Any, high: Any) -> np.ndarray:
    """Return whole numbers from ``low`` to ``high`` - 1, int64, each as probable, for uniform numbers in (0, 1)."""
    low, high = np.asarray(low, np.int64), np.asarray(high, np.int64)
    return low + np.floor(uniform * (high - low)).astype(np.int64)


def between(uniform: np.ndarray, low: float, high: float) -> np.ndarray:
    """Return uniform numbers between ``low`` and ``high``, float64, for uniform numbers in (0, 1)."""
    return low + uniform * (high - low)
