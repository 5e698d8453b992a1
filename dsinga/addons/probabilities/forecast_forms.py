"""Forms of a probabilistic prediction: quantiles, distribution parameters, or ensemble members.

Each has K numbers for each number of the target; loss, metrics and the dimension in a predicted Dataset follow from its
class. Predictions x are (B, C, K, points), targets y (B, C, points).
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Sequence
from typing import Any, ClassVar, NamedTuple

import numpy as np

from dsinga.addons.probabilities.distributions import DISTRIBUTIONS
from dsinga.base.errors import UserError
from dsinga.job.enums import DistributionName, DistributionScore
from dsinga.layers.interface.layer import Array
from dsinga.ops import Ops

ROUNDING = 1e-9  # of levels
PIT_BINS = 10  # of the values of distribution functions at the targets


class MeanAndVariance(NamedTuple):
    """The mean and the variance of each prediction, (B, C, points), and ``rise``.

    Perfect predictions have a squared error of the mean of ``rise`` times their variance.
    """

    mean: Array
    variance: Array
    rise: float


class ForecastForm(ABC):
    """Base class of forms, which define K and the meaning of K predicted numbers for each target.

    Attributes:
        dim: the dimension of these numbers in a Dataset.
        points: their coordinates along it.
        shares: the share of targets in each bin of :meth:`bins`, for perfect predictions.
    """

    dim: ClassVar[str]
    points: Sequence[Any]
    shares: Sequence[float]

    @property
    def count(self) -> int:
        """K, the count of predicted numbers for one number of the target."""
        return len(self.points)

    @abstractmethod
    def losses(self, x: Array, y: Array, ops: Ops) -> Array:
        """Return the loss for each number of the target."""

    @abstractmethod
    def slopes(self, x: Array, y: Array, ops: Ops) -> Array:
        """Return the derivative of the losses for x, (B, C, K, points)."""

    @abstractmethod
    def crps(self, x: Array, y: Array, ops: Ops) -> Array:
        """Return the continuous ranked probability score for each number of the target."""

    @abstractmethod
    def bins(self, x: Array, y: Array, ops: Ops) -> Array:
        """Return the bin into which each number of the target falls, for rank histograms and coverage."""

    def moments(self, x: Array, ops: Ops) -> MeanAndVariance | None:
        """Return mean and variance of predictions; None if they have none."""
        return None

    @abstractmethod
    def point(self, x: np.ndarray) -> np.ndarray:
        """Return each prediction's mean or median; its K numbers are the last axis of x."""

    @abstractmethod
    def quantiles(self, x: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        """Return quantiles of predictions; K numbers are x's last axis, quantiles the result's."""

    def fault(self, x: np.ndarray, y: np.ndarray) -> str:
        """Describe the fault of predictions or targets in host memory; "" without one."""
        return ""

    def covered(self) -> tuple[int, int]:
        """Return the first and last bin of the interval that the metric "coverage" measures."""
        return 1, len(self.shares) - 2


class QuantileForm(ForecastForm):
    """The form of quantiles at increasing ``levels`` in (0, 1)."""

    dim = "quantile"

    def __init__(self, levels: Sequence[float]):
        self.points = list(levels)
        self.shares = np.diff([0.0, *levels, 1.0]).tolist()

    def _levels(self, x: Array, ops: Ops) -> Array:
        return ops.asarray(np.array(self.points, x.dtype))[:, None]

    def losses(self, x: Array, y: Array, ops: Ops) -> Array:
        above, levels = y[:, :, None] - x, self._levels(x, ops)
        return ops.xp.maximum(above * levels, above * (levels - 1)).sum(axis=2) / self.count

    def slopes(self, x: Array, y: Array, ops: Ops) -> Array:
        xp, above, levels = ops.xp, y[:, :, None] - x, self._levels(x, ops)
        return ((above < 0) * (1 - levels) - (above > 0) * levels) * (1 / self.count) + xp.zeros((), x.dtype)

    def crps(self, x: Array, y: Array, ops: Ops) -> Array:
        return 2 * self.losses(x, y, ops)  # the mean over all levels is CRPS

    def bins(self, x: Array, y: Array, ops: Ops) -> Array:
        return (x < y[:, :, None]).sum(axis=2)  # the same for crossing quantiles, once sorted

    def point(self, x: np.ndarray) -> np.ndarray:
        """Return the quantile with the level nearest to 0.5; crossing quantiles are sorted."""
        return np.sort(x, axis=-1)[..., np.abs(np.array(self.points) - 0.5).argmin()]

    def quantiles(self, x: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        places = []
        for level in levels:
            distances = np.abs(np.array(self.points) - level)
            if distances.min() > ROUNDING:
                raise UserError(
                    f"the net predicts the quantiles {', '.join(map(str, self.points))}, not {level:g}; take some of "
                    "these, or train it for others"
                )
            places.append(distances.argmin())
        return np.sort(x, axis=-1)[..., places]  # Chernozhukov et al., Quantile Curves without Crossing, 2010


class DistributionForm(ForecastForm):
    """The form of a distribution's parameters, trained by their likelihood or by CRPS."""

    dim = "parameter"
    shares = (1 / PIT_BINS,) * PIT_BINS

    def __init__(self, name: DistributionName, score: DistributionScore = DistributionScore.nll):
        self.name, self.distribution = name, DISTRIBUTIONS[name]
        self.points, self._by_crps = self.distribution.parameters, score is DistributionScore.crps

    def _params(self, x: Array) -> list[Array]:
        return [x[:, :, k] for k in range(self.count)]

    def losses(self, x: Array, y: Array, ops: Ops) -> Array:
        """Return the losses; NaN for values or parameters outside the distribution."""
        params, valid = self._params(x), self.distribution.holds(y, ops.xp)
        for param, above in zip(params, self.distribution.positive, strict=True):
            valid = valid & (param > 0) if above else valid
        loss = self.distribution.crps if self._by_crps else self.distribution.nll
        with np.errstate(invalid="ignore", divide="ignore", over="ignore"):
            return ops.xp.where(valid, loss(y, params, ops), np.nan)

    def slopes(self, x: Array, y: Array, ops: Ops) -> Array:
        slopes = self.distribution.crps_slopes if self._by_crps else self.distribution.nll_slopes
        return ops.xp.stack(slopes(y, self._params(x), ops), axis=2)

    def crps(self, x: Array, y: Array, ops: Ops) -> Array:
        return self.distribution.crps(y, self._params(x), ops)

    def bins(self, x: Array, y: Array, ops: Ops) -> Array:
        params = self._params(x)
        share = self.distribution.cdf(y, params, ops)
        if self.distribution.support == "counts":  # the middle of the step at y
            share = share - ops.xp.exp(-self.distribution.nll(y, params, ops)) / 2
        return ops.xp.clip((share * PIT_BINS).astype(np.int64), 0, PIT_BINS - 1)

    def moments(self, x: Array, ops: Ops) -> MeanAndVariance:
        params = self._params(x)
        return MeanAndVariance(self.distribution.mean(params, ops.xp), self.distribution.variance(params, ops.xp), 1.0)

    def point(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(self.distribution.mean([*np.moveaxis(x, -1, 0)]))

    def quantiles(self, x: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        return np.stack([self.distribution.quantile(level, [*np.moveaxis(x, -1, 0)]) for level in levels], axis=-1)

    def fault(self, x: np.ndarray, y: np.ndarray) -> str:
        for param, above, name in zip(self._params(x), self.distribution.positive, self.points, strict=True):
            if above and not (param > 0).all():
                return (
                    f"gets {param[~(param > 0)][0]:g} as {name}, which is above 0; put a kDistributionParams "
                    f'(nn.DistributionParams("{self.name.name}")) between it and the layer below'
                )
        wrong = y[~self.distribution.holds(y)]
        support = self.distribution.support
        if not wrong.size:
            return ""
        return f"is {self.name.name}, of {support}, but a target is {wrong[0]:g}; take another distribution"


class EnsembleForm(ForecastForm):
    """The form of an ensemble's equally likely members; their loss is a CRPS.

    It is Σ |x_i - y| / K - c·Σ |x_i - x_j| over all pairs, twice each. For the CRPS of K points, c is 1 / (2·K²), for
    the fair one 1 / (2·K·(K - 1)) (Ferro, Fair Scores for Ensemble Forecasts, 2014). ``fairness`` f mixes both.
    """

    dim = "member"

    def __init__(self, members: int, fairness: float):
        self._factor = fairness / (members * (members - 1)) + (1 - fairness) / members**2  # 2c
        self.points, self.shares = range(1, members + 1), (1 / (members + 1),) * (members + 1)

    def losses(self, x: Array, y: Array, ops: Ops) -> Array:
        k, error = self.count, ops.xp.abs(x - y[:, :, None]).sum(axis=2) / self.count
        ranks = np.arange(1 - k, k, 2) * self._factor
        return error - (ops.xp.sort(x, axis=2) * ops.asarray(ranks.astype(x.dtype))[:, None]).sum(axis=2)

    def slopes(self, x: Array, y: Array, ops: Ops) -> Array:
        k, sign = self.count, ops.xp.sign
        slopes = sign(x - y[:, :, None]) / k
        for other in range(k):
            slopes -= sign(x - x[:, :, other : other + 1]) * self._factor
        return slopes

    def crps(self, x: Array, y: Array, ops: Ops) -> Array:
        return self.losses(x, y, ops)

    def bins(self, x: Array, y: Array, ops: Ops) -> Array:
        return (x < y[:, :, None]).sum(axis=2)

    def moments(self, x: Array, ops: Ops) -> MeanAndVariance:
        return MeanAndVariance(x.mean(axis=2), x.var(axis=2, ddof=1), (self.count + 1) / self.count)

    def point(self, x: np.ndarray) -> np.ndarray:
        return np.asarray(x.mean(axis=-1))

    def quantiles(self, x: np.ndarray, levels: Sequence[float]) -> np.ndarray:
        return np.moveaxis(np.quantile(x, levels, axis=-1), 0, -1)


def form_of(settings: Any) -> ForecastForm:
    """Create the form in a layer's settings: quantiles, a distribution or members."""
    if (name := getattr(settings, "distribution", None)) is not None:
        return DistributionForm(name, getattr(settings, "score", DistributionScore.nll))
    if (members := getattr(settings, "members", None)) is not None:
        return EnsembleForm(members, settings.fairness)
    return QuantileForm(settings.quantile)
