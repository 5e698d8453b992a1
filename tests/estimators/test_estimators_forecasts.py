"""Regressors that predict quantiles, intervals and distributions, here and lazily."""

from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import scipy.stats
from sklearn.linear_model import QuantileRegressor
from sklearn.metrics import mean_pinball_loss

from dsinga import nn
from dsinga.estimators import Regressor, load
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.uniform(-1, 1, (900, 2))
DEVIATION = 0.2 + 0.4 * (X[:, 0] + 1)
Y = 50 + 20 * X[:, 0] + 10 * DEVIATION * RNG.normal(size=len(X))
TRAIN, TEST = slice(0, 600), slice(600, None)


def linear(**settings: Any) -> Regressor:
    return Regressor(hidden=(), epochs=60, batchsize=100, weight_decay=0, random_state=0, **settings)


def test_quantiles_are_as_good_as_those_of_scikit_learn():
    ours = linear(loss="quantile", quantiles=(0.1, 0.5, 0.9)).fit(X[TRAIN], Y[TRAIN])
    found = ours.predict(X[TEST], quantiles=[0.9, 0.1])
    for column, level in enumerate((0.9, 0.1)):
        peer = QuantileRegressor(quantile=level, alpha=0).fit(X[TRAIN], Y[TRAIN]).predict(X[TEST])
        losses = [mean_pinball_loss(Y[TEST], values, alpha=level) for values in (found[:, column], peer)]
        assert losses[0] == pytest.approx(losses[1], rel=0.05)
    low, high = ours.predict_interval(X[TEST]).T
    np.testing.assert_array_equal(np.stack([high, low], axis=1), found)
    np.testing.assert_array_equal(ours.predict_interval(X[TEST], coverage=0.8), np.stack([low, high], axis=1))
    assert np.mean((low < Y[TEST]) & (Y[TEST] < high)) == pytest.approx(0.8, abs=0.07)
    assert ours.score(X[TEST], Y[TEST]) > 0.5  # of the median
    one = linear(loss="quantile", quantiles=(0.9,)).fit(X[TRAIN], Y[TRAIN])
    np.testing.assert_allclose(one.predict(X[TEST]), found[:, 0], rtol=0.05)


def test_a_distribution_has_any_quantile_and_its_width_depends_on_the_record(tmp_path: Path):
    both = np.stack([Y, -2 * Y], axis=1)
    ours = Regressor(loss="normal", hidden=16, epochs=60, random_state=0).fit(X[TRAIN], both[TRAIN])
    quantiles = ours.predict(X[TEST], quantiles=[0.05, 0.5, 0.95])
    assert quantiles.shape == (300, 2, 3)
    np.testing.assert_allclose(quantiles[:, :, 1], ours.predict(X[TEST]))
    width = quantiles[:, 0, 2] - quantiles[:, 0, 0]
    expected = 2 * scipy.stats.norm.ppf(0.95) * 10 * DEVIATION[TEST]
    assert np.corrcoef(width, expected)[0, 1] > 0.9
    assert width.mean() == pytest.approx(expected.mean(), rel=0.15)
    lazy = ours.predict(da.from_array(X[TEST], chunks=(100, 2)), quantiles=[0.05, 0.5, 0.95])
    assert lazy.shape == quantiles.shape
    np.testing.assert_allclose(lazy.compute(), quantiles, rtol=1e-5)
    ours.save(tmp_path / "saved")
    np.testing.assert_array_equal(load(tmp_path / "saved").predict_interval(X[TEST]), quantiles[:, :, [0, 2]])


@pytest.mark.parametrize("loss", ["lognormal", "poisson", "negative_binomial", "laplace", "absolute_error"])
def test_each_loss_learns_what_it_is_of(loss: str):
    rate = np.exp(1.5 + X[:, 0])
    y = RNG.negative_binomial(3, 3 / (3 + rate)) if loss == "negative_binomial" else RNG.poisson(rate)
    y = 100 * rate * np.exp(0.3 * RNG.normal(size=len(X))) if loss == "lognormal" else y
    ours = Regressor(loss=loss, hidden=16, epochs=60, random_state=0).fit(X[TRAIN], y[TRAIN])
    assert np.corrcoef(ours.predict(X[TEST]), rate[TEST])[0, 1] > 0.85
    assert ours.predict(X[TEST]).mean() == pytest.approx(y[TEST].mean(), rel=0.2)
    if loss != "absolute_error":
        low, high = ours.predict_interval(X[TEST], coverage=0.9).T
        assert 0.84 <= np.mean((low <= y[TEST]) & (y[TEST] <= high)) <= 0.98


def test_a_net_of_ones_own_says_by_its_loss_what_its_outputs_are():
    model = nn.Sequential([nn.Input(2), nn.Dense(2), nn.DistributionParams("normal")])
    model.compile(nn.Adam(0.05), nn.DistributionLoss("normal", score="crps"))
    ours = Regressor(model, epochs=20, random_state=0).fit(X[TRAIN], (Y[TRAIN] - 50) / 20)
    assert ours.score(X[TEST], (Y[TEST] - 50) / 20) > 0.4
    assert ours.predict_interval(X[TEST]).shape == (300, 2)


@pytest.mark.parametrize(
    ("settings", "message"),
    [
        ({"loss": "quantile", "quantiles": (0.9, 0.1)}, "Regressor: quantiles must increase, but 0.1 stands after 0.9"),
        ({"loss": "quantile", "quantiles": (0.0, 0.5)}, r"Regressor: quantiles? must be in \(0, 1\), not 0.0"),
        ({"loss": "quantile", "quantiles": ()}, "Regressor: quantiles needs at least one level"),
        ({"loss": "gaussian"}, "there is no loss 'gaussian'"),
    ],
)
def test_wrong_settings_are_refused_by_fit(settings: dict[str, Any], message: str):
    refused(lambda: Regressor(**settings).fit(X, Y), message)


def test_quantiles_that_are_not_predicted_are_refused():
    plain, some = Regressor(epochs=1).fit(X, Y), Regressor(loss="quantile", quantiles=(0.1, 0.5), epochs=1).fit(X, Y)
    refused(lambda: plain.predict(X, quantiles=[0.1]), "the net predicts one number", "train Regre")
    refused(lambda: some.predict(X, quantiles=[0.1, 0.9]), "the net predicts the quantiles", "take some of")
    refused(lambda: some.predict(X, quantiles=[1]), "quantiles must be in", "not 1")
    refused(lambda: some.predict_interval(X, coverage=90), "coverage must be in", "not 90")
    refused(lambda: Regressor(loss="poisson", epochs=1).fit(X, np.full(len(X), -5.0)), "y has -5|a target is -5")
