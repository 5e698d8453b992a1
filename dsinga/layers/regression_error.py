"""kRegressionError: the root mean square and the mean of the absolute errors of predicted numbers."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.base import Arrays, Layer, Output, Shape, as_text, to_matrix
from dsinga.layers.context import Context, RecordInfo
from dsinga.layers.label import required_labels
from dsinga.registry import register


@register("layer", "kRegressionError")
class RegressionError(Layer):
    """Metrics "rmse" and "mae" of predictions: √(Σ (x - label)² / n) and Σ |x - label| / n; the feature is x - label.

    The first source gives predictions (B, ...), k numbers a row; the second labels (B,) or (B, k), float32 or integers.
    n counts all numbers of all records of a test. The sums are float64.
    """

    source_count: ClassVar[int | None] = 2
    label_source: int | None = 1
    takes_float_labels = True
    is_output = True
    metric_names: ClassVar[tuple[str, ...]] = ("rmse", "mae")
    gathered_because = "compares whole rows with their labels"

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        predictions, labels = self.source_shapes
        self.shape = (predictions[0], math.prod(predictions[1:]))
        if len(labels) > 1:  # (B,) may stand for labels that are not known before the first batch
            self._check(labels)

    def _check(self, labels: Shape) -> None:
        """Raise UserError for labels (B,) or (B, k) that are not as many a row as the predictions."""
        if math.prod(labels[1:]) != self.shape[1]:
            raise self.fail(
                f"compares {self.source_name(0)}, {as_text(self.source_shapes[0])}, with labels {as_text(labels)} of "
                f"{self.source_name(1)}; predict as many numbers as a record has labels",
                field="srclayers",
            )

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, labels = to_matrix(sources[0], ctx.ops), required_labels(self, sources[1])
        self._check(labels.shape)
        errors = x - ctx.ops.asarray(labels.reshape(x.shape).astype(x.dtype))
        exact, count = errors.astype(np.float64), math.prod(errors.shape)
        squares, absolute = (exact * exact).sum(), ctx.ops.xp.abs(exact).sum()
        return Output(errors, metrics={"rmse:squares": (squares, count), "mae": (absolute, count)})
