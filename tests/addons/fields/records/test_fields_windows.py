"""Windows of fields have the numbers that numpy's slices of a padded array have; each is there exactly once."""

import itertools
import logging
import pickle
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
from hypothesis import given, settings
from hypothesis import strategies as st

import dsinga
from dsinga import nn
from dsinga.addons.fields.records import definition
from dsinga.addons.fields.records.definition import EDGES, WindowDefinition
from dsinga.data import FieldWindows, kept_bytes, open_records
from dsinga.job import Phase, loads
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused

PAD_MODES = {"zero": "constant", "edge": "edge", "reflect": "reflect", "periodic": "wrap"}
FAR = 30  # points by which numpy pads


def field(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).normal(size=shape).astype(np.float32)


def dates(count: int, hours: int = 6) -> np.ndarray:
    return np.datetime64("2000-01-01", "ns") + np.arange(count) * np.timedelta64(hours, "h")


def dataset(steps: int = 20, lats: int = 8, lons: int = 10) -> xr.Dataset:
    return xr.Dataset(
        {
            "t": (("time", "lat", "lon"), field(steps, lats, lons)),
            "z": (("time", "level", "lat", "lon"), field(steps, 2, lats, lons, seed=1).astype(np.float64)),
            "ground": (("lat", "lon"), field(lats, lons, seed=2)),
        },
        {
            "time": dates(steps),
            "level": [500, 850],
            "lat": np.linspace(70, -70, lats),
            "lon": np.arange(lons) * 360 / lons,
        },
    )


@st.composite
def dims(draw: Any) -> dict[str, Any]:
    """Draw the settings of one dimension that has at least one window."""
    length = draw(st.integers(1, 14))
    size = draw(st.integers(1, length))
    return {
        "length": length, "size": size, "overlap": draw(st.integers(-2, size - 1)),
        "context": (draw(st.integers(0, 4)), draw(st.integers(0, 4))), "lead": draw(st.integers(-2, 4)),
        "edge": draw(st.sampled_from(EDGES)),
    }  # fmt: skip


def expected_starts(dim: dict[str, Any]) -> list[int]:
    """Return the first points of the windows along a dimension, by the rules of :func:`dsinga.windows`."""
    length, size, (before, after), lead = dim["length"], dim["size"], dim["context"], dim["lead"]
    stride = size - dim["overlap"]
    if dim["edge"] == "periodic":
        return list(range(0, length, stride)) if abs(lead) < length else []

    def fits(start: int) -> bool:
        inside = start >= 0 and start + size <= length and start + lead >= 0 and start + lead + size <= length
        return inside and (dim["edge"] != "inside" or (start >= before and start + size + after <= length))

    valid = [start for start in range(length) if fits(start)]
    return valid[::stride]


@settings(max_examples=60, deadline=None)
@given(st.lists(dims(), min_size=3, max_size=3), st.sampled_from([1, 1 << 10, 1 << 13, 1 << 20]))
def test_windows_are_slices_of_the_padded_array(cut: list[dict[str, Any]], blocks: int) -> None:
    """They are whatever the number of blocks into which the memory is divided."""
    names = ("time", "lat", "lon")
    array = field(*(dim["length"] for dim in cut))
    starts = [expected_starts(dim) for dim in cut]
    by_dim = {what: dict(zip(names, [dim[what] for dim in cut], strict=True)) for what in cut[0]}
    arguments = {
        "input_dims": by_dim["size"], "input_overlap": by_dim["overlap"], "context": by_dim["context"],
        "lead": by_dim["lead"], "edges": by_dim["edge"], "targets": "x", "channels": ["time"],
    }  # fmt: skip
    source = xr.DataArray(array, dims=names, name="x")
    if not all(starts):
        refused(lambda: dsinga.windows(source, **arguments), "no window fits along|lies beyond the")
        return
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(definition, "SAMPLER_SHARE", blocks)
        windows = dsinga.windows(source, **arguments, memory=1 << 20)
    padded = array
    for axis, dim in enumerate(cut):
        if dim["edge"] != "inside":
            width = [(FAR, FAR) if place == axis else (0, 0) for place in range(3)]
            mode: Any = PAD_MODES[dim["edge"]] if dim["length"] > 1 or dim["edge"] == "zero" else "edge"
            padded = np.pad(padded, width, mode=mode)
    offsets = [0 if dim["edge"] == "inside" else FAR for dim in cut]
    places = list(itertools.product(*starts))
    assert len(windows) == len(places)
    inputs, targets = windows.read(np.arange(len(windows)))
    for row, place in enumerate(places):
        begins = [start + offset for start, offset in zip(place, offsets, strict=True)]
        region = tuple(
            slice(begin - dim["context"][0], begin + dim["size"] + dim["context"][1])
            for begin, dim in zip(begins, cut, strict=True)
        )
        np.testing.assert_array_equal(inputs[row], padded[region])
        region = tuple(
            slice(begin + dim["lead"], begin + dim["lead"] + dim["size"])
            for begin, dim in zip(begins, cut, strict=True)
        )
        np.testing.assert_array_equal(targets[row], padded[region])


def test_channels_are_variables_levels_steps_static_fields_and_coordinates() -> None:
    data = dataset()
    windows = dsinga.windows(
        data, inputs=["t", "z"], targets=["z", "t"], input_dims={"time": 1, "lat": 4, "lon": 5},
        context={"time": (2, 0)}, lead={"time": 3}, static="ground",
        coordinates=["cos(lat)", "sin(day of year)", "lon"],
    )  # fmt: skip
    assert windows.layout.channel_names() == (
        "t time-2", "t time-1", "t", "z level=500 time-2", "z level=500 time-1", "z level=500", "z level=850 time-2",
        "z level=850 time-1", "z level=850", "ground", "cos(lat)", "sin(day of year) time-2",
        "sin(day of year) time-1", "sin(day of year)", "lon",
    )  # fmt: skip
    assert windows.layout.target_names() == ("z level=500 time+3", "z level=850 time+3", "t time+3")
    (inputs,), (targets,) = windows.read([5])  # the second step, second window along lat, second along lon
    place = {name: int(first[0]) for name, first in windows.positions([5]).items()}
    assert place == {"time": 3, "lat": 0, "lon": 5, "level": 0}
    np.testing.assert_array_equal(inputs[:3], data.t[1:4, :4, 5:])
    np.testing.assert_array_equal(inputs[3:9].reshape(2, 3, 4, 5), data.z[1:4, :, :4, 5:].values.swapaxes(0, 1))
    np.testing.assert_array_equal(inputs[9], data.ground[:4, 5:])
    np.testing.assert_allclose(inputs[10], np.cos(np.deg2rad(data.lat.values[:4]))[:, None].repeat(5, 1), rtol=1e-6)
    turns = np.arange(1, 4) * 0.25 / 366
    np.testing.assert_allclose(inputs[11:14, 0, 0], np.sin(2 * np.pi * turns), rtol=1e-5)
    np.testing.assert_array_equal(inputs[14, 2], data.lon[5:])
    np.testing.assert_array_equal(targets[:2], data.z[6, :, :4, 5:])
    np.testing.assert_array_equal(targets[2], data.t[6, :4, 5:])


def test_a_dimension_of_space_may_be_channels_and_the_other_way_round() -> None:
    data = dataset()[["z"]]
    assert dsinga.windows(data, input_dims={"time": 1}).shape == (1, 2, 8, 10)  # all but time is space
    assert dsinga.windows(data, input_dims={"time": 1}, channels=["time", "level"]).shape == (2, 8, 10)
    assert dsinga.windows(data, input_dims={"time": 4, "lat": -1, "lon": -1}, channels="level").shape == (2, 4, 8, 10)
    assert dsinga.windows(data, input_dims={"time": 1, "lat": 1, "lon": 1}).shape == (2,)  # a vector a point


def test_the_weights_are_the_last_channel_of_labels_and_have_the_mean_one() -> None:
    windows = dsinga.windows(
        dataset()[["t"]], input_dims={"time": 1, "lat": -1, "lon": 5}, targets="t", weights="cos(lat)"
    )
    _, labels = windows.read([0, 1])
    assert windows.layout.target_names() == ("t", "weights")
    np.testing.assert_allclose(labels[:, 1].mean(axis=(1, 2)), 1, rtol=1e-6)
    cosines = np.cos(np.deg2rad(dataset().lat.values))
    np.testing.assert_allclose(labels[1, 1, :, 3], cosines / cosines.mean(), rtol=1e-6)


def test_what_fills_no_window_is_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")  # a Dask cluster of other tests may have disabled the handler
    windows = dsinga.windows(dataset()[["t"]], input_dims={"time": 1, "lat": 3, "lon": 4})
    lat, lon = windows.left_out
    assert lat == (
        "the last 2 of 8 points of 'lat' (-50 to -70) fill no window: windows have 3 points, a new one every 3"
    )
    assert "the last 2 of 10 points of 'lon' (288 to 324)" in lon
    assert lat in caplog.text
    assert lat in repr(windows)
    assert not dsinga.windows(dataset()[["t"]], input_dims={"time": 1, "lat": 4}, edges={"lat": "periodic"}).left_out


def test_a_split_is_windows_of_the_selected_parts() -> None:
    data = dataset()[["t"]]
    arguments: dict[str, Any] = {
        "input_dims": {"time": 1}, "context": {"time": (2, 0)}, "lead": {"time": 1}, "targets": "t",
    }  # fmt: skip
    train, test = dsinga.windows(data, **arguments).split(time="2000-01-03", gap=2)
    parts = (data.isel(time=slice(0, 6)), data.sel(time=slice("2000-01-03", None)))
    for part, selected in zip((train, test), parts, strict=True):
        expected = dsinga.windows(selected, **arguments)
        rows = np.arange(len(expected))
        assert len(part) == len(expected)
        for got, wanted in zip(part.read(rows), expected.read(rows), strict=True):
            np.testing.assert_array_equal(got, wanted)
    assert len(dsinga.windows(data, **arguments).split(time=["2000-01-03", "2000-01-04"])) == 3
    again = dsinga.data.FieldWindows(data, test.definition)
    np.testing.assert_array_equal(again.read([0])[0], test.read([0])[0])


def test_the_definition_is_plain_and_applies_to_another_dataset() -> None:
    windows = dsinga.windows(
        dataset(), inputs="t", targets="t", input_dims={"time": 1, "lat": 4, "lon": -1}, context={"lat": 1}, mask=True,
        edges={"lat": "edge"}, fill={"t": 2.0}, max_nan=0.5, lead={"time": 2}, within={"time": ("2000-01-02", None)},
    )  # fmt: skip
    definition = pickle.loads(pickle.dumps(windows.definition))
    assert definition == windows.definition
    other = dataset(steps=9)
    applied = dsinga.data.FieldWindows(other, definition, has_targets=False, starts={"lat": [0, 3]})
    assert not applied.has_labels
    assert len(applied) == (9 - 4) * 2  # the last steps, whose targets lie beyond the data, too
    assert list(applied.positions(np.arange(3))["lat"]) == [0, 3, 0]


def test_gaps_between_dates_are_said(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    gappy = dataset()[["t"]].isel(time=[0, 1, 2, 5, 6])
    dsinga.windows(gappy, input_dims={"time": 1})
    assert not caplog.text
    dsinga.windows(gappy, targets="t", input_dims={"time": 1}, lead={"time": 1}, over_gaps=True)
    assert "points of 'time' lie 6 to 18 h apart (the longest after 2000-01-01T12:00), and windows count" in caplog.text


def test_copies_of_windows_share_what_was_read_and_others_do_not() -> None:
    data = dataset()[["t"]]
    windows = dsinga.windows(data, input_dims={"time": 1}, lead={"time": 1}, targets="t")
    windows.read([0])
    assert windows.cached_bytes == data.t.size * 4
    assert pickle.loads(pickle.dumps(windows)).cached_bytes == windows.cached_bytes
    assert not dsinga.windows(data, input_dims={"time": 1}).cached_bytes


# Windows of fields in a job: the settings say what the definition says; faults name the file and the line.
JOB = """
name: "fields" train_steps: 4 test_freq: 2 test_steps: 1
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.001 } }
neuralnet {
  layer { name: "data" type: kRecordInput include: kTrain
    store_conf { path: "x.zarr" batchsize: 4
      windows { inputs: "t" targets: "t"
        dim { name: "time" size: 1 lead: 1 last: "2000-01-06" }
        dim { name: "lat" size: 3 edges: "reflect" } } } }
  layer { name: "data" type: kRecordInput include: kTest
    store_conf { path: "x.zarr" batchsize: 4 has_label: false
      windows { inputs: "t" targets: "t"
        dim { name: "time" size: 1 lead: 1 first: "2000-01-07" }
        dim { name: "lat" size: 3 } } } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 }
    param { name: "w" init { type: kUniform low: -0.1 high: 0.1 } } param { name: "b" } }
  layer { name: "label" type: kLabel srclayers: "data" include: kTrain }
  layer { name: "loss" type: kEuclideanLoss srclayers: "ip" srclayers: "label" include: kTrain }
}
"""


def conf_dataset() -> xr.Dataset:
    field = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    dates = np.datetime64("2000-01-01", "ns") + np.arange(10) * np.timedelta64(1, "D")
    return xr.Dataset({"t": (("time", "lat"), field)}, {"time": dates, "lat": np.linspace(50.5, -50.5, 6)})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    conf_dataset().chunk(time=3).to_zarr(tmp_path / "x.zarr", consolidated=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


def test_a_job_reads_windows_of_its_store(folder: Path) -> None:
    job = loads(JOB, "fields.conf")
    reader = CheckedJob(job).reader(Phase.kTrain)
    assert len(reader) == 5 * 2
    assert kept_bytes([(reader.stores["data"], 1)]) == 6 * 6 * 4  # fields of six days, for targets, too
    (records,) = reader.read_range(0, 10).values()
    np.testing.assert_array_equal(records.data, conf_dataset().t[:5].values.reshape(10, 1, 3))
    np.testing.assert_array_equal(records.labels, conf_dataset().t[1:6].values.reshape(10, 1, 3))
    test = CheckedJob(job).reader(Phase.kTest)
    assert len(test) == 4 * 2  # without labels the last step has a window, too
    assert test.read_range(0, 1)["data"].labels is None


def test_fields_that_are_kept_have_the_memory_of_the_largest_windows() -> None:
    steps = xr.Dataset({"t": (("time", "lat"), np.zeros((4096, 2048), np.float32))})  # 32 MiB
    windows = [dsinga.windows(steps, input_dims={"time": 1}, memory=memory << 20) for memory in (8, 16)]
    records = open_records(np.zeros((3, 4), np.float32))
    assert kept_bytes((source, 1) for source in windows) == 16 << 20
    assert kept_bytes((source, 1) for source in [*windows, records]) == (16 << 20) + 3 * 4 * 4
    assert kept_bytes([(windows[0], 0.5)]) == 8 << 20
    assert kept_bytes([(windows[0], 0.125)]) == 4 << 20


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        (('inputs: "t"', 'inputs: "x"'), r"fields.conf:7: layer 'data': the Dataset has no variable 'x'"),
        (('name: "time"', 'name: "tme"'), r"fields.conf:7: layer 'data': input_dims .*dimension 'tme', .* 'time'"),
        (('name: "time"', 'name: "lat"'), r"fields.conf:\d+: layer 'data': .*windows name a dimension twice"),
        (("lead: 1 last", "leed: 1 last"), r"fields.conf:8: .*'leed'.*did you mean 'lead'"),
        (('"x.zarr"', '"y.zarr"'), "y.zarr was not found"),
    ],
)
def test_faults_name_the_line(folder: Path, change: tuple[str, str], fault: str) -> None:
    refused(lambda: dsinga.train(loads(JOB.replace(*change, 1), "fields.conf"), progress=False), fault)


def test_a_job_that_was_given_a_dataset_keeps_the_definition(folder: Path) -> None:
    from_path = dsinga.train(loads(JOB), progress=False)
    data = {"train": conf_dataset(), "test": conf_dataset()}
    for source in (data, {"train": FieldWindows("x.zarr", train_conf(loads(JOB)))}):
        result = dsinga.train(loads(JOB), data=source, progress=False)
        np.testing.assert_array_equal(result.params["w"], from_path.params["w"])


def train_conf(job: Any) -> WindowDefinition:
    return job.neuralnet.layer[0].store_conf.windows


def test_a_model_names_windows_of_a_path(folder: Path) -> None:
    for source in ("x.zarr", conf_dataset()):
        windows = dsinga.windows(source, targets="t", input_dims={"time": 1, "lat": 3}, lead={"time": 1})
        model = nn.Sequential([nn.Input((1, 3)), nn.Dense(3), nn.Reshape((1, 3))])
        model.compile("sgd", loss="mse")
        model.fit(windows, batch_size=4, progress=False)
        conf = model.job(windows, batch_size=4).neuralnet.layer[0].store_conf
        if windows.path is not None:
            assert (conf.path, conf.windows) == (windows.path, windows.described())


def test_a_damaged_store_is_refused(tmp_path: Path) -> None:
    dataset()[["t"]].to_zarr(tmp_path / "x.zarr", consolidated=False)
    windows = dsinga.windows(tmp_path / "x.zarr", input_dims={"time": 1})
    (chunk,) = (file for file in (tmp_path / "x.zarr" / "t").rglob("*") if file.is_file() and file.name != "zarr.json")
    chunk.write_bytes(b"no chunk")
    refused(lambda: windows.read([0]), "variable 't': .*x.zarr: chunk t/c/0/0/0 cannot be read or decoded .*; write")
