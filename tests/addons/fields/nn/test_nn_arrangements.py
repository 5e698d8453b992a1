"""Data that lie otherwise than those of training, in every phase: put in the order of training, or refused.

Arrangements (levels, latitudes, longitudes, axes, variables; columns, features, targets) x phases (a second fit, one of
a loaded model, validation, evaluation, prediction), of windows, xarray objects, data frames, models, jobs, estimators.
"""

import itertools
import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import open_records
from dsinga.estimators import Regressor
from dsinga.estimators import load as load_estimator
from tests.support.refusals import refused

RANDOM = np.random.default_rng(0)
DAYS = np.datetime64("2000-01-01", "ns") + np.arange(8) * np.timedelta64(6, "h")
FIELDS = xr.Dataset(
    {
        "z": (("time", "level", "lat", "lon"), RANDOM.normal(size=(8, 3, 6, 8)), {"units": "m2 s-2"}),
        "t": (("time", "lat", "lon"), RANDOM.normal(size=(8, 6, 8)), {"units": "K"}),
    },
    {"time": DAYS, "level": [1000.0, 850.0, 500.0], "lat": np.linspace(75, -75, 6), "lon": np.arange(8) * 45.0},
)
SETTINGS: dict[str, Any] = {
    "inputs": ["z", "t"], "targets": "t", "input_dims": {"time": 1, "lat": -1, "lon": -1}, "lead": {"time": 1},
}  # fmt: skip
FEATURES = xr.DataArray(RANDOM.normal(size=(40, 4)).astype("f4"), dims=("n", "k"), coords={"k": list("abcd")})
CUBES = xr.DataArray(
    RANDOM.normal(size=(40, 3, 4)).astype("f4"), dims=("n", "level", "k"), coords={"level": [3.0, 2.0, 1.0]}
)
WEIGHTS = np.array([[1, 2, 3, 4], [4, -1, 0, 1]], np.float32).T
TARGETS = xr.DataArray(FEATURES.values @ WEIGHTS, dims=("n", "t"), coords={"t": ["u", "v"]})
FRAME, TARGET_FRAME = FEATURES.to_pandas(), TARGETS.to_pandas()
ORDER = [2, 0, 3, 1]


def windows(data: Any, **changes: Any) -> Any:
    return dsinga.windows(data, **{**SETTINGS, **changes})


def pairs(x: Any, y: Any = TARGETS) -> tuple[Any, Any]:
    return x, y


def from_the_west(data: Any) -> Any:
    return data.assign_coords(lon=(data.lon + 180) % 360 - 180).sortby("lon")


TRAINED: dict[str, Any] = {
    "fields": (windows(FIELDS), None), "features": pairs(FEATURES), "cubes": pairs(CUBES),
    "frames": pairs(FRAME, TARGET_FRAME),
}  # fmt: skip
ARRANGED: dict[str, tuple[str, Callable[[Path], Any]]] = {
    "levels": ("fields", lambda _: (windows(FIELDS.sel(level=[500, 1000, 850])), None)),
    "latitudes": ("fields", lambda _: (windows(FIELDS.sortby("lat")), None)),
    "longitudes": ("fields", lambda _: (windows(from_the_west(FIELDS)), None)),
    "axes": ("fields", lambda _: (windows(FIELDS.transpose("lon", "level", "time", "lat")), None)),
    "variables": ("fields", lambda _: (windows(FIELDS, inputs=["t", "z"]), None)),
    "store": ("fields", lambda at: (windows(stored(FIELDS.sel(level=[500, 1000, 850]).sortby("lat"), at)), None)),
    "columns": ("features", lambda _: pairs(FEATURES.isel(k=ORDER))),
    "transposed": ("features", lambda _: pairs(FEATURES.T)),
    "dask": ("features", lambda _: pairs(FEATURES.isel(k=ORDER).chunk(n=10))),
    "targets": ("features", lambda _: pairs(FEATURES, TARGETS.isel(t=[1, 0]))),
    "numbers": ("cubes", lambda _: pairs(CUBES.isel(level=[1, 2, 0]))),
    "dimensions": ("cubes", lambda _: pairs(CUBES.transpose("n", "k", "level"))),
    "frame": ("frames", lambda _: pairs(FRAME[list("cadb")], TARGET_FRAME[["v", "u"]])),
}
OTHER: dict[str, tuple[str, Callable[[], Any], str]] = {
    "fewer levels": ("fields", lambda: (windows(FIELDS.isel(level=[0, 2])), None), "was trained on|but x of"),
    "step of time": (
        "fields",
        lambda: (windows(FIELDS.assign_coords(time=DAYS[0] + 2 * (DAYS - DAYS[0]))), None),
        "the usual step of 'time' is 12 h, in training it was 6 h",
    ),
    "feature": ("features", lambda: pairs(FEATURES.assign_coords(k=list("abce"))), "trained on a, b, c, d of 'k', but"),
    "target": ("features", lambda: pairs(FEATURES, TARGETS.assign_coords(t=["u", "w"])), "trained on u, v of 't', but"),
    "target column": ("frames", lambda: pairs(FRAME, TARGET_FRAME.rename(columns={"v": "w"})), "has no column 'v'"),
    "records": (
        "features",
        lambda: (open_records((FEATURES.isel(k=ORDER), TARGETS)), None),
        "have along 'k' c, a, d, b, those of training a, b, c, d: number 0 is another; give the same in the",
    ),
}


def stored(data: Any, folder: Path) -> Path:
    data.to_zarr(folder / "fields.zarr", consolidated=False)
    return folder / "fields.zarr"


def new_model(kind: str) -> nn.Sequential:
    x = TRAINED[kind][0]
    if kind == "fields":
        layers = [nn.Input(x.shape), nn.Conv2D(1, 3, padding="same")]
    else:
        layers = [nn.Input(x.shape[1:]), nn.Flatten(), nn.Dense(2)]
    model = nn.Sequential(layers)
    model.compile(nn.Adam(0.01), "mse")
    return model


@pytest.fixture(scope="module")
def folders(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A saved model of each kind of data."""
    folders = {kind: tmp_path_factory.mktemp(kind) / "model" for kind in TRAINED}
    for kind, folder in folders.items():
        model = new_model(kind)
        model.fit(*TRAINED[kind], progress=False)
        model.save(folder)
    return folders


def fitted(kind: str) -> nn.Sequential:
    model = new_model(kind)
    model.fit(*TRAINED[kind], progress=False)
    return model


def test_a_resumed_run_has_the_fields_of_the_first_one_in_their_order(tmp_path: Path) -> None:
    def fit(data: Any, steps: int, **options: Any) -> None:
        new_model("fields").fit(data, train_steps=steps, workspace=tmp_path, progress=False, **options)

    fit(windows(FIELDS.isel(time=slice(6))), 1)
    renamed = FIELDS.rename(t="u").assign(u=FIELDS.t.assign_attrs(units="m"))
    for other, what in (
        (ARRANGED["levels"][1](tmp_path)[0], "points of 'level'"),
        (ARRANGED["latitudes"][1](tmp_path)[0], "step of 'lat'"),
        (ARRANGED["longitudes"][1](tmp_path)[0], "first point of 'lon'"),
        (ARRANGED["axes"][1](tmp_path)[0], "dimensions of 'z'"),
        (ARRANGED["variables"][1](tmp_path)[0], "inputs"),
        (windows(renamed, inputs=["z", "u"], targets="u"), "inputs"),
        (windows(FIELDS.assign(t=FIELDS.t.assign_attrs(units="m"))), "units of 't'"),
        (windows(FIELDS, lead={"time": 2}), "leads"),
    ):
        with pytest.raises(UserError, match=f"of layer 'data' have other {what}, or these in another order"):
            fit(other, 2, resume=True)
    fit(windows(FIELDS), 2, resume=True)  # later times are added


def after_fit(model: Any, kind: str, data: Any) -> Any:
    model.fit(*data, progress=False)
    return [*model.params.values()]


def of_job(model: Any, data: Any) -> list[float]:
    data = data[0] if data[1] is None else data
    return [dsinga.evaluate(model.result.job, model.params, data=data)["loss"]]


PHASES: dict[str, Callable[[Any, str, Any], Any]] = {
    "second fit": lambda folder, kind, data: after_fit(fitted(kind), kind, data),
    "fit after load": lambda folder, kind, data: after_fit(nn.load_model(folder), kind, data),
    "evaluate": lambda folder, kind, data: [nn.load_model(folder).evaluate(*data)["loss"]],
    "validation": lambda folder, kind, data: (
        new_model(kind).fit(*TRAINED[kind], validation_data=data, progress=False).history["val_loss"]
    ),
    "job": lambda folder, kind, data: of_job(fitted(kind), data),
}  # fmt: skip


SHORT = {
    *((name, "second fit") for name in ("levels", "axes", "columns", "dimensions", "frame", "step of time", "target")),
    *((name, "fit after load") for name in ("latitudes", "targets", "feature")),
    *((name, "validation") for name in ("variables", "numbers")),
    *((name, "job") for name in ("store", "transposed", "records")),
    ("longitudes", "evaluate"),
}


def product(names: Any) -> Any:
    """Names of data in each phase; by default some of them."""
    pairs = itertools.product(names, PHASES)
    return [pytest.param(*pair, marks=[] if pair in SHORT else pytest.mark.ci) for pair in pairs]


@pytest.mark.parametrize(("name", "phase"), product(ARRANGED))
def test_data_that_lie_otherwise_are_put_in_order(name: str, phase: str, folders: dict[str, Path], tmp_path: Path):
    kind, arranged = ARRANGED[name]
    data, expected = arranged(tmp_path), PHASES[phase](folders[kind], kind, TRAINED[kind])
    if phase == "validation" and kind == "fields":
        data = data[0]
    for value, known in zip(PHASES[phase](folders[kind], kind, data), expected, strict=True):
        np.testing.assert_allclose(value, known, rtol=1e-5, atol=1e-7)


@pytest.mark.parametrize(("name", "phase"), product(OTHER))
def test_other_data_are_refused(name: str, phase: str, folders: dict[str, Path]) -> None:
    kind, other, message = OTHER[name]
    data = other()
    if phase == "validation" and data[1] is None:
        data = data[0]
    refused(lambda: PHASES[phase](folders[kind], kind, data), message)


WITH_U = FIELDS.assign(u=FIELDS.t)
OTHER_WINDOWS: dict[str, tuple[dict[str, Any], str]] = {
    "inputs": ({"inputs": ["z", "u"]}, "have inputs=['u', 'z'], but the net was trained on windows with inputs=['t'"),
    "targets": ({"targets": "u"}, "have targets=['u'], but the net was trained on windows with targets=['t']; give"),
    "lead": ({"lead": {"time": 2}}, "have lead={'time': 2}, but the net was trained on windows with lead={'time': 1}"),
    "no lead": ({"lead": None}, "have no lead, but the net was trained on windows with lead={'time': 1}; give windows"),
    "edges": ({"edges": {"lon": "periodic"}}, "have edges={'lon': 'periodic'}, but the net was trained on windows"),
    "context": ({"context": {"lat": (1, 0)}, "input_dims": {"time": 1, "lat": 5, "lon": -1}}, "have context={'lat'"),
    "mask": ({"mask": ["t"]}, "have mask=['t'], but the net was trained on windows with no mask; give windows with no"),
    "coordinates": ({"coordinates": ["lat"]}, "have coordinates=['lat'], but the net was trained on"),
}


@pytest.mark.parametrize(
    ("name", "phase"),
    [
        pytest.param(name, phase, marks=[] if phase in ("evaluate", "predict") or name == "lead" else pytest.mark.ci)
        for name, phase in itertools.product(OTHER_WINDOWS, [*PHASES, "predict"])
    ],
)
def test_windows_of_something_else_are_refused_by_name(name: str, phase: str, folders: dict[str, Path]) -> None:
    changes, message = OTHER_WINDOWS[name]
    data = windows(WITH_U, **changes)
    predict = lambda folder, kind, data: nn.load_model(folder).predict(data[0])  # noqa: E731
    given: Any = data if phase == "validation" else (data, None)
    refused(lambda: {**PHASES, "predict": predict}[phase](folders["fields"], "fields", given), re.escape(message))


@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=[] if name in ("axes", "numbers") else pytest.mark.ci) for name in ARRANGED]
)
def test_predictions_are_those_of_data_in_order(name: str, folders: dict[str, Path], tmp_path: Path) -> None:
    kind, arranged = ARRANGED[name]
    model, (x, _) = nn.load_model(folders[kind]), arranged(tmp_path)
    if kind == "fields":  # the Dataset is put in order, the windows would be predicted in another one
        refused(lambda: model.predict(x), "the windows lie otherwise than those of training .*; give the Dataset")
        expected, predicted = model.predict(FIELDS).t, model.predict(x.dataset).t
        if name == "longitudes":
            predicted = predicted.assign_coords(lon=predicted.lon % 360)
        xr.testing.assert_allclose(predicted.reindex_like(expected).transpose(*expected.dims), expected)
    else:
        np.testing.assert_allclose(model.predict(x), model.predict(TRAINED[kind][0]), rtol=1e-5)


def test_units_of_a_second_fit_are_compared(folders: dict[str, Path], caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    other = FIELDS.copy()
    other["t"] = other.t.assign_attrs(units="degC")
    nn.load_model(folders["fields"]).fit(windows(other), progress=False)
    assert "'t' has the units degC, in training it had K; see whether to convert it" in caplog.text


def test_fields_of_another_region_are_other_points_not_others_in_order() -> None:
    region = xr.DataArray(np.zeros((4, 2, 3), "f4"), dims=("n", "y", "x"), coords={"y": [0.0, 1], "x": [0.0, 1, 2]})
    model = nn.Sequential([nn.Input((2, 3)), nn.Flatten(), nn.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(region, np.zeros(4, "f4"), progress=False)
    assert model.predict(region.assign_coords(x=[7.0, 8, 9])).shape == (4, 1)


@pytest.mark.parametrize("name", ["columns", "transposed", pytest.param("dask", marks=pytest.mark.ci), "targets"])
@pytest.mark.parametrize("is_loaded", [False, pytest.param(True, marks=pytest.mark.ci)])
def test_estimators_put_xarray_objects_in_order(name: str, is_loaded: bool, tmp_path: Path) -> None:
    used, known = (Regressor(epochs=3, random_state=0).fit(FEATURES, TARGETS) for _ in range(2))
    if is_loaded:
        known.save(tmp_path / "saved")
        used = load_estimator(tmp_path / "saved")
    x, y = ARRANGED[name][1](tmp_path)
    np.testing.assert_allclose(used.predict(x), known.predict(FEATURES), rtol=1e-5, atol=1e-5)
    assert used.score(x, y) == pytest.approx(known.score(FEATURES, TARGETS))
    if name != "dask" and not is_loaded:  # whose updaters begin anew
        np.testing.assert_allclose(
            used.partial_fit(x, y).predict(FEATURES), known.partial_fit(FEATURES, TARGETS).predict(FEATURES), rtol=1e-4
        )
    refused(lambda: used.predict(OTHER["feature"][1]()[0]), "trained on a, b, c, d of 'k', but the data have no d")
    fresh = used.set_params(warm_start=False).fit(FEATURES.isel(k=ORDER), TARGETS)  # which defines the order anew
    np.testing.assert_allclose(fresh.predict(FEATURES), fresh.predict(FEATURES.isel(k=ORDER)), rtol=1e-5)


@pytest.mark.ci
@pytest.mark.parametrize("name", ["levels", "columns", "frame"])
def test_a_second_fit_on_a_cluster_puts_data_in_order(name: str, processes: Client, tmp_path: Path) -> None:
    kind, arranged = ARRANGED[name]
    params = []
    for data in (TRAINED[kind], arranged(tmp_path)):
        model = fitted(kind)
        model.fit(*data, client=processes, workers=2, progress=False)
        params.append(model.params)
    for key, value in params[0].items():
        np.testing.assert_allclose(params[1][key], value, rtol=1e-5, atol=1e-7)
