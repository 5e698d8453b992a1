"""PairLoss, the base of losses that compare two sources.

Gradients are of the mean over the global batch. The metric "loss" is (sum over the rows of this worker, rows), so that
the sums and counts of all workers add up to that mean.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Layer, Shape, shape_text
from dsinga.layers.losses.row_weights import WEIGHTS, check_weights


class PairLoss(Layer):
    """Base of losses that compare two sources whose rows have equal lengths; the feature is (B, n).

    A subclass that ``predicts_several`` has several numbers for each of the target, of which its sizes follow
    (:meth:`forecast_form`). One that ``weighs_steps`` takes, for sequences (B, T, ...), also weights (B, T), and for
    rows (B, n) (B, n).
    """

    weighs_steps: ClassVar[bool] = False
    predicts_several: ClassVar[bool] = False
    source_count = 2
    optional_sources = 1
    cut = Cut(gathered_because="reports the loss of whole rows")
    is_loss = True
    metric_names: tuple[str, ...] = ("loss",)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.check_sizes()
        first = self.source_shapes[0]
        check_weights(self, WEIGHTS, first[1:2] if self.weighs_steps and len(first) in (2, 3) else ())
        self.shape = (first[0], math.prod(first[1:]))

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        shape = shape[:1] and (shape[0] + bool(settings.get("weighted")), *shape[1:])
        return np.zeros((1, *(() if shape == (1,) else shape)), np.float32)  # metrics of classes take no columns

    @classmethod
    def forecast_form(cls, arguments: Mapping[str, Any]) -> Any:
        """Return the form of predictions with several numbers for each of the target, None for one number for each.

        ``arguments`` are settings of the loss, among other arguments of its function in ``nn``.
        """
        return None

    def check_sizes(self) -> None:
        """Raise UserError unless both sources have as many rows, and rows as long."""
        first, second = self.source_shapes[:2]
        if first[0] != second[0] or math.prod(first) != math.prod(second):
            raise self.fail(
                f"compares {self.source_name(0)}, {shape_text(first)}, with {self.source_name(1)}, "
                f"{shape_text(second)}; give both as many rows, and rows as long",
                field="srclayers",
            )
