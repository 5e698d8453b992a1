"""Losses of probabilistic predictions, and the layer that turns features into parameters of a distribution."""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Annotated, Any

import numpy as np

from dsinga.addons.probabilities.distributions import DISTRIBUTIONS
from dsinga.addons.probabilities.forecast_forms import ForecastForm, form_of
from dsinga.base.registry import register
from dsinga.job import LayerConf
from dsinga.job.component import Fault, Settings, required, setting
from dsinga.job.enums import DistributionName, DistributionScore
from dsinga.job.limits import NonNegative, Range, Unit
from dsinga.job.message import field_types
from dsinga.layers.interface.context import Context, RecordInfo
from dsinga.layers.interface.declarations import Cut, SourceKind
from dsinga.layers.interface.layer import Array, Arrays, Gradients, Layer, Output, Shape, from_matrix, to_matrix
from dsinga.layers.interface.region import Reach
from dsinga.layers.losses.field_targets import MASKED, WEIGHTED, FieldTargets
from dsinga.layers.losses.pair_loss import WEIGHTS, PairLoss, gradient_of_weights, weights_of
from dsinga.ops import Ops

Level = Annotated[float, Range(0, 1, open_low=True, open_high=True)]
MemberCount = Annotated[int, Range(2, 10_000)]
FAIRNESS = "the share of the fair CRPS, for members that differ by random numbers: 1, or almost 1"
DISTRIBUTION = "the distribution: normal, laplace, lognormal, poisson or negative_binomial"


class ForecastTargets(FieldTargets):
    """Reads targets (B, C, ...), and predictions with K numbers for each, in a loss or metric.

    Fields are predicted as (B, C·K, *space): the K numbers of a channel are neighbours. Otherwise the K numbers of each
    target are neighbours in the row, as in (B, n·K) or, for sequences, (B, T, n·K).
    """

    def __init__(self, layer: Layer, target: Shape, form: ForecastForm, masked: bool, weighted: bool):
        super().__init__(layer, target, masked, weighted, count=form.count)
        self.form = form
        self.are_fields = len(target) > 2 and layer.source_shapes[0][2:] == tuple(target[2:])

    def predictions(self, x: Array, ops: Ops) -> Array:
        """Return predictions as (B, C, K, points), without a copy where possible."""
        matrix, k = to_matrix(x, ops), self.form.count
        if self.are_fields:
            return matrix.reshape(len(x), self.channels, k, self.points)
        return matrix.reshape(len(x), self.channels, self.points, k).transpose(0, 1, 3, 2)

    def matrix(self, x: Array) -> Array:
        """Return (B, C, K, points) as rows of numbers in the order of the predictions, (B, n)."""
        return (x if self.are_fields else x.transpose(0, 1, 3, 2)).reshape(len(x), self.size * self.form.count)

    def values_and_weights(self, target: Array, ops: Ops) -> tuple[Array, Array | None]:
        """Return the target (B, C, points), 1 at masked points, and the weight of each number or None."""
        values, weights = self.values(target, ops), self.weights(target, ops)
        if self.masked:
            valid = ~ops.xp.isnan(values)
            values = ops.xp.where(valid, values, values.dtype.type(1))
            weights = valid.astype(values.dtype) if weights is None else weights * valid
        return values, weights


class ForecastLoss(PairLoss):
    """Base class of losses with several predicted numbers for each number of the target.

    The target gets no gradient. The feature is the prediction, (B, n).
    """

    settings: Any
    predicts_several = weighs_steps = True
    source_kind = SourceKind.kVectors
    cut = Cut(gathered_because=PairLoss.cut.gathered_because, by_space=True)

    @classmethod
    def forecast_form(cls, arguments: Mapping[str, Any]) -> ForecastForm:
        assert cls.Conf is not None
        known = field_types(cls.Conf)
        return form_of(cls.Conf(**{name: value for name, value in arguments.items() if name in known}))

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        axis = len(shape) - 1 if len(shape) == 2 else 0
        size = shape[axis : axis + 1] and (shape[axis] // cls.forecast_form(settings).count,)
        return super().label_example(settings, (*shape[:axis], *size, *shape[axis + 1 :]), known)

    def check_sizes(self) -> None:
        self.form, settings = form_of(self.settings), self.settings
        target = self.source_shapes[1]
        self.targets = ForecastTargets(self, target, self.form, settings.masked, settings.weighted)

    @property
    def field_shape(self) -> Shape:
        return self.source_shapes[0]

    def takes_points(self, source: int) -> bool:
        return source != WEIGHTS

    def gathers_points_because(self) -> str:
        return "" if self.targets.are_fields else "has other points than its targets"

    def check_sources(self, sources: Arrays, ctx: Context) -> None:
        """Raise UserError for a target that is NaN and not masked, or outside the distribution."""
        self.targets.check(sources[1], ctx)
        x, y = self.targets.predictions(sources[0], ctx.ops), self.targets.values_and_weights(sources[1], ctx.ops)[0]
        if fault := self.form.fault(ctx.ops.to_numpy(x), ctx.ops.to_numpy(y)):
            raise self.fail(fault)

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        weights = weights_of(sources, WEIGHTS, ctx.ops)
        losses = self._losses(sources, ctx.ops, 1 if weights is None else weights.ndim)
        loss = (losses if weights is None else losses * weights).sum() * self.settings.scale
        if not ctx.training and isinstance(loss, float) and not math.isfinite(loss):
            self.check_sources(sources, ctx)  # training does so itself
        rows = len(sources[0])
        return Output(to_matrix(sources[0], ctx.ops), metrics={"loss": (loss, self.counted_rows(rows))})

    def _losses(self, sources: Arrays, ops: Ops, axes: int) -> Array:
        """Return the loss of each row, (B,) float64, or each channel, (B, C), before their weights and scale."""
        y, of_points = self.targets.values_and_weights(sources[1], ops)
        losses = self.form.losses(self.targets.predictions(sources[0], ops), y, ops)
        if of_points is not None:
            losses = ops.xp.where(of_points != 0, losses * of_points, losses.dtype.type(0))
        return losses.sum(axis=(1, 2)[axes - 1 :], dtype=np.float64)

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Any, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        ops, factor = ctx.ops, self.settings.scale / ctx.rows.total
        weights = weights_of(sources, WEIGHTS, ops)
        grads: list[Array | None] = [None] * len(sources)
        if needs[0]:
            y, of_points = self.targets.values_and_weights(sources[1], ops)
            slopes = self.form.slopes(self.targets.predictions(sources[0], ops), y, ops) * factor
            if of_points is not None:  # where a number of weight 0 has no finite slope
                slopes = ops.xp.where(of_points[:, :, None] != 0, slopes * of_points[:, :, None], slopes.dtype.type(0))
            if weights is not None:
                of_rows = weights[(..., *[None] * (slopes.ndim - weights.ndim))]
                slopes *= of_rows.astype(slopes.dtype, copy=False)
            grads[0] = from_matrix(self.targets.matrix(slopes), sources[0], ops)
        if weights is not None and any(needs[WEIGHTS:]):
            losses = self._losses(sources, ops, weights.ndim)
            grads[WEIGHTS] = gradient_of_weights(losses, factor, sources[WEIGHTS])
        return grads, ()


@register("layer", kQuantileLoss=830)
class QuantileLoss(ForecastLoss):
    """Pinball loss of K quantiles, Σ max(q·(y - x), (q - 1)·(y - x))·scale / (B·K) over numbers and quantiles q.

    Koenker and Bassett, Regression Quantiles (1978). The second source is the target. The first has K quantiles for
    each of its numbers, next to each other: (B, n·K), (B, T, n·K) or fields (B, C·K, *space). A third source may give a
    weight for each row, or for each number or step of its target. The target gets no gradient. The feature is the
    prediction.
    """

    class Conf(Settings):
        """Settings of kQuantileLoss."""

        quantile: list[Level] = setting([0.1, 0.5, 0.9], "the levels of the quantiles, in (0, 1) and increasing")
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)

        def faults(self) -> Iterator[Fault]:
            yield from level_faults(self.quantile)


def level_faults(levels: Sequence[float]) -> Iterator[Fault]:
    """Yield an error for no levels, or levels that do not increase within (0, 1)."""
    if not levels:
        yield Fault("quantile needs at least one level, as in quantile: [0.1, 0.5, 0.9]", "quantile")
    for item, (low, high) in enumerate(zip(levels, levels[1:], strict=False), 1):
        if high <= low:
            yield Fault(f"quantile must increase, but {high} stands after {low}; sort the levels", "quantile", item)
            return


@register("layer", kDistributionLoss=831)
class DistributionLoss(ForecastLoss):
    """Score of a predicted distribution, Σ s(x, y)·scale / B: its negative log-likelihood, or its CRPS.

    Sources, weights and their shapes are as in kQuantileLoss, with the K parameters for each number of the target in
    place of quantiles. A kDistributionParams returns them.

    - normal, laplace: loc and scale, the mean and the deviation. Laplace has the density e^(-|z|) / (2·scale), z = (y -
      loc) / scale. For numbers.
    - lognormal: loc and scale of the logarithm. For positive numbers.
    - poisson: rate, the mean and the variance. For counts.
    - negative_binomial: mean m and shape r, with the variance m + m²/r. For counts.

    CRPS is ∫ (F(x) - 1{x ≥ y})² dx for the first three (Gneiting and Raftery 2007). A target outside the distribution,
    or a scale that is not above 0, ends training with an error.
    """

    class Conf(Settings):
        """Settings of kDistributionLoss."""

        distribution: DistributionName = setting(DistributionName.normal, DISTRIBUTION)
        score: DistributionScore = setting(
            DistributionScore.nll,
            "nll, its negative log-likelihood, or crps, of the first three, its ranked score",
        )
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)

        def faults(self) -> Iterator[Fault]:
            if self.score is DistributionScore.crps and not DISTRIBUTIONS[self.distribution].has_crps_slopes:
                yield Fault(f"score crps is not for counts; train {self.distribution.name} by nll", "score")


@register("layer", kEnsembleLoss=832)
class EnsembleLoss(ForecastLoss):
    """CRPS of K members x, Σ (Σ |x_i - y| / K - Σ |x_i - x_j|·c)·scale / B over numbers y, c = 1 / (2·K²).

    Sources, weights and their shapes are as in kQuantileLoss, with the K members for each number of the target in place
    of quantiles.

    With ``fairness`` 1 it is the fair CRPS, c = 1 / (2·K·(K - 1)), of the distribution that the members come from
    (Ferro, Fair Scores for Ensemble Forecasts, 2014). Use it only for members that differ by random numbers; other
    members would drift apart. A fairness between 0 and 1 mixes both, as the almost fair CRPS does (Lang et al.,
    AIFS-CRPS, 2024).
    """

    class Conf(Settings):
        """Settings of kEnsembleLoss."""

        members: MemberCount = required("how many members there are")
        fairness: Unit = setting(0.0, FAIRNESS)
        scale: NonNegative = setting(1.0, "the factor of the loss and its gradient")
        masked: bool = setting(False, MASKED)
        weighted: bool = setting(False, WEIGHTED)


LEAST = 1e-6  # of a parameter that is above 0


@register("layer", kDistributionParams=833)
class DistributionParams(Layer):
    """Parameters of a distribution, from numbers x of any sign: log(1 + exp(x)) + 1e-6 for positive ones, else x.

    The source has K numbers for each number to predict, next to each other along ``axis``: (B, n·K), fields (B, C·K,
    *space), or, with axis 2, sequences (B, T, n·K). It comes before a kDistributionLoss.
    """

    class Conf(Settings):
        """Settings of kDistributionParams."""

        distribution: DistributionName = setting(DistributionName.normal, DISTRIBUTION)
        axis: Annotated[int, Range(1, 2)] = setting(1, "the axis of the parameters: 1, or 2 of sequences")

    settings: Conf
    source_kind = SourceKind.kAnyShape
    source_count = 1
    cut = Cut(gathered_because="has the parameters of a number in neighbouring features", by_space=True)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        positive, axis = DISTRIBUTIONS[self.settings.distribution].positive, self.settings.axis
        size = self.shape[axis] if axis < len(self.shape) else 0
        if not size or size % len(positive):
            name, count = self.settings.distribution.name, len(positive)
            raise self.fail(
                f"makes {count} parameters of each number of a {name} distribution, but {self.source_name(0)} gives "
                f"{size} numbers along axis {axis}; give the layer below {count} outputs for each number to predict"
            )
        self.positive = np.array(positive * (size // len(positive)))

    def gathers_points_because(self) -> str:
        return "has its parameters along an axis of points" if self.settings.axis > 1 else ""

    def reach(self) -> tuple[Reach, ...] | None:
        return self.same_points() if self.settings.axis == 1 else None

    def _mask(self, x: Array, ctx: Context) -> Array:
        return ctx.ops.asarray(self.positive).reshape(-1, *[1] * (x.ndim - 1 - self.settings.axis))

    def compute_feature(self, params: Arrays, sources: Arrays, ctx: Context) -> Output:
        x, xp = sources[0], ctx.ops.xp
        above = xp.maximum(x, 0) + xp.log1p(xp.exp(-xp.abs(x))) + x.dtype.type(LEAST)
        return Output(xp.where(self._mask(x, ctx), above, x))

    def compute_gradient(
        self, params: Arrays, sources: Arrays, output: Output, grad: Array, needs: Sequence[bool], ctx: Context
    ) -> Gradients:
        if not needs[0]:
            return (None,), ()
        x = sources[0]
        return (ctx.ops.xp.where(self._mask(x, ctx), grad * ctx.ops.sigmoid(x), grad),), ()
