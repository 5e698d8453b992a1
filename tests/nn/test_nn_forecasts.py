"""Models that say how sure they are: their losses and metrics, and the Datasets that they predict."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.field_nets import make_dataset

xr = pytest.importorskip("xarray")


def trained(outputs: int, loss: Any, y: np.ndarray, *last: Any, metrics: Any = ()) -> tuple[Any, np.ndarray]:
    """Return a model that was trained for an epoch, and its predictions of the records of training."""
    x = np.random.default_rng(0).normal(size=(len(y), 3)).astype(np.float32)
    model = nn.Sequential([nn.Dense(outputs), *last])
    model.compile("adam", loss, metrics=list(metrics))
    model.fit(x, y, progress=False)
    return model.evaluate(x, y), model.predict(x)


def test_losses_are_means_over_the_numbers_of_the_target():
    rng, levels = np.random.default_rng(1), np.array([0.1, 0.6, 0.9])
    y = rng.normal(size=(64, 2)).astype(np.float32)
    found, predicted = trained(6, nn.QuantileLoss(levels), y, metrics=["crps", "coverage"])
    above = y[:, :, None] - predicted.reshape(64, 2, 3)
    pinball = np.maximum(levels * above, (levels - 1) * above).mean()
    assert found["loss"] == pytest.approx(pinball, rel=1e-5)
    assert found["crps"] == pytest.approx(2 * pinball, rel=1e-5)
    assert 0 < found["coverage"] < 1

    last, metrics = nn.DistributionParams("normal"), ["crps", "spread", "spread_skill"]
    found, predicted = trained(4, nn.DistributionLoss("normal"), y, last, metrics=metrics)
    mean, scale = predicted.reshape(64, 2, 2).transpose(2, 0, 1)
    nll = 0.5 * ((y - mean) / scale) ** 2 + np.log(scale) + 0.5 * np.log(2 * np.pi)
    assert (scale > 0).all()
    assert found["loss"] == pytest.approx(nll.mean(), rel=1e-5)
    assert found["spread"] == pytest.approx((scale**2).mean() ** 0.5, rel=1e-5)
    assert found["spread_skill"] == pytest.approx(((scale**2).mean() / ((mean - y) ** 2).mean()) ** 0.5, rel=1e-5)

    found, _ = trained(8, nn.EnsembleLoss(4, scale=3), y, metrics=["crps", "rank_histogram"])
    assert found["loss"] == pytest.approx(3 * found["crps"], rel=1e-5)
    assert len(found["rank_histogram"]) == 5
    assert sum(found["rank_histogram"]) == pytest.approx(1)


def test_probabilities_have_a_brier_score():
    y = np.random.default_rng(1).integers(0, 2, 64)
    found, predicted = trained(1, "binary_crossentropy", y, nn.Activation("sigmoid"), metrics=["brier", "reliability"])
    assert found["brier"] == pytest.approx(((predicted[:, 0] - y) ** 2).mean(), rel=1e-5)
    assert sum(row[2] for row in found["reliability"]) == 64
    found, predicted = trained(2, "sparse_categorical_crossentropy", y, nn.Activation("softmax"), metrics=["brier"])
    assert found["brier"] == pytest.approx(2 * ((predicted[:, 1] - y) ** 2).mean(), rel=1e-5)
    numbers = np.random.default_rng(1).normal(size=64).astype(np.float32)
    with pytest.raises(UserError, match="the metric 'crps' needs predictions that say how sure they are: train with n"):
        trained(1, "mse", numbers, metrics=["crps"])
    with pytest.raises(UserError, match=r"there is no loss 'pinball'; write nn.QuantileLoss\(\[0.1, 0.5, 0.9\]\)"):
        trained(1, "pinball", numbers)


FORMS: dict[str, tuple[int, Any, list[Any], list[Any]]] = {
    "quantile": (3, lambda: nn.QuantileLoss([0.1, 0.5, 0.9], masked=True), [], [0.1, 0.5, 0.9]),
    "parameter": (
        2, lambda: nn.DistributionLoss("laplace", masked=True), [nn.DistributionParams("laplace")], ["loc", "scale"],
    ),
    "member": (4, lambda: nn.EnsembleLoss(4, masked=True), [], [0, 1, 2, 3]),
}  # fmt: skip


@pytest.mark.parametrize("dim", FORMS)
def test_a_predicted_dataset_has_a_dimension_for_how_sure_it_is(dim: str):
    """It stands before those of space; each of its points is a channel of the net, whatever the chunks are."""
    (count, loss, last, points), dataset = FORMS[dim], make_dataset()
    land = np.zeros(dataset.t.shape, bool)
    land[..., :3, :4] = True
    dataset = dataset.assign(t=dataset.t.where(~land), z=dataset.z.isel(level=0, drop=True))
    windows = dsinga.windows(
        dataset, inputs="t", targets=["t", "z"], mask=True, fill=0.0, lead={"time": 1},
        input_dims={"time": 1, "latitude": -1, "longitude": -1},
    )  # fmt: skip
    model = nn.Sequential([nn.Input(windows.shape), nn.Conv2D(2 * count, 3, padding="same"), *last])
    model.compile("sgd", loss(), metrics=["crps"])
    model.fit(windows, train_steps=2, progress=False)
    assert np.isfinite(model.evaluate(windows)["crps"])
    predicted = model.predict(dataset)
    assert predicted.t.dims == ("time", dim, "latitude", "longitude")
    assert predicted[dim].values.tolist() == points
    records = windows.read(np.arange(len(windows)))[0]
    channels = model.predict(records).reshape(len(records), 2, count, *records.shape[2:])
    np.testing.assert_allclose(predicted.z[: len(records)], channels[:, 1], rtol=1e-5, atol=1e-6)
    assert predicted.t[..., :3, :4].isnull().all()
    np.testing.assert_allclose(predicted.t[: len(records), :, 3:], channels[:, 0, :, 3:], rtol=1e-5, atol=1e-6)
    xr.testing.assert_identical(model.predict(dataset.chunk(time=3, latitude=5)).compute(), predicted.compute())
    with pytest.raises(UserError, match=f"leads feed predictions back .*gives {count} numbers for each, along '{dim}'"):
        model.predict(dataset, leads=2)
