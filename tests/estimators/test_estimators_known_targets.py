"""Regressors of several targets of which some are missing: their loss is left out."""

from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client
from scipy.stats import norm

from dsinga import UserError, nn
from dsinga.estimators import Regressor
from tests.support.refusals import refused

RNG = np.random.default_rng(0)
X = RNG.normal(size=(600, 4))
Y = np.stack([X[:, 0] * 2 + 500, X[:, 1] * 100, X[:, 2]], axis=1)
GAPS = np.where(RNG.random(Y.shape) < [0.3, 0.6, 0], np.nan, Y)
WEIGHTS = RNG.random(600)
STILL: dict[str, Any] = {"random_state": 0, "epochs": 1, "learning_rate": 0.0, "weight_decay": 0.0}


@pytest.mark.parametrize(
    ("loss", "batchsize"), [("squared_error", 200), ("squared_error", 600), ("absolute_error", 200), ("normal", 200)]
)
def test_the_loss_is_the_weighted_mean_over_known_targets(loss: str, batchsize: int) -> None:
    regressor = Regressor(loss=loss, batchsize=batchsize, **STILL)
    regressor.fit(X, GAPS, sample_weight=WEIGHTS, validation_data=(X, GAPS, WEIGHTS))
    weights = np.where(np.isnan(GAPS), 0, WEIGHTS[:, None])
    mean = np.nansum(weights * GAPS, axis=0) / weights.sum(axis=0)
    deviation = np.sqrt(np.nansum(weights * (GAPS - mean) ** 2, axis=0) / weights.sum(axis=0))
    assert regressor._target_scaling is not None
    np.testing.assert_allclose(regressor._target_scaling, [mean, deviation])
    outputs = (regressor.predict(X) - mean) / deviation
    errors = (GAPS - mean) / deviation - outputs
    if loss == "normal":
        upper = regressor.predict(X, quantiles=norm.cdf([1.0]))[..., 0]  # the mean and a deviation
        losses = -norm.logpdf(errors, scale=(upper - mean) / deviation - outputs)
    else:
        losses = errors**2 if loss == "squared_error" else np.abs(errors)
    last, expected = regressor.history_[-1], np.nansum(weights * losses) / weights.sum()
    assert [last["loss"], last["val_loss"]] == pytest.approx([expected, expected], rel=1e-4)


def test_targets_with_gaps_are_learnt_and_gone_on_with() -> None:
    pd = pytest.importorskip("pandas")
    frame = pd.DataFrame(GAPS, columns=list("abc")).astype({"b": "Float64"})
    regressor = Regressor(random_state=0, epochs=30).fit(X, frame)
    assert regressor.score(X, Y) > 0.95
    regressor.partial_fit(X, Y).partial_fit(X, np.where([True, True, False], np.nan, Y))
    assert regressor.score(X, Y) > 0.95
    refused(lambda: regressor.score(X, frame), "y has NaN", "needs every target")
    model = nn.Sequential([nn.Dense(3)])
    model.compile(nn.Adam(0.1), "mse")
    assert Regressor(model, epochs=30).fit(X, GAPS[:, [2, 2, 0]] / 1000).history_[-1]["loss"] < 0.01


def test_columns_without_a_target_and_gaps_of_one_target_are_refused() -> None:
    pd = pytest.importorskip("pandas")
    empty = np.where([False, True, False], np.nan, Y)
    refused(lambda: Regressor().fit(X, empty), "column 1 of y", "only NaN")
    with pytest.raises(UserError, match="column 'b' of y has no number among the 540 records to train on"):
        Regressor(early_stopping=True).fit(X, pd.DataFrame(empty, columns=list("abc")))
    for single in (GAPS[:, 0], GAPS[:, :1]):
        with pytest.raises(ValueError, match="Input y contains NaN"):
            Regressor().fit(X, single)


def test_dask_arrays_have_gaps_too(threads: Client) -> None:
    x, y = da.from_array(X, chunks=(150, 4)), da.from_array(GAPS, chunks=(200, 3))
    here = Regressor(random_state=0, epochs=2).fit(X, GAPS, sample_weight=WEIGHTS)
    there = Regressor(random_state=0, epochs=2).fit(x, y, sample_weight=WEIGHTS, validation_data=(x, da.from_array(Y)))
    assert there.history_[-1]["loss"] == pytest.approx(here.history_[-1]["loss"], rel=1e-4)
    assert "val_loss" in there.history_[-1]
    assert Regressor(random_state=0, epochs=2, early_stopping=True).fit(x, y).best_epoch_ == 2
    refused(lambda: there.score(x, y), "y has NaN", "needs every target")
    with pytest.raises(UserError, match="column 1 of y has no number among the 600 records"):
        Regressor().fit(x, da.where(np.array([False, True, False]), np.nan, y))
