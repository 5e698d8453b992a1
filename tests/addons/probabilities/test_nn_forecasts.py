"""Models that say how sure they are: their losses and metrics, and the Datasets that they predict."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.addons.fields.prediction import tiles as field_tiles
from tests.support.field_nets import make_dataset
from tests.support.refusals import refused

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
    refused(lambda: trained(1, "mse", numbers, metrics=["crps"]), "'crps'", "train with n")
    refused(lambda: trained(1, "pinball", numbers), r"'pinball'; write nn.QuantileLoss\(\[0.1, 0.5, 0.9\]\)")


FORMS: dict[str, tuple[int, Any, list[Any], list[Any]]] = {
    "quantile": (3, lambda: nn.QuantileLoss([0.1, 0.5, 0.9], masked=True), [], [0.1, 0.5, 0.9]),
    "parameter": (
        2, lambda: nn.DistributionLoss("laplace", masked=True), [nn.DistributionParams("laplace")], ["loc", "scale"],
    ),
    "member": (4, lambda: nn.EnsembleLoss(4, masked=True), [], [1, 2, 3, 4]),
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
    refused(lambda: model.predict(dataset, leads=2), f"back .*gives {count} numbers for each, along '{dim}'")


def test_members_are_nets_that_dropout_trains():
    """A member drops the same units for all records: it is linear here, and not what it is for another member."""
    x = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
    model = nn.Sequential([nn.Dense(16), nn.Dropout(0.5), nn.Dense(2)])
    model.compile("adam", "mse")
    model.fit(x, x[:, :2], progress=False)
    members = model.predict(x, members=12)
    assert members.shape == (12, 50, 2)
    np.testing.assert_allclose(model.predict(x[20:], members=3, batch_size=7), members[:3, 20:], atol=1e-6)
    assert members.std(axis=0).min() > 0
    at_zero = model.predict(np.zeros((1, 3), np.float32), members=12)
    sums = model.predict(x[:1] + x[1:2], members=12)
    np.testing.assert_allclose(members[:, 0] + members[:, 1] - at_zero[:, 0], sums[:, 0], atol=1e-5)
    np.testing.assert_allclose(members.mean(axis=0), model.predict(x), atol=4 * members.std() / 12**0.5)
    plain = nn.Sequential([nn.Dense(2)])
    plain.compile("adam", "mse")
    plain.fit(x, x[:, :2], progress=False)
    refused(lambda: plain.predict(x, members=3), "differ by the units that are dropped, but the net has no dropout")
    refused(lambda: model.predict(x, members=0), "members")


@pytest.mark.parametrize("loss", [nn.QuantileLoss([0.2, 0.8]), nn.DistributionLoss("normal"), nn.EnsembleLoss(2)])
def test_several_numbers_are_not_fed_back_nor_along_a_dimension_of_the_data(loss: Any) -> None:
    plain = make_dataset()[["t"]].isel(time=slice(6))
    members = xr.concat([plain, plain + 1], "member")
    sizes = {"time": 1, "latitude": -1, "longitude": -1}
    last = [nn.DistributionParams("normal")] if "Distribution" in str(loss) else []

    def fitted(dataset: Any, outputs: int, loss: Any, *last: Any, **settings: Any) -> Any:
        windows = dsinga.windows(
            dataset, inputs="t", targets="t", lead={"time": 1}, **{"input_dims": sizes, **settings}
        )
        model = nn.Sequential([nn.Input(windows.shape), nn.Dropout(0.1), nn.Conv2D(outputs, 1), *last])
        model.compile("sgd", loss)
        model.fit(windows, train_steps=1, batch_size=2, progress=False)
        return model

    refused(lambda: fitted(plain, 2, loss, *last, leads=2), "for each number of a", "train")
    one = plain.assign_coords(member=3, quantile=0.5, parameter="loc")  # as of one that was chosen
    predicted = fitted(one, 2, loss, *last).predict(one)
    assert predicted.t.dims.count(set(predicted.t.dims).difference(plain.t.dims).pop()) == 1
    if "Ensemble" not in str(loss):
        assert fitted(one, 2, loss, *last).predict(one, members=2).member.values.tolist() == [1, 2]
    model = fitted(members, 2, loss, *last, input_dims={"member": 1, **sizes})
    if "Ensemble" not in str(loss):
        assert model.predict(members).t.dims[:2] == ("member", "time")
        refused(lambda: model.predict(members, members=2), "predictions have 'member' already")
        return
    refused(lambda: model.predict(members), "'member' already, which predictions need for themselves; rename it")
    refused(lambda: fitted(plain, 2, loss).predict(plain, members=2), "predictions have 'member' already")


def test_members_of_a_dataset_lie_along_a_dimension_whatever_the_chunks_and_the_tiles(monkeypatch: pytest.MonkeyPatch):
    dataset = make_dataset()
    windows = dsinga.windows(
        dataset, inputs="t", targets="t", lead={"time": 1},
        input_dims={"time": 1, "latitude": 16, "longitude": 16},
        context={"latitude": 2, "longitude": 2}, edges={"latitude": "edge", "longitude": "periodic"},
    )  # fmt: skip
    hidden = nn.Conv2D(8, 3, activation="relu")
    model = nn.Sequential([nn.Input(windows.shape), hidden, nn.Dropout(0.4), nn.Conv2D(1, 3)])
    model.compile("sgd", "mse")
    model.fit(windows, train_steps=2, batch_size=8, progress=False)
    predicted = model.predict(dataset, members=3)
    assert predicted.t.dims == ("member", "time", "latitude", "longitude")
    assert predicted.member.values.tolist() == [1, 2, 3]
    assert predicted.t.attrs["units"] == "K"
    assert predicted.t.chunks is not None
    assert (predicted.t.std("member") > 0).any()
    computed = predicted.compute()
    xr.testing.assert_identical(model.predict(dataset.chunk(time=3, latitude=5), members=3).compute(), computed)
    monkeypatch.setattr(field_tiles, "TILE_BYTES", 4 * 20 * 17 * 17)
    monkeypatch.setattr(field_tiles, "LEAST_CORE", 8)
    tiled = model.predict(dataset.chunk(latitude=16), members=3)
    assert len(tiled.t.chunks[2]) > 1
    xr.testing.assert_allclose(tiled.compute(), computed, rtol=1e-5, atol=1e-6)
    leads = model.predict(dataset, leads=2, members=2)
    assert leads.t.dims == ("member", "time", "lead", "latitude", "longitude")
    np.testing.assert_array_equal(leads.t.isel(lead=0, member=1), computed.t.sel(member=2)[: leads.sizes["time"]])


@pytest.mark.parametrize("end", [(), (nn.Activation("sigmoid"),)])
def test_the_brier_score_of_yes_or_no_is_that_of_scikit_learn(end: tuple[Any, ...]):
    measures = pytest.importorskip("sklearn.metrics")
    x = np.random.default_rng(0).normal(size=(90, 3)).astype(np.float32)
    answers = (x[:, 0] > 0.3).astype(int)
    model = nn.Sequential([nn.Input(3), nn.Dense(1), *end])
    model.compile(nn.Adam(0.02), "binary_crossentropy", metrics=["brier"])
    history = model.fit(x, answers, epochs=3, validation_data=(x, answers), progress=False)
    chances = model.predict(x)[:, 0].astype(np.float64)
    chances = chances if end else 1 / (1 + np.exp(-chances))
    expected = pytest.approx(measures.brier_score_loss(answers, chances), rel=1e-5)
    assert history.phase("val")[-1]["brier"] == expected
    assert model.evaluate(x, answers)["brier"] == expected
    assert "brier" in history.phase("train")[-1]


# Intervals of ERA5's hourly temperature over the United Kingdom in March 2019, on days that training has not seen.
@pytest.mark.data
@pytest.mark.parametrize(
    ("outputs", "make_loss", "last", "promised"),
    [
        (3, lambda: nn.QuantileLoss([0.05, 0.5, 0.95], weighted=True), [], 0.9),
        (2, lambda: nn.DistributionLoss("normal", weighted=True), [nn.DistributionParams("normal")], 0.8),
    ],
    ids=["quantiles", "normal"],
)
def test_intervals_hold_on_days_that_were_left_out(
    real_data: Path, outputs: int, make_loss: Any, last: list[Any], promised: float
):
    """Six hours ahead, after 496 hours of training: the share of the last ten days' points inside is near that said."""
    with xr.open_dataset(real_data / "climate" / "era5-2mt-2019-03-uk.nc") as opened:
        t2m = opened.t2m.load()
    early = t2m.sel(time=slice(None, "2019-03-21"))
    anomaly = (t2m.groupby("time.hour") - early.groupby("time.hour").mean("time")).drop_vars("hour")
    dataset = xr.Dataset({"t": anomaly / float(anomaly.sel(time=early.time).std())})
    windows = dsinga.windows(
        dataset, inputs="t", targets="t", lead={"time": 6}, context={"time": (2, 0)}, weights="cos(latitude)",
        input_dims={"time": 1, "latitude": -1, "longitude": -1},
    )  # fmt: skip
    train, test = windows.split(time="2019-03-22")
    hidden = [nn.Conv2D(16, 3, activation="relu") for _ in range(2)]
    model = nn.Sequential([nn.Input(windows.shape), nn.Padding2D(2, "edge"), *hidden, nn.Conv2D(outputs, 1), *last])
    model.compile(nn.Adam(0.003), make_loss(), metrics=["crps", "coverage"])
    model.fit(train, epochs=10, batch_size=16, seed=0, progress=False)
    found = model.evaluate(test)
    assert found["coverage"] == pytest.approx(promised, abs=0.08)
    late = dataset.t.sel(time=slice("2019-03-22", None))
    persistence = np.abs(late.values[6:] - late.values[:-6])
    weights = np.broadcast_to(np.cos(np.deg2rad(late.latitude.values))[:, None], persistence.shape)
    assert found["crps"] < 0.8 * np.average(persistence, weights=weights)
