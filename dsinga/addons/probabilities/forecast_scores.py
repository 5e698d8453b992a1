"""Metrics of probabilistic forecasts (kForecastScores) and of class probabilities (kReliability)."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

from dsinga.addons.probabilities.forecast_forms import EnsembleForm, ForecastForm, form_of
from dsinga.addons.probabilities.forecast_loss import FAIRNESS, ForecastTargets, Level, MemberCount, level_faults
from dsinga.base.arguments import with_types
from dsinga.base.error_frames import public
from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Fault, Settings, setting
from dsinga.job.enums import DistributionName
from dsinga.job.limits import Unit
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, Labels, SourceKind
from dsinga.layers.interface.layer import Arrays, Layer, Output, Shape
from dsinga.layers.interface.region import Region
from dsinga.layers.losses.field_targets import MASKED, WEIGHTED
from dsinga.layers.losses.point_classes import WEIGHTED as WEIGHTED_POINTS
from dsinga.layers.metrics.composed_metrics import MetricValues, Sums
from dsinga.layers.metrics.metric_state import ArraySum
from dsinga.layers.records.label import required_labels
from dsinga.ops import get_ops


@register("layer", kForecastScores=834)
class ForecastScores(Layer):
    """Metrics of predicted quantiles, distributions or ensembles: "crps", "coverage", "spread", "spread_skill".

    The first source gives predictions as the loss reads them, K numbers for each number of the labels. The second gives
    labels (B,), (B, n) or fields (B, C, *space), with ``weighted`` one channel more. With ``masked``, labels that are
    NaN do not count. Sums are float64 over all numbers of a test, with their weights. The feature is the predictions.

    - "crps": the mean CRPS. An ensemble uses the ``fairness`` of its loss. For quantiles it is twice the mean pinball
      loss, also of quantiles that cross.
    - "spread": the root of the mean variance of predictions.
    - "spread_skill": the spread divided by the RMSE of the means, for an ensemble of K members times √((K + 1) / K). It
      is 1 where spread and error agree (Fortin et al., Why Should Ensemble Spread Match the RMSE of the Ensemble Mean?,
      2014).
    - "rank_histogram", in tests: the share of labels in each bin between members, between quantiles, or between tenths
      of the distribution function (PIT).
    - "coverage": the share of labels in all bins but the first and the last; for a distribution, in its middle
      80 %.
    """

    class Conf(Settings):
        """Settings of kForecastScores."""

        quantile: list[Level] = setting([], "the levels of the quantiles that are predicted")
        distribution: DistributionName | None = setting(None, "the predicted distribution")
        members: MemberCount | None = setting(None, "how many members of an ensemble are predicted")
        fairness: Unit = setting(0.0, FAIRNESS)
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)

        def faults(self) -> Iterator[Fault | str]:
            if (bool(self.quantile) + (self.distribution is not None) + (self.members is not None)) != 1:
                yield "needs one of quantile, distribution and members, as the loss has it"
            if self.quantile:
                yield from level_faults(self.quantile)

    settings: Conf
    source_kind = SourceKind.kVectors
    source_count = 2
    labels = Labels(source=1, floats=True)
    is_output = True
    metric_names: tuple[str, ...] = ("crps", "coverage", "spread", "spread_skill")
    cut = Cut(gathered_because="compares whole rows with their labels", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.form = form_of(self.settings)
        if len(self.form.shares) < 3:
            self.metric_names = ("crps",)
        elif self.settings.quantile:
            self.metric_names = ("crps", "coverage")
        if len(self.source_shapes[1]) > 1:  # (B,) may stand for labels that are not known before the first batch
            self._targets(self.source_shapes[1])

    def _targets(self, labels: Shape) -> ForecastTargets:
        shape = (self.source_shapes[0][0], *labels[1:])
        return ForecastTargets(self, shape, self.form, self.settings.masked, self.settings.weighted)

    def gathers_points_because(self) -> str:
        return "" if self.source_shapes[1][2:] == self.shape[2:] else "has other points than its labels"

    def region_part(self, region: Region, source_shapes: Sequence[Shape]) -> Layer:
        return self.copy_for_region(region, source_shapes)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        labels = required_labels(self, sources[1])
        if self.region is not None:
            labels = self.region.take(labels)
        targets, ops = self._targets(labels.shape), get_ops("numpy")
        target = labels.astype(np.float64)
        targets.check_values(targets.values(target, ops), labels.shape[2:], ctx)
        x = targets.predictions(ctx.ops.to_numpy(sources[0]).astype(np.float64), ops)
        y, weights = targets.values_and_weights(target, ops)
        if fault := self.form.fault(x, y):
            raise self.fail(fault)
        sums = forecast_sums(self.form, x, y, 1.0 if weights is None else weights)
        part = "bins" if self.settings.quantile else "moments"
        return Output(sources[0], metrics={f"forecast:{part}": (sums, self.counted_rows(len(labels)))})


def forecast_sums(form: ForecastForm, x: np.ndarray, y: np.ndarray, weights: Any) -> ArraySum:
    """Compute a batch's sums: Σ w, Σ w·t for CRPS, variance, variance times rise, squared error, coverage, bins."""
    ops, (first, last) = get_ops("numpy"), form.covered()
    moments, bins = form.moments(x, ops), form.bins(x, y, ops)
    weights, nothing = np.broadcast_to(weights, y.shape), np.zeros_like(y)
    terms: list[Any] = [np.ones_like(y), form.crps(x, y, ops), nothing, nothing, nothing]
    if moments is not None:
        mean, variance, rise = moments
        terms[2:] = [variance, variance * rise, (mean - y) ** 2]
    terms.append((bins >= first) & (bins <= last))
    counts = np.bincount(bins.ravel(), weights.ravel(), len(form.shares))
    sums = [np.where(weights != 0, weights * term, 0).sum(dtype=np.float64) for term in terms]
    return ArraySum(np.concatenate([sums, counts]))


@with_types
@public
def ensemble_scores(members: Any, labels: Any, weights: Any = None, fairness: float = 1.0) -> MetricValues:
    """Return "crps", "coverage", "spread", "spread_skill" and "rank_histogram" of an ensemble, like kForecastScores.

    Args:
        members: the predictions of K members, (K, ...), arrays or lazy arrays, which are computed.
        labels: the outcomes, (...). Points where an outcome or a member is NaN are left out.
        weights: weights of points, broadcastable to the labels, or a DataArray matched by its coordinates; equal by
            default.
        fairness: 1 for the fair CRPS, for randomly drawn members; 0 for the CRPS of these members.

    Raises:
        UserError: there are fewer than two members; shapes, dimensions, times or points differ from the labels; there
            are no numbers; weights are negative, not finite, or all 0.
    """
    for member in members if isinstance(members, (list, tuple)) else ():
        _check_same_points(member, labels, weights, axes=0)
    _check_same_points(members, labels, weights)
    weights = _weights_at(members, labels, weights)
    x, y = _numbers(members, "members"), _numbers(labels, "labels")
    if len(x) < 2 or x.shape[1:] != y.shape:
        raise UserError(
            f"ensemble_scores takes members (K, ...), two or more, and labels (...), not {x.shape} and {y.shape}; put "
            'the dimension of members first: predicted.transpose("member", ...)'
        )
    for number, member in enumerate(x):
        if np.isnan(member).all():
            raise UserError(f"ensemble_scores: member {number} has no number; leave it out")
    valid = ~(np.isnan(y) | np.isnan(x).any(axis=0))
    if not valid.any():
        where = "the labels have no number" if np.isnan(y).all() else "the labels and members have no number together"
        raise UserError(f"ensemble_scores: {where} at any point; see whether their times and points are the same")
    weights = _numbers(1.0 if weights is None else weights, "weights")
    try:
        weights = np.broadcast_to(weights, y.shape)[valid]
    except ValueError:
        raise UserError(
            f"weights have the shape {weights.shape}, which does not broadcast with the labels {y.shape}; give a "
            "number for each point, such as weights[:, None] for those of the first of two axes"
        ) from None
    if not (np.isfinite(weights) & (weights >= 0)).all() or not weights.any():
        raise UserError(
            f"weights go from {weights.min():g} to {weights.max():g}; give finite ones from 0 on, some of them above 0"
        )
    weights = weights[:, None, None]
    sums = forecast_sums(
        EnsembleForm(len(x), fairness), x[:, valid].T[:, None, :, None], y[valid][:, None, None], weights
    )
    return forecast_metrics({"moments": (sums, 1)})


def _numbers(values: Any, name: str) -> np.ndarray:
    if any(map(np.ma.is_masked, values if isinstance(values, (list, tuple)) else (values,))):
        filled = "0: weights.filled(0)" if name == "weights" else f"NaN, which is left out: {name}.filled(numpy.nan)"
        raise UserError(f"{name} have masked numbers; give {filled}")
    return np.asarray(values, np.float64)


def _weights_at(members: Any, labels: Any, weights: Any) -> Any:
    """Match DataArray weights to the coordinates and dimensions of labels or members."""
    like = labels if hasattr(labels, "indexes") else members[0]
    if not (hasattr(weights, "indexes") and hasattr(like, "indexes")):
        return weights
    for dim in weights.dims:
        if dim not in like.dims:
            raise UserError(f"weights have the dimension {dim!r}, but points have {like.dims}; give one for each point")
        points = like.indexes.get(dim, getattr(members, "indexes", {}).get(dim))
        own = weights.indexes.get(dim)
        if points is not None and own is not None:
            places = own.get_indexer(points) if own.is_unique else np.full(len(points), -1)
            if (places < 0).any():
                raise UserError(
                    f"weights have not one number for {dim}={points[places < 0][0]}; give one for each point of labels"
                )
            weights = weights.isel({dim: places})
    weights, like = (array.drop_vars(array.coords) for array in (weights, like))
    return weights.broadcast_like(like).transpose(*like.dims)


def _check_same_points(members: Any, labels: Any, weights: Any, axes: int = 1) -> None:
    if any(hasattr(values, "data_vars") for values in (members, labels, weights)):
        raise UserError("ensemble_scores takes one variable of Datasets, such as members['t'] and data['t']")
    if not (hasattr(members, "indexes") and hasattr(labels, "indexes")):  # of xarray
        return
    if members.dims[axes:] != labels.dims:
        raise UserError(
            f"ensemble_scores takes members with the dimensions of the labels after their own, not {members.dims} and "
            f"{labels.dims}; use predicted.transpose('member', *labels.dims)"
        )
    for dim in labels.dims:
        here, other = members.indexes.get(dim), labels.indexes.get(dim)
        if here is not None and other is not None and len(here) == len(other) and not here.equals(other):
            raise UserError(
                f"members and labels have other points of {dim!r}, such as {here[0]} and {other[0]}; compare the same: "
                f"labels.sel({dim}=members.{dim})"
            )


@register("composed_metric", "forecast")
def forecast_metrics(parts: Sums) -> MetricValues:
    """Compute the metrics of all records from their sums; none without records."""
    ((part, (state, _)),) = parts.items()
    total, crps, variance, raised, squares, covered, *bins = state.sums
    if not total:
        return {}
    values: dict[str, Any] = {"crps": crps / total}
    if len(bins) > 2:
        values["coverage"] = covered / total
    if part == "moments":
        values |= {
            "spread": math.sqrt(max(variance / total, 0)),
            "spread_skill": math.sqrt(max(raised / squares, 0)) if squares else math.nan,
        }
    return {
        **{name: float(value) for name, value in values.items()},
        "rank_histogram": (np.array(bins) / total).tolist(),
    }


BINS = 10  # of probabilities, of equal width


@register("layer", kReliability=835)
class Reliability(Layer):
    """Metrics "brier" and "calibration_error" of probabilities p; tests also give "reliability", a row for each bin.

    The first source gives the probabilities of K classes, (B, K) or fields (B, K, *space), and the second labels (B,),
    (B, *space) or (B, 1, *space). Or both have one number for each of K answers 0 and 1, (B, K). One probability, (B,
    1) or (B, 1, *space), is for class 1 of two. Points with the label -1 or NaN do not count. With ``weighted`` the
    last channel of the labels weighs points. The feature is the probabilities.

    - "brier": the mean of (p - t)² over answers, t = 1 for yes. For classes, the mean over records of the sum over
      classes (Brier, Verification of Forecasts Expressed in Terms of Probability, 1950).
    - "reliability": the mean p, the share of yes and the number of answers for each tenth of [0, 1] that has any.
    - "calibration_error": the mean distance between p and the share of yes in these tenths, weighted by number.
    """

    class Conf(Settings):
        """Settings of kReliability."""

        weighted: bool = setting(False, WEIGHTED_POINTS)

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
        return self.count > 1 and labels.size == len(labels) * math.prod(self.shape[1:])

    def _answers(self, labels: np.ndarray) -> tuple[Any, Any, Any]:
        """Convert labels to answers 0 and 1, their validity, and weights, broadcastable to (B, K, points)."""
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
    """Compute the metrics of all records from their sums; none without records."""
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
