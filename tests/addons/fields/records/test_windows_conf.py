"""Windows of fields in a job: the settings say what the definition says; faults name the file and the line."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr

import dsinga
from dsinga import nn
from dsinga.addons.fields.records.definition import WindowDefinition, WindowVariableConf
from dsinga.data import FieldWindows, define_windows, kept_bytes, open_records
from dsinga.job import Phase, loads, to_text
from dsinga.reading.checked_job import CheckedJob
from tests.support.refusals import refused

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

GRID: dict[str, Any] = {
    "variable": [
        WindowVariableConf(name="t", dims=["time", "level", "lat"], units="K"),
        WindowVariableConf(name="ground", dims=["lat"]),
    ],
    "points": {"level": ["1000", "500"]},
    "steps": {"time": "6h", "lat": "-0.25"},
}


def dataset() -> xr.Dataset:
    field = np.random.default_rng(0).normal(size=(10, 6)).astype(np.float32)
    dates = np.datetime64("2000-01-01", "ns") + np.arange(10) * np.timedelta64(1, "D")
    return xr.Dataset({"t": (("time", "lat"), field)}, {"time": dates, "lat": np.linspace(50.5, -50.5, 6)})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    dataset().chunk(time=3).to_zarr(tmp_path / "x.zarr", consolidated=False)
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "settings",
    [
        {"inputs": "t", "input_dims": {"time": 1}},
        {"inputs": ["t", "z"], "input_dims": {"time": 2, "lat": -1}, "channels": [], "mask": True, "max_nan": 0.25},
        {
            "inputs": "t", "targets": ["t"], "input_dims": {"lat": 4, "lon": 5}, "input_overlap": {"lat": 1, "lon": -2},
            "context": {"lat": (1, 2)}, "lead": {"time": -3}, "channels": "level", "static": "ground", "mask": ["t"],
            "coordinates": ["cos(lat)"], "edges": {"lat": "zero", "lon": "periodic"}, "fill": {"t": 2.5, "*": 1.0},
            "weights": "cos(lat)", "within": {"time": ("2000", None), "level": (None, "500")}, "memory": 1 << 22,
        },
    ],
)  # fmt: skip
def test_a_definition_is_the_same_as_settings_of_a_job(settings: dict[str, Any]) -> None:
    definition = define_windows(**settings)
    if "lead" in settings:
        definition = definition.replace(**GRID)
    job = loads(JOB)
    job.neuralnet.layer[0].store_conf = job.neuralnet.layer[0].store_conf.replace(windows=definition)  # type: ignore[union-attr]
    assert train_conf(loads(to_text(job))) == definition


def test_a_job_reads_windows_of_its_store(folder: Path) -> None:
    job = loads(JOB, "fields.conf")
    reader = CheckedJob(job).reader(Phase.kTrain)
    assert len(reader) == 5 * 2
    assert kept_bytes([(reader.stores["data"], 1)]) == 6 * 6 * 4  # fields of six days, for targets, too
    (records,) = reader.read_range(0, 10).values()
    np.testing.assert_array_equal(records.data, dataset().t[:5].values.reshape(10, 1, 3))
    np.testing.assert_array_equal(records.labels, dataset().t[1:6].values.reshape(10, 1, 3))
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
    data = {"train": dataset(), "test": dataset()}
    for source in (data, {"train": FieldWindows("x.zarr", train_conf(loads(JOB)))}):
        result = dsinga.train(loads(JOB), data=source, progress=False)
        np.testing.assert_array_equal(result.params["w"], from_path.params["w"])


def train_conf(job: Any) -> WindowDefinition:
    return job.neuralnet.layer[0].store_conf.windows


def test_a_model_names_windows_of_a_path(folder: Path) -> None:
    for source in ("x.zarr", dataset()):
        windows = dsinga.windows(source, targets="t", input_dims={"time": 1, "lat": 3}, lead={"time": 1})
        model = nn.Sequential([nn.Input((1, 3)), nn.Dense(3), nn.Reshape((1, 3))])
        model.compile("sgd", loss="mse")
        model.fit(windows, batch_size=4, progress=False)
        conf = model.job(windows, batch_size=4).neuralnet.layer[0].store_conf
        if windows.path is not None:
            assert (conf.path, conf.windows) == (windows.path, windows.described())
