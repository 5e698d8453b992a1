"""A Dataset of random fields, windows of it, and nets of convolutions with random params that predict it."""

from typing import Any

import numpy as np
import pytest

from dsinga.addons.fields.records.definition import WindowDefinition
from dsinga.addons.fields.records.field_windows import FieldWindows
from dsinga.addons.fields.records.window_arguments import define_windows
from dsinga.job import Job, LayerConf, NetConf, Phase
from dsinga.layers import RecordInfo, Records
from dsinga.models.blocks import conv, layer
from dsinga.net import create_net
from dsinga.passes.predictor import Predictor

SIZES = {"time": 12, "level": 2, "latitude": 37, "longitude": 52}


def make_dataset(**sizes: int) -> Any:
    """Return fields t (time, latitude, longitude), z (time, level, ...), both with attributes, and static h."""
    xarray = pytest.importorskip("xarray")
    sizes = SIZES | sizes
    rng = np.random.default_rng(5)

    def variable(*dims: str, **attributes: str) -> Any:
        return dims, rng.normal(size=[sizes[dim] for dim in dims]).astype(np.float32), attributes

    space = "latitude", "longitude"
    return xarray.Dataset(
        {
            "t": variable("time", *space, units="K", long_name="temperature"),
            "z": variable("time", "level", *space, units="m"),
            "h": variable(*space),
        },
        {
            "time": np.datetime64("2020-01-01", "ns") + np.arange(sizes["time"]) * np.timedelta64(6, "h"),
            "level": [500.0, 850.0][: sizes["level"]],
            "latitude": ("latitude", np.linspace(60, 20, sizes["latitude"]), {"units": "degrees_north"}),
            "longitude": np.arange(sizes["longitude"]) * (360 / sizes["longitude"]),
            "area": (space, np.ones((sizes["latitude"], sizes["longitude"]))),
        },
        {"title": "fields"},
    )


def define(**settings: Any) -> WindowDefinition:
    """Return windows of two steps of t and z, with a static field and a coordinate, that predict t a step ahead."""
    return define_windows(
        **{
            "inputs": ["t", "z"],
            "targets": ["t"],
            "static": ["h"],
            "coordinates": ["cos(latitude)"],
            "input_dims": {"time": 1, "latitude": 16, "longitude": 16},
            "context": {"time": (1, 0)},
            "lead": {"time": 1},
        }
        | settings
    )


def convolutions(filters: int = 1, *, pad: int = 1, source: str = "data") -> list[LayerConf]:
    """Return two convolutions of 3 x 3 with a rectifier between; "end" is the last one."""
    return [conv("c0", source, 4, 3, pad=pad), layer("r0", "kReLU", "c0"), conv("end", "r0", filters, 3, pad=pad)]


def make_job(layers: list[LayerConf]) -> Job:
    """Return the job of a net of these layers after its input layer "data"."""
    return Job(name="fields", neuralnet=NetConf(layer=[layer("data", "kRecordInput"), *layers]))


def make_params(job: Job, definition: WindowDefinition, dataset: Any) -> dict[str, np.ndarray]:
    """Return random params of a job's net for windows of a Dataset."""
    shape = FieldWindows(dataset, definition.replace(targets=()), has_targets=False).shape
    net = create_net(job.neuralnet, Phase.kTest, {"data": RecordInfo(shape, 1, has_labels=False)})
    rng = np.random.default_rng(1)
    return {name: rng.normal(size=param.shape).astype(np.float32) * 0.3 for name, param in net.params.items()}


def whole_fields(job: Job, params: dict[str, np.ndarray], definition: WindowDefinition, dataset: Any) -> np.ndarray:
    """Return what the net gives for whole fields, read as records of windows of that size: (windows, C', *space)."""
    sizes = {dim: size for dim, size in definition.input_dims.items() if dim == "time" or size == 1}
    for dim in definition.input_dims.keys() - sizes.keys():
        conf = definition.along(dim)
        sizes[dim] = dataset.sizes[dim] - (conf.edges == "inside") * (conf.before + conf.after)
    windows = FieldWindows(dataset, definition.replace(input_dims=sizes, input_overlap={}), has_targets=False)
    records, _ = windows.read(np.arange(len(windows)))
    net = create_net(job.neuralnet, Phase.kTest, {"data": RecordInfo(windows.shape, 1, has_labels=False)})
    batch = {"data": Records(records, None)}
    return Predictor(net, params).forward(batch, len(records), ("end",))[0]["end"].data
