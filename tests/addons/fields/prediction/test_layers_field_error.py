"""Errors of fields and anomaly correlation, of all records however they were cut, against xarray and WeatherBench."""

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.layers import Layer
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.ops import BACKENDS, layout
from dsinga.training import add_metrics
from tests.support.layer_cases import context, layer_of
from tests.support.refusals import refused

xarray = pytest.importorskip("xarray")
CTX = context(BACKENDS["numpy"]())
TIMES, LATITUDES = 12, np.linspace(80, -80, 5)
SHAPE = (TIMES, 2, 5, 4)
DIMS = ("time", "channel", "lat", "lon")


def figures_of(layer: Layer, sources: Sequence[np.ndarray], cuts: Sequence[int] = ()) -> dict[str, Any]:
    """Return the figures of all rows, of which each part was given to the layer by itself."""
    parts = zip(*(np.split(source, cuts) for source in sources), strict=True)
    return metric_values(add_metrics([dict(layer.compute_feature((), part, CTX).metrics) for part in parts]))


def fields(seed: int = 0) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return predictions, labels far from 0, and weights by latitude."""
    rng = np.random.default_rng(seed)
    labels = rng.normal(280, 5, SHAPE).astype(np.float32)
    weights = np.broadcast_to(np.cos(np.deg2rad(LATITUDES))[:, None], (TIMES, 1, 5, 4)).astype(np.float32)
    return (labels + rng.normal(0.5, 2, SHAPE)).astype(np.float32), labels, weights / weights.mean()


def weatherbench_acc(prediction: Any, label: Any, climatology: Any) -> float:
    """Return compute_weighted_acc of github.com/pangeo-data/WeatherBench, src/score.py."""
    weights = np.cos(np.deg2rad(prediction.lat))
    forecast, truth = prediction - climatology, label - climatology
    forecast, truth = forecast - forecast.mean(), truth - truth.mean()
    variances = (weights * forecast**2).sum() * (weights * truth**2).sum()
    return float((weights * forecast * truth).sum() / np.sqrt(variances))


def labelled(array: np.ndarray) -> Any:
    return xarray.DataArray(array.astype(np.float64), dims=DIMS, coords={"lat": LATITUDES})


@settings(max_examples=20)
@given(st.lists(st.integers(0, TIMES), max_size=3).map(sorted), st.integers(0, 99), st.integers(1, 40))
def test_weighted_errors_and_anomaly_correlation(cuts: list[int], seed: int, block: int) -> None:
    prediction, label, weights = fields(seed)
    climatology = label.mean(axis=0)
    conf = {"weighted": True, "climatology": climatology.ravel().tolist(), "channel": ["t", "z"]}
    both = np.concatenate([label, weights], axis=1)
    layer = layer_of("kFieldError", prediction.shape, both.shape, fielderror_conf=conf)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(layout, "BLOCK", block)
        found = figures_of(layer, (prediction, both), cuts)
    x, y = labelled(prediction), labelled(label)
    error, mean = (x - y).weighted(np.cos(np.deg2rad(x.lat))), xarray.DataArray(climatology, dims=DIMS[1:])
    squares = ((x - y) ** 2).weighted(np.cos(np.deg2rad(x.lat)))
    assert found["rmse"] == pytest.approx(float(squares.mean()) ** 0.5, rel=1e-6)
    assert found["bias"] == pytest.approx(float(error.mean()), rel=1e-6)
    for channel, name in enumerate(("t", "z")):
        rmse = squares.mean(["time", "lat", "lon"])[channel] ** 0.5
        assert found[f"rmse_{name}"] == pytest.approx(float(rmse), rel=1e-6)
        acc = weatherbench_acc(x[:, channel], y[:, channel], mean[channel])
        assert found[f"anomaly_correlation_{name}"] == pytest.approx(acc, rel=1e-5)
    of_channels = [found[f"anomaly_correlation_{name}"] for name in ("t", "z")]
    assert found["anomaly_correlation"] == pytest.approx(np.mean(of_channels))
    assert {*found} == {*layer.metric_names}


def test_masked_points_are_in_no_sum() -> None:
    prediction, label, weights = fields()
    label[np.random.default_rng(1).uniform(size=label.shape) < 0.4] = np.nan
    label[:, 1, 2] = np.nan
    wild = np.where(np.isnan(label), np.inf, prediction)
    conf = {"masked": True, "weighted": True}
    both = np.concatenate([label, weights], axis=1)
    layer = layer_of("kFieldError", prediction.shape, both.shape, prediction.shape, fielderror_conf=conf)
    climatology = np.full_like(prediction, 280)
    found = figures_of(layer, (wild, both, climatology), [5])
    error, weights = prediction - label, np.broadcast_to(weights, label.shape)
    valid = ~np.isnan(label)
    assert found["mae"] == pytest.approx(np.average(np.abs(error[valid]), weights=weights[valid]), rel=1e-6)
    squares = [np.average(error[:, c][valid[:, c]] ** 2, weights=weights[:, c][valid[:, c]]) for c in range(2)]
    assert found["rmse_by_channel"] == pytest.approx(np.sqrt(squares), rel=1e-6)
    both = labelled(np.where(valid, prediction, np.nan)), labelled(label)
    acc = weatherbench_acc(both[0][:, 1], both[1][:, 1], 280)
    assert found["anomaly_correlation_by_channel"][1] == pytest.approx(acc, rel=1e-5)


def test_a_field_without_valid_points_has_no_figures() -> None:
    nothing = np.full((3, 1, 2, 2), np.nan, np.float32)
    layer = layer_of("kFieldError", nothing.shape, nothing.shape, fielderror_conf={"masked": True})
    assert figures_of(layer, (np.zeros_like(nothing), nothing)) == {}


@pytest.mark.parametrize(
    ("conf", "message"),
    [
        ({"channel": ["t"]}, "channel has 1 names, but the labels have 2 channels"),
        ({"climatology": [1.0, 2.0, 3.0]}, "climatology has 3 numbers; give one for each of 2 channels, or 40"),
        ({"weighted": True}, "of which the last has weights; give both as many"),
    ],
)
def test_settings_that_do_not_fit_are_refused(conf: dict[str, Any], message: str) -> None:
    refused(lambda: layer_of("kFieldError", SHAPE, SHAPE, fielderror_conf=conf), message)


def test_labels_that_are_nan_are_refused() -> None:
    prediction, label, _ = fields()
    label[2, 1, 4, 0] = np.nan
    layer = layer_of("kFieldError", SHAPE, SHAPE)
    refused(lambda: layer.compute_feature((), (prediction, label), CTX), "NaN in row 2", "masked")
