"""Models trained from windows with masked points and weights: losses of fields in the words of Keras."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.errors import Diverged, UserError

xarray = pytest.importorskip("xarray")


def windows(mask: bool = True, weights: str | None = "cos(lat)") -> Any:
    """Return windows of a field with missing values: it, a step later, and weights by latitude."""
    rng = np.random.default_rng(0)
    values = rng.normal(size=(40, 6, 5)).astype(np.float32)
    values[rng.uniform(size=values.shape) < 0.2] = np.nan
    coordinates = {"time": np.arange(40), "lat": np.linspace(60, -60, 6), "lon": np.arange(5) * 72.0}
    data = xarray.Dataset({"t": (("time", "lat", "lon"), values)}, coordinates)
    sizes = {"time": 1, "lat": -1, "lon": -1}
    return dsinga.windows(data, inputs="t", targets="t", input_dims=sizes, lead={"time": 1}, mask=mask, weights=weights)


def model(loss: Any, optimizer: Any = "adam", metrics: Any = None) -> nn.Sequential:
    made = nn.Sequential([nn.Input((2, 6, 5)), nn.Conv2D(1, 3, padding="same")])
    made.compile(optimizer, loss, metrics=metrics)
    return made


def huber(error: np.ndarray) -> np.ndarray:
    size = np.abs(error)
    return np.where(size <= 0.4, error**2 / 2, 0.4 * (size - 0.2))


@pytest.mark.parametrize(
    ("loss", "formula"),
    [
        (nn.MeanSquaredError, np.square),
        (nn.MeanAbsoluteError, np.abs),
        (lambda **settings: nn.Huber(0.4, **settings), huber),
    ],
)
def test_the_loss_is_the_mean_over_all_points(loss: Any, formula: Any):
    data = windows()
    made = model(loss(masked=True, weighted=True, std=[2.0]))
    history = made.fit(data, epochs=3, batch_size=13, progress=False).history
    x, y = data.read(np.arange(len(data)))
    target, weights = y[:, :1], y[:, 1:]
    valid = ~np.isnan(target)
    losses = np.where(valid, formula((made.predict(x) - np.nan_to_num(target)) / 2) * weights, 0)
    assert made.evaluate(data)["loss"] == pytest.approx(losses.mean(), rel=1e-5)
    assert history["loss"][-1] < history["loss"][0]


def test_without_masks_it_is_the_loss_by_name():
    rng = np.random.default_rng(1)
    x, y = rng.normal(size=(2, 20, 2, 6, 5)).astype(np.float32)
    params = []
    for loss in ("mse", nn.MeanSquaredError()):
        made = nn.Sequential([nn.Input((2, 6, 5)), nn.Conv2D(2, 3, padding="same")])
        made.compile("adam", loss)
        made.fit(x, y, epochs=2, progress=False)
        params.append(made.params["conv2d_weight"])
    np.testing.assert_array_equal(*params)


def test_a_target_that_is_nan_is_refused_in_training():
    with pytest.raises(UserError, match=r"'data_target' is NaN in row \d+ of the batch, channel 0 at point .*masked"):
        model("mse").fit(windows(weights=None), progress=False)


def test_masked_points_are_not_the_cause_of_a_loss_that_is_not_finite():
    made = model(nn.MeanSquaredError(masked=True), nn.SGD(1e20))
    with pytest.raises(Diverged, match="not finite at step .*: (param|the feature of) 'conv2d"):
        with np.errstate(all="ignore"):
            made.fit(windows(weights=None), epochs=9, progress=False)


def test_channels_that_do_not_fit_are_refused():
    with pytest.raises(UserError, match="1 x 1 x 6 x 5, of which the last has weights; give both as many"):
        model(nn.MeanSquaredError(weighted=True)).fit(windows(weights=None), progress=False)
