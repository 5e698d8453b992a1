"""What is done to sequences where they are read: kTruncate."""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.augmentation.augmentation import Augmentation, RecordFacts
from dsinga.base.registry import register
from dsinga.job.component import Settings, required
from dsinga.job.limits import Count


@register("augmentation", kTruncate=11)
class Truncate(Augmentation):
    """Keep the first ``length`` steps of sequences (T,), and of their labels where each step has one; in all phases."""

    class Conf(Settings):
        """Settings of kTruncate."""

        length: Count = required("how many steps are kept; shorter sequences stay as they are")

    dtypes = (np.uint8, np.int32, np.float32)
    axes = 1

    def __init__(self, conf: Any, facts: RecordFacts):
        super().__init__(conf, facts)
        self.shape = (min(facts.shape[0], self.settings.length),)

    def augment(self, records: np.ndarray, uniform: np.ndarray) -> np.ndarray:
        return self.evaluate(records)

    def evaluate(self, records: np.ndarray) -> np.ndarray:
        return np.ascontiguousarray(records[:, : self.shape[0]])
