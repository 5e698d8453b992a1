"""Models trained from windows with masked points and weights: losses of fields in the words of Keras."""

from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from dsinga.base.errors import Diverged, UserError
from tests.support.refusals import refused

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


def test_mistakes_are_named_with_their_remedies() -> None:
    refused(lambda: model("mse").fit(windows(weights=None), progress=False), "'data_target'", "masked")
    made = model(nn.MeanSquaredError(masked=True), nn.SGD(1e20))
    with pytest.raises(Diverged, match="not finite at step .*: (param|the feature of) 'conv2d"):
        with np.errstate(all="ignore"):
            made.fit(windows(weights=None), epochs=9, progress=False)
    with pytest.raises(UserError, match="1 x 1 x 6 x 5, of which the last has weights; give both as many"):
        model(nn.MeanSquaredError(weighted=True)).fit(windows(weights=None), progress=False)
    refused(lambda: model("mse", metrics=["anomaly_correlation"]), r"a climatology; write nn.FieldError\(climatology=")
    refused(lambda: nn.FieldError(climatology=[np.nan]), "no NaN")
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(1, 1)])
    made.compile("sgd", "mse", metrics=["mean_iou"])
    with pytest.raises(UserError, match="the metric 'mean_iou' needs probabilities of the classes of each point"):
        made.fit(np.zeros((4, 1, 6, 5), np.float32), np.zeros((4, 1, 6, 5), np.float32), progress=False)
    with pytest.raises(UserError, match="or the loss weighted=True if its last channel has the weights of points"):
        model(nn.MeanSquaredError(masked=True)).fit(windows(), epochs=1, progress=False)


def test_arrays_may_have_masked_points():
    data = windows(weights=None)
    x, y = data.read(np.arange(len(data)))
    params = []
    for source in ((x, y), (data,)):
        made = model(nn.MeanSquaredError(masked=True), metrics=["rmse"])
        made.fit(*source, epochs=1, batch_size=39, progress=False)
        params.append(made.params["conv2d_weight"])
    np.testing.assert_array_equal(*params)
    assert made.evaluate(x, y) == pytest.approx(made.evaluate(data))
    refused(lambda: model("mse").fit(x, y, progress=False), "is NaN in row .* masked=True")
    y[3, 0, 1, 2] = np.inf
    refused(lambda: made.evaluate(x, y), r"infinity in record 3, index \(0, 1, 2\)")


def test_metrics_leave_out_and_weigh_the_points_of_the_loss():
    data = windows()
    x, y = data.read(np.arange(len(data)))
    target, weights = y[:, :1], y[:, 1:]
    climatology = np.nanmean(target, axis=0)
    metrics = [nn.FieldError(channel=["t"], climatology=climatology)]
    made = model(nn.MeanSquaredError(masked=True, weighted=True), metrics=metrics)
    history = made.fit(data, validation_data=data, epochs=2, progress=False).history
    valid, error = ~np.isnan(target), made.predict(x) - target
    found = made.evaluate(data)
    assert found["rmse"] == pytest.approx(np.average(error[valid] ** 2, weights=weights[valid]) ** 0.5, rel=1e-5)
    assert found["bias"] == pytest.approx(np.average(error[valid], weights=weights[valid]), rel=1e-5)
    assert -1 <= found["anomaly_correlation_t"] == found["anomaly_correlation"] <= 1
    assert {"rmse", "rmse_t", "anomaly_correlation"} <= history.keys()
    by_name = model(nn.MeanSquaredError(masked=True, weighted=True), metrics=["rmse", "mae", "bias"])
    by_name.fit(data, epochs=2, progress=False)
    assert by_name.evaluate(data)["bias"] == found["bias"]


def regions() -> tuple[np.ndarray, np.ndarray]:
    """Return images of one channel, and a class for each point that follows from its number; some are masked."""
    rng = np.random.default_rng(2)
    x = rng.uniform(-1, 1, (60, 1, 6, 5)).astype(np.float32)
    labels = np.digitize(x[:, 0], [-0.3, 0.3])
    labels[rng.uniform(size=labels.shape) < 0.1] = -1
    return x, labels


@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", nn.Dice(smooth=1)])
def test_regions_of_classes(loss: Any):
    x, labels = regions()
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(8, 1, activation="relu"), nn.Conv2D(3, 1)])
    made.compile(nn.Adam(0.05), loss, metrics=["mean_iou", "dice", "pixel_accuracy", "iou_by_class"])
    history = made.fit(x, labels, epochs=20, batch_size=10, progress=False).history
    found, chosen, valid = made.evaluate(x, labels), made.predict(x).argmax(axis=1), labels >= 0
    right = (chosen == labels)[valid]
    assert found["pixel_accuracy"] == pytest.approx(right.mean())
    assert found["pixel_accuracy"] > 0.8
    hits = np.bincount(labels[valid][right], minlength=3)
    sizes = np.bincount(labels[valid], minlength=3) + np.bincount(chosen[valid], minlength=3)
    assert found["iou_by_class"] == pytest.approx(hits / (sizes - hits))
    assert found["mean_iou"] == pytest.approx(np.mean(found["iou_by_class"]))
    assert history["mean_iou"][-1] > history["mean_iou"][0]


def test_the_cross_entropy_is_the_mean_over_points():
    x, labels = regions()
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(3, 1)])
    made.compile("sgd", "sparse_categorical_crossentropy")
    scores = made.predict(x).astype(np.float64)
    logs = scores - np.log(np.exp(scores).sum(axis=1, keepdims=True))
    of_labels = np.take_along_axis(logs, np.maximum(labels, 0)[:, None], 1)[:, 0]
    expected = -np.where(labels >= 0, of_labels, 0).mean()
    assert made.evaluate(x, labels)["loss"] == pytest.approx(expected, rel=1e-5)


@pytest.mark.parametrize("end", [(), (nn.Activation("sigmoid"),)])
def test_one_channel_is_yes_or_no(end: tuple[Any, ...]):
    x, labels = regions()
    labels = np.where(labels < 0, -1, labels > 1)
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(1, 1, name="scores"), *end])
    made.compile(nn.Adam(0.1), "dice", metrics=["mean_iou"])
    made.fit(x, labels[:, None], epochs=10, batch_size=10, progress=False)
    found, answers = made.evaluate(x, labels[:, None]), made.predict(x)[:, 0] > (0.5 if end else 0)
    overlaps = []
    for value in (0, 1):
        told, true = (answers == value) & (labels >= 0), labels == value
        overlaps.append((told & true).sum() / (told | true).sum())
    assert found["mean_iou"] == pytest.approx(np.mean(overlaps))
