"""Predictions that say how sure they are, against scipy, PyTorch's distributions, scikit-learn and plain sums."""

from typing import Any

import numpy as np
import pytest
import scipy.stats
from sklearn.metrics import mean_pinball_loss

from dsinga.addons.probabilities.distributions import DISTRIBUTIONS
from dsinga.addons.probabilities.forecast_forms import PIT_BINS
from dsinga.addons.probabilities.forecast_scores import ensemble_scores
from dsinga.base.errors import UserError
from dsinga.job import Phase
from dsinga.job.enums import DistributionName
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import BACKENDS
from tests.support.later_import import torch
from tests.support.layer_cases import BATCH, context, layer_of
from tests.support.refusals import refused

OPS = BACKENDS["numpy"]()
SCIPY: dict[str, Any] = {
    "normal": lambda loc, scale: scipy.stats.norm(loc, scale),
    "laplace": lambda loc, scale: scipy.stats.laplace(loc, scale),
    "lognormal": lambda loc, scale: scipy.stats.lognorm(scale, scale=np.exp(loc)),
    "poisson": lambda rate: scipy.stats.poisson(rate),
    "negative_binomial": lambda mean, shape: scipy.stats.nbinom(shape, shape / (shape + mean)),
}
TORCH: dict[str, Any] = {
    "normal": lambda loc, scale: torch.distributions.Normal(loc, scale),
    "laplace": lambda loc, scale: torch.distributions.Laplace(loc, scale),
    "lognormal": lambda loc, scale: torch.distributions.LogNormal(loc, scale),
    "poisson": lambda rate: torch.distributions.Poisson(rate),
    "negative_binomial": lambda mean, shape: torch.distributions.NegativeBinomial(shape, logits=(mean / shape).log()),
}


def params_and_values(name: str, count: int = 40) -> tuple[list[np.ndarray], np.ndarray]:
    """Return random parameters of a distribution, (count,) float64 each, and a random value of each."""
    rng, distribution = np.random.default_rng(7), DISTRIBUTIONS[DistributionName[name]]
    params = [rng.uniform(0.2, 1.3, count) - 0.8 * (not above) for above in distribution.positive]
    return params, SCIPY[name](*params).rvs(random_state=3).astype(np.float64)


@pytest.mark.parametrize("name", SCIPY)
def test_a_distribution_is_that_of_scipy(name: str):
    (params, y), ours = params_and_values(name), DISTRIBUTIONS[DistributionName[name]]
    peer = SCIPY[name](*params)
    nll = -(peer.logpmf(y) if ours.support == "counts" else peer.logpdf(y))
    np.testing.assert_allclose(ours.nll(y, params, OPS), nll, rtol=1e-10, atol=1e-10)
    np.testing.assert_allclose(ours.cdf(y, params, OPS), peer.cdf(y), rtol=1e-9, atol=1e-12)
    np.testing.assert_allclose(ours.mean(params), peer.mean(), rtol=1e-10)
    np.testing.assert_allclose(ours.variance(params), peer.var(), rtol=1e-10)
    for level in (0.025, 0.3, 0.5, 0.95):
        np.testing.assert_allclose(ours.quantile(level, params), peer.ppf(level), rtol=1e-9, atol=1e-12)


@pytest.mark.parametrize("name", SCIPY)
def test_crps_is_the_integral_of_its_definition(name: str):
    (params, y), ours = params_and_values(name, 6), DISTRIBUTIONS[DistributionName[name]]
    peer = SCIPY[name](*params)
    if ours.support == "counts":
        grid = np.arange(200)[:, None]
        step = np.ones(1)
    else:
        low, high = np.minimum(peer.ppf(1e-7), y) - 1, np.maximum(peer.ppf(1 - 1e-6), y) + 1
        step = (high - low) / 100_000
        grid = low + (np.arange(100_000)[:, None] + 0.5) * step
    expected = ((peer.cdf(grid) - (grid >= y)) ** 2).sum(axis=0) * step
    np.testing.assert_allclose(ours.crps(y, params, OPS), expected, rtol=5e-4, atol=1e-5)


@pytest.mark.parametrize("name", SCIPY)
def test_the_loss_and_its_gradient_are_those_of_pytorch(name: str):
    params, y = params_and_values(name, BATCH * 6)
    x = np.stack(params, axis=-1).reshape(BATCH, -1)
    layer = layer_of(
        "kDistributionLoss", x.shape, (BATCH, 6), distributionloss_conf={"distribution": name, "scale": 1 / 6}
    )
    sources = [x, y.reshape(BATCH, 6)]
    output = layer.compute_feature([], sources, context(OPS))
    (gradient, _), _ = layer.compute_gradient([], sources, output, None, [True, False], context(OPS))
    given = [torch.tensor(param, requires_grad=True) for param in params]
    (theirs := -TORCH[name](*given).log_prob(torch.tensor(y)).mean()).backward()
    total, rows = output.metrics["loss"]
    assert total / rows == pytest.approx(theirs.item(), rel=1e-10)
    expected = np.stack([param.grad.numpy() for param in given], axis=-1).reshape(BATCH, -1)
    np.testing.assert_allclose(gradient, expected, rtol=1e-8, atol=1e-10)


def test_parameters_of_fields_are_neighbouring_channels_and_those_of_steps_neighbouring_numbers():
    rng = np.random.default_rng(0)
    mean, scale = rng.normal(size=(BATCH, 2, 4, 3)), rng.uniform(0.5, 2, (BATCH, 2, 4, 3))
    y = rng.normal(size=mean.shape)
    expected = -scipy.stats.norm(mean, scale).logpdf(y).sum() / BATCH

    def loss(x: np.ndarray, target: np.ndarray) -> float:
        layer = layer_of("kDistributionLoss", x.shape, target.shape)
        total, rows = layer.compute_feature([], [x, target], context(OPS)).metrics["loss"]
        return float(total / rows)

    fields = np.stack([mean, scale], axis=2).reshape(BATCH, 4, 4, 3)
    assert loss(fields, y) == pytest.approx(expected, rel=1e-12)
    steps = np.stack([mean, scale], axis=-1).reshape(BATCH, 2, -1)
    assert loss(steps, y.reshape(BATCH, 2, -1)) == pytest.approx(expected, rel=1e-12)
    assert loss(steps.reshape(BATCH, -1), y) == pytest.approx(expected, rel=1e-12)


def test_the_pinball_loss_is_scikit_learns():
    rng, levels = np.random.default_rng(0), [0.05, 0.5, 0.8]
    x, y = rng.normal(size=(BATCH, 12)), rng.normal(size=(BATCH, 4))
    layer = layer_of("kQuantileLoss", x.shape, y.shape, quantileloss_conf={"quantile": levels, "scale": 1 / 4})
    total, rows = layer.compute_feature([], [x, y], context(OPS)).metrics["loss"]
    by_level = x.reshape(-1, 3)
    theirs = [mean_pinball_loss(y.ravel(), by_level[:, k], alpha=level) for k, level in enumerate(levels)]
    assert total / rows == pytest.approx(np.mean(theirs), rel=1e-12)


def crps_of_members(x: np.ndarray, y: np.ndarray, pairs: float) -> np.ndarray:
    """Return Σ |x_i - y| / K - Σ |x_i - x_j| / (2·pairs) of members (n, K) and values (n,)."""
    between = np.abs(x[:, :, None] - x[:, None, :]).sum(axis=(1, 2))
    return np.abs(x - y[:, None]).mean(axis=1) - between / (2 * pairs)


@pytest.mark.parametrize(("fairness", "pairs"), [(0.0, 49), (1.0, 42)])
def test_the_crps_of_members(fairness: float, pairs: int):
    """That of properscoring's crps_ensemble is the first; the fair one divides by K·(K - 1)."""
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(BATCH, 7)), rng.normal(size=(BATCH, 1))
    layer = layer_of("kEnsembleLoss", x.shape, y.shape, ensembleloss_conf={"members": 7, "fairness": fairness})
    total, _ = layer.compute_feature([], [x, y], context(OPS)).metrics["loss"]
    assert total == pytest.approx(crps_of_members(x, y[:, 0], pairs).sum(), rel=1e-12)


def figures(kind: str, x: np.ndarray, labels: np.ndarray, **settings: Any) -> dict[str, Any]:
    """Return the metrics of a layer for predictions and labels, computed in two parts."""
    sums: dict[str, Any] = {}
    for part in (slice(0, 3), slice(3, None)):
        layer = layer_of(kind, x[part].shape, labels[part].shape, **{f"{kind[1:].lower()}_conf": settings})
        for name, (total, count) in layer.compute_feature(
            [], [x[part], labels[part]], context(OPS, Phase.kTest)
        ).metrics.items():
            before = sums.get(name, (0, 0))
            sums[name] = before[0] + total, before[1] + count
    return metric_values(sums)


def test_the_scores_of_a_perfect_forecast_say_that_it_is_honest():
    """Spread and error agree, ranks are uniform, and intervals have the labels that they promise, to the noise."""
    rng = np.random.default_rng(1)
    mean, scale = rng.normal(size=20_000), rng.uniform(0.5, 2, 20_000)
    draw = lambda count: mean[:, None] + scale[:, None] * rng.normal(size=(len(mean), count))  # noqa: E731
    y = draw(1)
    normal = figures("kForecastScores", np.stack([mean, scale], axis=1), y, distribution="normal")
    members = figures("kForecastScores", draw(8), y, members=8, fairness=1.0)
    levels = [0.1, 0.4, 0.9]
    limits = mean[:, None] + scale[:, None] * scipy.stats.norm.ppf(levels)
    quantiles = figures("kForecastScores", limits, y, quantile=levels)
    for found, shares in ((normal, [0.1] * PIT_BINS), (members, [1 / 9] * 9), (quantiles, [0.1, 0.3, 0.5, 0.1])):
        np.testing.assert_allclose(found["rank_histogram"], shares, atol=0.01)
        assert found["coverage"] == pytest.approx(sum(found["rank_histogram"][1:-1]))
    assert normal["spread_skill"] == pytest.approx(1, abs=0.02) == members["spread_skill"]
    assert normal["spread"] == pytest.approx(np.sqrt((scale**2).mean()), rel=1e-12)
    assert members["crps"] == pytest.approx(normal["crps"], rel=0.02)  # the fair one, however few members
    assert "spread" not in quantiles


def test_scores_of_members_leave_out_nan_and_weigh_points():
    rng = np.random.default_rng(0)
    x, y, weights = rng.normal(size=(4, 6, 5)), rng.normal(size=(6, 5)), rng.uniform(0.5, 2, (6, 1))
    y[2, 3] = x[1, 4, 4] = np.nan
    found = ensemble_scores(x, y, weights, fairness=0.0)
    valid = np.isfinite(y) & np.isfinite(x).all(axis=0)
    of_points = np.broadcast_to(weights, y.shape)[valid]
    crps = crps_of_members(x[:, valid].T, y[valid], 16)
    assert found["crps"] == pytest.approx(np.average(crps, weights=of_points), rel=1e-12)
    variance = np.average(x[:, valid].var(axis=0, ddof=1), weights=of_points)
    error = np.average((x[:, valid].mean(axis=0) - y[valid]) ** 2, weights=of_points)
    assert found["spread"] == pytest.approx(variance**0.5, rel=1e-12)
    assert found["spread_skill"] == pytest.approx((variance * 5 / 4 / error) ** 0.5, rel=1e-12)
    ranks = (x[:, valid] < y[valid]).sum(axis=0)
    np.testing.assert_allclose(found["rank_histogram"], np.bincount(ranks, of_points, 5) / of_points.sum())
    refused(lambda: ensemble_scores(x.transpose(1, 0, 2), y), "two or more", r"not \(6, 4, 5\)")


def test_scores_of_members_are_those_of_the_same_points():
    xr = pytest.importorskip("xarray")
    members = xr.DataArray(
        np.arange(18.0).reshape(2, 3, 3), [("member", [1, 2]), ("time", [0, 1, 2]), ("x", [5, 6, 7])]
    )
    labels = members[0].drop_vars("member")
    assert ensemble_scores(members, labels) == ensemble_scores(members.values, labels.values)
    for wrong, message in (
        (labels.T, r"not \('member', 'time', 'x'\) and \('x', 'time'\)"),
        (labels.assign_coords(time=labels.time + 1), r"other points of 'time', such as 0 and 1; compare the same"),
        (labels.to_dataset(name="t"), r"takes one variable of Datasets"),
    ):
        with pytest.raises(UserError, match=message):
            ensemble_scores(members, wrong)


def test_weights_of_members_go_by_their_coordinates():
    xr = pytest.importorskip("xarray")
    rng = np.random.default_rng(0)
    coords = {"time": [0, 1, 2, 3], "lat": [10, 20, 30, 40]}  # a square, in which axes could be mixed
    members = xr.DataArray(rng.normal(size=(5, 4, 4)), {"member": range(5), **coords}, ("member", "time", "lat"))
    labels = xr.DataArray(rng.normal(size=(4, 4)), coords, ("time", "lat"))
    weights = xr.DataArray(rng.uniform(1, 2, (4, 4)), coords, ("time", "lat"))
    expected = ensemble_scores(members.values, labels.values, weights.values)
    more = xr.concat([weights.assign_coords(lat=weights.lat + 1), weights], "lat")
    for given in (weights, weights[::-1], weights[:, ::-1].T, weights.chunk(), more):
        for x, y in ((members, labels), (members, labels.values), (members.values, labels), ([*members], labels)):
            assert ensemble_scores(x, y, given) == expected
    by_lat = weights[0]
    assert ensemble_scores(members, labels, by_lat[::-1].drop_vars("time")) == ensemble_scores(
        members.values, labels.values, by_lat.values
    )
    for wrong, message in (
        (weights[:, 1:], "not one number for lat=10"),
        (weights.rename(lat="lon"), "the dimension 'lon', but points have"),
        (weights.to_dataset(name="w"), "takes one variable of Datasets"),
        (-weights, "go from -.* to -.*; give finite ones from 0 on"),
        (weights.where(weights > 1.5), "go from nan to nan"),
        (0 * weights, "go from 0 to 0"),
        (np.ones(5), r"shape \(5,\), which does not broadcast with the labels \(4, 4\)"),
        (np.ma.masked_greater(weights.values, 1.5), "weights have masked numbers"),
    ):
        with pytest.raises(UserError, match=message):
            ensemble_scores(members, labels, wrong)


def test_members_and_labels_that_have_no_numbers_or_masks_are_said():
    rng = np.random.default_rng(0)
    x, y = rng.normal(size=(3, 4)), rng.normal(size=4)
    gaps = np.where(np.arange(4) < 2, np.nan, 1.0)
    for members, labels, message in (
        (np.where(np.arange(3)[:, None] == 1, np.nan, x), y, "member 1 has no number; leave it out"),
        (x, y * np.nan, "the labels have no number at any point"),
        (x * gaps, y * gaps[::-1], "the labels and members have no number together"),
        (np.ma.masked_greater(x, 0), y, "members have masked numbers; give NaN, which is left out: members.filled"),
        ([*np.ma.masked_greater(x, 0)], y, "members have masked numbers"),
        (x, np.ma.masked_greater(y, y.min()), "labels have masked numbers"),
    ):
        with pytest.raises(UserError, match=message):
            ensemble_scores(members, labels)


def test_scores_leave_out_masked_points_and_weigh_the_others():
    rng = np.random.default_rng(0)
    x, y = np.abs(rng.normal(size=(BATCH, 4, 4, 3))) + 0.1, rng.normal(size=(BATCH, 2, 4, 3))
    y[rng.uniform(size=y.shape) < 0.3] = np.nan
    weights = rng.uniform(0.5, 1.5, (BATCH, 1, 4, 3))
    both = np.concatenate([y, weights], axis=1)
    found = figures("kForecastScores", x, both, distribution="normal", masked=True, weighted=True)
    mean, scale = x[:, 0::2], x[:, 1::2]
    valid, of_points = ~np.isnan(y), np.broadcast_to(weights, y.shape)
    error = np.average(((mean - y) ** 2)[valid], weights=of_points[valid])
    spread = np.average((scale**2)[valid], weights=of_points[valid])
    z = (y - mean) / scale
    crps = scale * (z * (2 * scipy.stats.norm.cdf(z) - 1) + 2 * scipy.stats.norm.pdf(z) - np.pi**-0.5)
    assert found["crps"] == pytest.approx(np.average(crps[valid], weights=of_points[valid]), rel=1e-6)
    assert found["spread_skill"] == pytest.approx((spread / error) ** 0.5, rel=1e-6)


def test_brier_score_and_reliability_are_scikit_learns():
    from sklearn.calibration import calibration_curve
    from sklearn.metrics import brier_score_loss

    rng = np.random.default_rng(0)
    p = rng.uniform(size=(500, 1))
    yes = (rng.uniform(size=500) < p[:, 0] ** 2).astype(np.int64)
    found = figures("kReliability", p, yes)
    share, predicted = calibration_curve(yes, p[:, 0], n_bins=10)
    assert found["brier"] == pytest.approx(brier_score_loss(yes, p[:, 0]), rel=1e-12)
    np.testing.assert_allclose(np.array(found["reliability"])[:, :2], np.stack([predicted, share], axis=1), rtol=1e-12)
    counts = np.array(found["reliability"])[:, 2]
    assert found["calibration_error"] == pytest.approx(np.average(np.abs(share - predicted), weights=counts))
    scores = rng.dirichlet(np.ones(3), 60)
    classes = rng.integers(0, 3, 60)
    expected = ((scores - np.eye(3)[classes]) ** 2).sum(axis=1)
    assert figures("kReliability", scores, classes)["brier"] == pytest.approx(expected.mean(), rel=1e-12)
    fields, labels = scores.reshape(10, 6, 3).transpose(0, 2, 1), classes.reshape(10, 6)
    labels = np.where(np.arange(6) < 2, -1, labels)  # points that are left out
    both = np.stack([labels, np.full(labels.shape, 0.5)], axis=1)
    masked = figures("kReliability", fields, both, weighted=True)
    assert masked["brier"] == pytest.approx(expected.reshape(10, 6)[:, 2:].mean(), rel=1e-12)


@pytest.mark.parametrize(
    ("kind", "settings", "shape", "message"),
    [
        ("kQuantileLoss", {"quantile": [0.9, 0.1]}, (5, 2), "quantile must increase, but 0.1 stands after 0.9"),
        ("kQuantileLoss", {"quantile": [0.1, 0.1]}, (5, 2), "quantile must increase, but 0.1 stands after 0.1"),
        ("kQuantileLoss", {"quantile": [0.1, 1]}, (5, 2), r"quantile must be in \(0, 1\), not 1"),
        ("kQuantileLoss", {"quantile": []}, (5, 2), "quantile needs at least one level"),
        ("kQuantileLoss", {}, (5, 2), "5 x 2, with 'source1', 5 x 1; give both as many rows, and the prediction 3"),
        ("kDistributionLoss", {"distribution": "poisson", "score": "crps"}, (5, 1), "score crps is not for counts"),
        ("kEnsembleLoss", {"members": 1}, (5, 1), r"members must be in \[2, 10000\], not 1"),
        ("kForecastScores", {}, (5, 1), "needs one of quantile, distribution and members"),
        ("kForecastScores", {"quantile": [0.5, 0.4]}, (5, 2), "quantile must increase, but 0.4 stands after 0.5"),
    ],
)
def test_settings_that_contradict_each_other(kind: str, settings: dict[str, Any], shape: tuple[int, ...], message: str):
    refused(lambda: layer_of(kind, shape, (5, 1), **{f"{kind[1:].lower()}_conf": settings}), message)


def test_numbers_that_a_distribution_does_not_have_are_refused():
    """In tests at once; in training the loss is NaN, and the same check says why."""
    layer = layer_of("kDistributionLoss", (BATCH, 2), (BATCH, 1), distributionloss_conf={"distribution": "lognormal"})
    x, y = np.ones((BATCH, 2)), np.ones((BATCH, 1))
    wrong = y.copy()
    wrong[2] = -3
    refused(lambda: layer.compute_feature([], [x, wrong], context(OPS, Phase.kTest)), "a target is -3; take another")
    assert np.isnan(layer.compute_feature([], [x, wrong], context(OPS)).metrics["loss"][0])
    with pytest.raises(UserError, match=r"gets -1 as scale, which is above 0; put a kDistributionParams \(nn.Distr"):
        layer.compute_feature([], [-x, y], context(OPS, Phase.kTest))
    distribution = DISTRIBUTIONS[DistributionName.poisson]
    refused(lambda: distribution.quantile(0.5, [np.array([1e6])]), "20000 at most, here 1.01e.06; predict numbers as")
