"""Distributions with predicted parameters: likelihood, CRPS, mean, variance and quantiles.

Losses, metrics, predicted quantiles and the layer kDistributionParams follow from each class. CRPS is ∫ (F(x) - 1{x >=
y})² dx for the distribution function F and the value y (Gneiting and Raftery, Strictly Proper Scoring Rules, 2007).
Closed forms are from Jordan, Krüger and Lerch, scoringRules (2019).
"""

from __future__ import annotations

import math
from abc import ABC, abstractmethod
from collections.abc import Sequence
from statistics import NormalDist
from typing import Any, ClassVar

import numpy as np

from dsinga.base.errors import UserError
from dsinga.job.enums import DistributionName
from dsinga.ops import Array, Ops

Params = Sequence[Array]
MOST_COUNTS = 20_000  # that a quantile or a CRPS adds up
# Stirling's series at x + 8, and the recurrence from there to x: in float64 the error is below 1e-11 (Abramowitz and
# Stegun, Handbook of Mathematical Functions, 1964, 6.1.41 and 6.3.18). Numpy has neither of the two functions.
SHIFT = 8


def log_gamma(x: Array, xp: Any) -> Array:
    """Return log Γ(x) of numbers above 0."""
    z = x + SHIFT
    w = 1 / (z * z)
    series = (1 / 12 - w * (1 / 360 - w * (1 / 1260 - w * (1 / 1680 - w / 1188)))) / z
    result = (z - 0.5) * xp.log(z) - z + 0.5 * math.log(2 * math.pi) + series
    for k in range(SHIFT):
        result = result - xp.log(x + k)
    return result


def digamma(x: Array, xp: Any) -> Array:
    """Return the digamma function, the derivative of log Γ(x), at numbers above 0."""
    z = x + SHIFT
    w = 1 / (z * z)
    result = xp.log(z) - 0.5 / z - w * (1 / 12 - w * (1 / 120 - w * (1 / 252 - w * (1 / 240 - w / 132))))
    for k in range(SHIFT):
        result = result - 1 / (x + k)
    return result


class Distribution(ABC):
    """Base class of a family of distributions.

    Attributes:
        parameters: the names of its parameters.
        positive: for each, whether it is above 0.
        support: its values: "numbers", "positive numbers" or "counts".
        has_crps_slopes: whether it can be trained by its CRPS.
    """

    parameters: ClassVar[tuple[str, ...]] = ("loc", "scale")
    positive: ClassVar[tuple[bool, ...]] = (False, True)
    support: ClassVar[str] = "numbers"
    has_crps_slopes: ClassVar[bool] = True

    @abstractmethod
    def nll(self, y: Array, params: Params, ops: Ops) -> Array:
        """Return the negative log-likelihood of values ``y``."""

    @abstractmethod
    def nll_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        """Return the derivative of :meth:`nll` for each parameter."""

    @abstractmethod
    def crps(self, y: Array, params: Params, ops: Ops) -> Array:
        """Return the continuous ranked probability score (CRPS), in the units of ``y``; less is better."""

    def crps_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        """Return the derivative of :meth:`crps` for each parameter, if it ``has_crps_slopes``."""
        raise NotImplementedError

    @abstractmethod
    def cdf(self, y: Array, params: Params, ops: Ops) -> Array:
        """Return the probability of values up to ``y`` (cumulative distribution function)."""

    @abstractmethod
    def quantile(self, level: float, params: Params) -> np.ndarray:
        """Return the quantile at ``level`` in (0, 1), the smallest value with this cumulative probability, in numpy."""

    @abstractmethod
    def mean(self, params: Params, xp: Any = np) -> Array:
        """Return the mean of the distribution."""

    @abstractmethod
    def variance(self, params: Params, xp: Any = np) -> Array:
        """Return the variance of the distribution."""

    def holds(self, y: Array, xp: Any = np) -> Array:
        """Return whether each of ``y`` is a possible value of the distribution."""
        if self.support == "numbers":
            return y == y
        return y > 0 if self.support == "positive numbers" else (y >= 0) & (y == xp.floor(y))


class LocationScale(Distribution):
    """Base class of distributions of loc + scale·z: formulas of z, with density f and distribution function F.

    ``unit_variance`` is the variance of z; its mean is 0.
    """

    unit_variance: ClassVar[float]

    @abstractmethod
    def energy(self, z: Array, ops: Ops) -> Array:
        """Return -log f(z), the energy of the standardised value z."""

    @abstractmethod
    def energy_slope(self, z: Array, ops: Ops) -> Array:
        """Return the derivative of :meth:`energy` for z."""

    @abstractmethod
    def unit_cdf(self, z: Array, ops: Ops) -> Array:
        """Return the distribution function F(z) of the standardised value."""

    @abstractmethod
    def unit_crps(self, z: Array, ops: Ops) -> Array:
        """Return the CRPS at z, with the derivative 2·F(z) - 1."""

    @abstractmethod
    def unit_quantile(self, level: float) -> float:
        """Return the standardised value z with F(z) = ``level``."""

    def nll(self, y: Array, params: Params, ops: Ops) -> Array:
        loc, scale = params
        return self.energy((y - loc) / scale, ops) + ops.xp.log(scale)

    def nll_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        loc, scale = params
        z = (y - loc) / scale
        slope = self.energy_slope(z, ops)
        return [-slope / scale, (1 - z * slope) / scale]

    def crps(self, y: Array, params: Params, ops: Ops) -> Array:
        loc, scale = params
        return self.unit_crps((y - loc) / scale, ops) * scale

    def crps_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        loc, scale = params
        z = (y - loc) / scale
        slope = 2 * self.unit_cdf(z, ops) - 1
        return [-slope, self.unit_crps(z, ops) - z * slope]

    def cdf(self, y: Array, params: Params, ops: Ops) -> Array:
        loc, scale = params
        return self.unit_cdf((y - loc) / scale, ops)

    def quantile(self, level: float, params: Params) -> np.ndarray:
        return params[0] + params[1] * self.unit_quantile(level)

    def mean(self, params: Params, xp: Any = np) -> Array:
        return params[0]

    def variance(self, params: Params, xp: Any = np) -> Array:
        return params[1] ** 2 * self.unit_variance


class Normal(LocationScale):
    """The normal distribution; scale is the standard deviation."""

    unit_variance = 1.0

    def energy(self, z: Array, ops: Ops) -> Array:
        return z * z * 0.5 + 0.5 * math.log(2 * math.pi)

    def energy_slope(self, z: Array, ops: Ops) -> Array:
        return z

    def density(self, z: Array, ops: Ops) -> Array:
        """Return the density f(z) of the standard normal distribution."""
        return ops.xp.exp(z * z * -0.5) * (2 * math.pi) ** -0.5

    def unit_cdf(self, z: Array, ops: Ops) -> Array:
        # The backends have Φ in the derivative of GELU, which is Φ(z) + z·φ(z).
        return ops.gelu_grad(z, ops.xp.ones_like(z)) - z * self.density(z, ops)

    def unit_crps(self, z: Array, ops: Ops) -> Array:
        return 2 * ops.gelu(z) - z + 2 * self.density(z, ops) - math.pi**-0.5

    def unit_quantile(self, level: float) -> float:
        return NormalDist().inv_cdf(level)


class Laplace(LocationScale):
    """The Laplace distribution, with density exp(-|z|)/2."""

    unit_variance = 2.0

    def energy(self, z: Array, ops: Ops) -> Array:
        return ops.xp.abs(z) + math.log(2)

    def energy_slope(self, z: Array, ops: Ops) -> Array:
        return ops.xp.sign(z)

    def unit_cdf(self, z: Array, ops: Ops) -> Array:
        return 0.5 - 0.5 * ops.xp.sign(z) * ops.xp.expm1(-ops.xp.abs(z))

    def unit_crps(self, z: Array, ops: Ops) -> Array:
        return ops.xp.abs(z) + ops.xp.exp(-ops.xp.abs(z)) - 0.75

    def unit_quantile(self, level: float) -> float:
        return math.log(2 * level) if level < 0.5 else -math.log(2 - 2 * level)


class LogNormal(Distribution):
    """The distribution of a positive number with a normal logarithm of mean loc and deviation scale."""

    support = "positive numbers"
    logarithm = Normal()

    def nll(self, y: Array, params: Params, ops: Ops) -> Array:
        log = ops.xp.log(y)
        return self.logarithm.nll(log, params, ops) + log

    def nll_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        return self.logarithm.nll_slopes(ops.xp.log(y), params, ops)

    def _parts(self, y: Array, params: Params, ops: Ops) -> tuple[Array, Array, Array, Array]:
        """Return z, the mean M, and A = Φ(z - scale) + Φ(scale/√2) - 1; CRPS is y·(2·Φ(z) - 1) - 2·M·A."""
        (loc, scale), cdf = params, self.logarithm.unit_cdf
        z = (ops.xp.log(y) - loc) / scale
        return z, scale, self.mean(params, ops.xp), cdf(z - scale, ops) + cdf(scale * 0.5**0.5, ops) - 1

    def crps(self, y: Array, params: Params, ops: Ops) -> Array:
        z, _, mean, part = self._parts(y, params, ops)
        return y * (2 * self.logarithm.unit_cdf(z, ops) - 1) - 2 * mean * part

    def crps_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        z, scale, mean, part = self._parts(y, params, ops)
        density = self.logarithm.density  # y·φ(z) = M·φ(z - scale), so that terms of both cancel
        peaks = density(z - scale, ops) - density(scale * 0.5**0.5, ops) * 0.5**0.5
        return [-2 * mean * part, 2 * mean * (peaks - scale * part)]

    def cdf(self, y: Array, params: Params, ops: Ops) -> Array:
        return self.logarithm.cdf(ops.xp.log(y), params, ops)

    def quantile(self, level: float, params: Params) -> np.ndarray:
        return np.exp(self.logarithm.quantile(level, params))

    def mean(self, params: Params, xp: Any = np) -> Array:
        return xp.exp(params[0] + params[1] ** 2 / 2)

    def variance(self, params: Params, xp: Any = np) -> Array:
        return xp.expm1(params[1] ** 2) * self.mean(params, xp) ** 2


class Counts(Distribution):
    """Base class of distributions of counts 0, 1, 2 ...; quantiles and CRPS are sums, up to 12 deviations."""

    support = "counts"
    has_crps_slopes = False

    def _up_to(self, y: Array, params: Params, xp: Any) -> int:
        """Return a count above ``y`` beyond which the probability is negligible."""
        far = self.mean(params, xp) + 12 * self.variance(params, xp) ** 0.5 + 12
        most = max(float(far.max()), float(y.max())) if y.size else 0
        if not most < MOST_COUNTS:
            raise UserError(
                f"quantiles and CRPS of counts add up all counts, {MOST_COUNTS} at most, here {most:.3g}; predict "
                "numbers as large as these as normal or lognormal"
            )
        return int(most) + 1

    def crps(self, y: Array, params: Params, ops: Ops) -> Array:
        total, below = y * 0, y * 0
        for count in range(self._up_to(y, params, ops.xp)):
            below = below + ops.xp.exp(-self.nll(y * 0 + count, params, ops))
            total = total + (below - (y <= count)) ** 2
        return total

    def cdf(self, y: Array, params: Params, ops: Ops) -> Array:
        below = y * 0
        for count in range(self._up_to(y, params, ops.xp)):
            below = below + ops.xp.exp(-self.nll(y * 0 + count, params, ops)) * (y >= count)
        return below

    def quantile(self, level: float, params: Params) -> np.ndarray:
        from dsinga.ops.interface import NumpyOps

        params, ops = [np.asarray(param, np.float64) for param in params], NumpyOps()
        below = result = np.zeros_like(params[0])
        for count in range(self._up_to(result, params, np)):
            below = below + np.exp(-self.nll(np.full_like(result, count), params, ops))
            result = result + (below < level)
        return result

    def mean(self, params: Params, xp: Any = np) -> Array:
        return params[0]


class Poisson(Counts):
    """The Poisson distribution of counts; rate is its mean."""

    parameters, positive = ("rate",), (True,)

    def nll(self, y: Array, params: Params, ops: Ops) -> Array:
        (rate,) = params
        return rate - y * ops.xp.log(rate) + log_gamma(y + 1, ops.xp)

    def nll_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        return [1 - y / params[0]]

    def variance(self, params: Params, xp: Any = np) -> Array:
        return params[0]


class NegativeBinomial(Counts):
    """The negative binomial distribution of counts with this mean, and variance mean + mean²/shape.

    PyTorch's has total_count = shape and logits = log(mean/shape).
    """

    parameters, positive = ("mean", "shape"), (True, True)

    def nll(self, y: Array, params: Params, ops: Ops) -> Array:
        (mean, shape), xp = params, ops.xp
        chosen = log_gamma(y + shape, xp) - log_gamma(shape, xp) - log_gamma(y + 1, xp)
        return (y + shape) * xp.log(shape + mean) - shape * xp.log(shape) - y * xp.log(mean) - chosen

    def nll_slopes(self, y: Array, params: Params, ops: Ops) -> list[Array]:
        (mean, shape), xp = params, ops.xp
        share = (y + shape) / (shape + mean)
        for_shape = xp.log((shape + mean) / shape) + share - 1 - digamma(y + shape, xp) + digamma(shape, xp)
        return [share - y / mean, for_shape]

    def variance(self, params: Params, xp: Any = np) -> Array:
        return params[0] + params[0] ** 2 / params[1]


DISTRIBUTIONS: dict[DistributionName, Distribution] = {
    DistributionName.normal: Normal(),
    DistributionName.laplace: Laplace(),
    DistributionName.lognormal: LogNormal(),
    DistributionName.poisson: Poisson(),
    DistributionName.negative_binomial: NegativeBinomial(),
}
