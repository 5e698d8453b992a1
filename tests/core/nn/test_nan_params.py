"""Params with NaN are refused wherever they come in; NaN that is written into an array gives no finite prediction."""

import json
import struct
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

import dsinga
from dsinga import nn
from tests.support.refusals import refused

X = np.random.default_rng(0).standard_normal((12, 3, 8, 8)).astype(np.float32)
Y = np.arange(12) % 3


def make_model() -> nn.Sequential:
    model = nn.Sequential(
        [
            nn.Input((3, 8, 8)), nn.layers.Conv2D(4, 3, name="conv"), nn.layers.BatchNormalization(name="norm"),
            nn.layers.Activation("relu"), nn.layers.MaxPooling2D(2), nn.layers.Flatten(),
            nn.layers.Dense(5, activation="relu", name="dense"), nn.layers.Dense(3, activation="softmax", name="top"),
        ]
    )  # fmt: skip
    model.compile("sgd", "sparse_categorical_crossentropy")
    return model


def spoilt(params: Any) -> dict[str, np.ndarray]:
    """Return copies of params, one of which has NaN."""
    return {name: np.where(name == "dense_weight", np.nan, array) for name, array in params.items()}


def spoil_file(path: Path) -> None:
    """Write NaN into the same array of a safetensors file."""
    data = bytearray(path.read_bytes())
    (length,) = struct.unpack("<Q", data[:8])
    begin = 8 + length + json.loads(data[8 : 8 + length])["dense_weight"]["data_offsets"][0]
    data[begin : begin + 4] = struct.pack("<f", np.nan)
    path.write_bytes(data)


def load_file(model: Any, folder: Path, load: Callable[[Path], Any]) -> None:
    file = folder / "params.safetensors"
    model.save_weights(file)
    spoil_file(file)
    load(file)


def load_folder(model: Any, folder: Path) -> None:
    model.save(folder / "model")
    spoil_file(folder / "model/params.safetensors")
    nn.load_model(folder / "model")


ROADS: dict[str, Callable[[Any, Path], Any]] = {
    "params": lambda model, folder: setattr(model, "params", spoilt(model.params)),
    "set_weights": lambda model, folder: model.set_weights([*spoilt(model.params).values()]),
    "set_param": lambda model, folder: model.get_layer("dense").weights[0].assign(np.full((5, 36), np.nan)),
    "path": lambda model, folder: load_file(model, folder, lambda file: setattr(model, "params", file)),
    "load_weights": lambda model, folder: load_file(model, folder, model.load_weights),
    "load_model": load_folder,
    "train": lambda model, folder: dsinga.train(model.job(X, Y, epochs=1), params=spoilt(model.params)),
    "evaluate": lambda model, folder: dsinga.evaluate(model.job(X, Y, epochs=1), spoilt(model.params), phase="train"),
    "predict": lambda model, folder: load_file(
        model, folder, lambda file: dsinga.predict(model.job(X, Y, epochs=1), file, layer="top", phase="train")
    ),
}


@pytest.mark.parametrize("road", ROADS)
def test_params_with_nan_are_refused(tmp_path: Path, road: str):
    refused(lambda: ROADS[road](make_model(), tmp_path), "'dense_weight'", "take the par", error=dsinga.UserError)


@pytest.mark.parametrize("param", ["conv_weight", "norm_scale", "norm_mean", "dense_weight", "top_bias"])
@pytest.mark.parametrize("precision", ["kFloat32", "kBF16"])
def test_nan_in_an_array_of_the_model_gives_no_finite_prediction(param: str, precision: str):
    model = make_model()
    model.fit(X, Y, verbose=0, precision=precision)
    model.predict(X)
    name = next(name for name in model.params if name.startswith(param.split("_")[0]) and param.split("_")[1] in name)
    model.params[name][0] = np.nan
    assert not np.isfinite(model.predict(X)).all(axis=1).any()
