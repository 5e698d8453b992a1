"""The layer kReliability: Brier score and calibration of predicted probabilities."""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.metric_state import ArraySum
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Settings, setting
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape, shape_text
from dsinga.layers.losses.point_classes import WEIGHTED
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums
from dsinga.layers.records.label import required_labels

BINS = 10  # of probabilities, of equal width


@register("layer", kReliability=835)
class Reliability(Layer):
    """Metrics "brier" and "calibration_error" of probabilities p; tests also give "reliability", a row for each bin.

    The first source gives the probabilities of K classes, (B, K) or of fields (B, K, *space), the second source labels
    (B,), (B, *space) or (B, 1, *space); or the probabilities of as many answers as there are labels 0 and 1, (B, K).
    Those of one class, (B, 1) or (B, 1, *space), are of class 1 of two. Points with the label -1 or NaN are left out;
    with ``weighted`` the last channel of the labels weighs points.

    "brier" is the mean of (p - t)² over answers, t = 1 where the answer is yes, else 0; of classes it is the mean over
    records of the sum over classes (Brier, Verification of Forecasts Expressed in Terms of Probability, 1950).
    "reliability" has the mean p, the share of yes and the number of answers of each tenth of [0, 1] that has any;
    "calibration_error" is the mean of their distance, weighted by number. The feature is the probabilities.
    """

    class Conf(Settings):
        """Settings of kReliability."""

        weighted: bool = setting(False, WEIGHTED)

    settings: Conf
    source_kind = SourceKind.kVectors
    source_count = 2
    labels = Labels(source=1, floats=True)
    is_output = True
    metric_names = ("brier", "calibration_error")
    cut = Cut(gathered_because="compares all classes of a row")

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.count, self.space = self.shape[1] if len(self.shape) > 1 else 1, self.shape[2:]

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[1]).astype(np.float64)
        p = ctx.ops.to_numpy(sources[0]).astype(np.float64).reshape(len(labels), self.count, math.prod(self.space))
        if not ((p >= 0) & (p <= 1.001)).all():
            wrong = p[~((p >= 0) & (p <= 1.001))][0]
            raise self.fail(
                f"takes probabilities, but {self.source_name(0)} gives {wrong:g}; take the feature of the loss, or of "
                "a kSoftmax or kSigmoid"
            )
        answers, valid, weights = self._answers(labels)
        answers, valid, weights = (np.broadcast_to(array, p.shape) for array in (answers, valid, weights))
        p, answers, weights = p[valid], answers[valid], weights[valid]
        bins = np.minimum((p * BINS).astype(np.int64), BINS - 1)
        sums = [np.bincount(bins, weights * term, BINS) for term in (np.ones_like(p), p, answers, (p - answers) ** 2)]
        # The classes of a record are one answer each, but their Brier score is a sum.
        parts = 1 if self._are_answers(labels) else self.count
        state = ArraySum(np.stack([*sums, sums[0] / parts]))
        return Output(sources[0], metrics={"reliability:sums": (state, len(labels))})

    def _are_answers(self, labels: np.ndarray) -> bool:
        """Whether labels have an answer for each probability."""
        return self.count > 1 and labels.size == len(labels) * math.prod(self.shape[1:])

    def _answers(self, labels: np.ndarray) -> tuple[Any, Any, Any]:
        """Return answers 0 and 1, which are valid, and weights, to broadcast to (B, K, points)."""
        if self._are_answers(labels):
            return labels.reshape(len(labels), self.count, math.prod(self.space)), np.ones((), bool), np.ones(())
        channels = 1 + self.settings.weighted
        if labels.shape[1:] != (channels, *self.space) and (channels > 1 or labels.shape[1:] != self.space):
            raise self.fail(
                f"takes a class for each row or point of {shape_text(self.shape)}, or an answer for each probability, "
                f"but {self.source_name(1)} has labels {shape_text(labels.shape)}",
                field="srclayers",
            )
        given = labels.reshape(len(labels), channels, math.prod(self.space))
        codes, weights = given[:, :1], given[:, 1:] if channels > 1 else np.ones(())
        valid = codes >= 0
        highest = max(2, self.count)
        if (codes[valid] >= highest).any() or (codes[valid] != np.rint(codes[valid])).any():
            raise self.fail(f"takes classes below {highest}, but a label of {self.source_name(1)} is another number")
        if self.count == 1:
            return codes, valid, weights
        return codes == np.arange(self.count)[:, None], valid, weights


@register("composed_metric", "reliability")
def reliability_metrics(parts: Sums) -> MetricValues:
    """Return the figures of all records; nothing without records."""
    state, _ = parts["sums"]
    count, predicted, yes, squares, records = state.sums
    if not count.sum():
        return {}
    known = count > 0
    rows = np.stack([predicted[known] / count[known], yes[known] / count[known], count[known]], axis=1)
    return {
        "brier": float(squares.sum() / records.sum()),
        "calibration_error": float(np.abs(predicted - yes).sum() / count.sum()),
        "reliability": rows.tolist(),
    }
