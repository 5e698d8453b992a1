"""Weights of folders with safetensors: by tables of names, in shards, of several dtypes; what is refused."""

import json
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from dsinga import nn
from dsinga.convert import load_weights, save_weights, to_torch
from tests.support.refusals import refused

# Another library's names of the params of a net, and the model's.
TABLE = {
    "backbone.stage.*.conv.*": "conv*.*", "backbone.norm.*": "norm.*", "attention.query.*": "attend.in_proj_q.*",
    "pooler.*": None, "classifier.*": "head.*",
}  # fmt: skip


def model(seed: int = 0) -> nn.Model:
    """Return a net of images with params of many kinds."""
    x = nn.Input((2, 6, 6), "x")
    y = nn.Conv2D(4, 3, name="conv1", padding="same")(x)
    y = nn.Conv2DTranspose(3, 2, 2, name="conv2")(y)
    y = nn.BatchNormalization(name="norm")(y)
    made = nn.Model(x, nn.Dense(2, name="head")(y))
    rng = np.random.default_rng(seed)
    made.params = {name: rng.random(array.shape, np.float32) for name, array in made.params.items()}
    return made


def theirs(own: nn.Model) -> dict[str, np.ndarray]:
    """Return the weights of a model by the other library's names, with arrays that the model lacks."""
    back = {
        "conv1.": "backbone.stage.1.conv.", "conv2.": "backbone.stage.2.conv.", "norm.": "backbone.norm.",
        "head.": "classifier.",
    }  # fmt: skip
    arrays = {}
    for name, array in to_torch(own).items():
        ours = next(prefix for prefix in back if name.startswith(prefix))
        arrays[name.replace(ours, back[ours])] = array
    return arrays | {"pooler.weight": np.ones((2, 2), np.float32), "backbone.norm.num_batches_tracked": np.array(3)}


@pytest.mark.parametrize("form", ["file", "folder", "shards", "bfloat16"])
def test_weights_are_read_by_a_table_of_names_and_written_back(form: str, tmp_path: Path) -> None:
    source, target = model(1), model(2)
    assert to_torch(source)["conv1.weight"].shape == (4, 2, 3, 3)
    assert to_torch(source)["conv2.weight"].shape == (4, 3, 2, 2)
    arrays = theirs(source)
    if form == "bfloat16":
        arrays = {name: array.astype(ml_dtypes.bfloat16) if array.ndim else array for name, array in arrays.items()}
    if form == "shards":
        names = list(arrays)
        shards = {f"model-0000{number + 1}-of-00002.safetensors": names[number::2] for number in range(2)}
        for file, listed in shards.items():
            save_file({name: arrays[name] for name in listed}, tmp_path / file)
        weight_map = {name: file for file, listed in shards.items() for name in listed}
        (tmp_path / "model.safetensors.index.json").write_text(json.dumps({"weight_map": weight_map}))
    else:
        save_file(arrays, tmp_path / "model.safetensors")
    load_weights(target, tmp_path / "model.safetensors" if form == "file" else tmp_path, TABLE)
    tolerance = 1e-2 if form == "bfloat16" else 0
    for name, array in source.params.items():
        np.testing.assert_allclose(target.params[name], array, rtol=tolerance, err_msg=name)
    save_weights(target, tmp_path / "out", TABLE, {"model_type": "own"})
    written = load_file(tmp_path / "out" / "model.safetensors")
    assert written.keys() == arrays.keys() - {"pooler.weight", "backbone.norm.num_batches_tracked"}
    assert written["backbone.stage.1.conv.weight"].shape == (4, 2, 3, 3)
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == {"model_type": "own"}


def test_params_that_are_left_out_keep_their_values(tmp_path: Path) -> None:
    source, target = model(1), model(2)
    before = target.params["head_weight"].copy()
    arrays = {name: array for name, array in to_torch(source).items() if not name.startswith("head")}
    save_file(arrays, tmp_path / "model.safetensors")
    refused(lambda: load_weights(target, tmp_path), "bias, which the model needs", "weight, head")
    refused(lambda: load_weights(target, tmp_path, without="haed.*"), r"'haed.\*'", "is called so")
    load_weights(target, tmp_path, without="head.*")
    np.testing.assert_array_equal(target.params["head_weight"], before)
    np.testing.assert_array_equal(target.params["conv1_weight"], source.params["conv1_weight"])


@pytest.mark.parametrize(
    ("files", "message"),
    [
        ({}, "has neither model.safetensors nor model.safetensors.index.json: give its folder"),
        ({"pytorch_model.bin": b"\x80\x02"}, "pytorch_model.bin would run code; save the net with safe_serialization"),
        ({"model.safetensors": b"damaged"}, "model.safetensors cannot be read as safetensors"),
        ({"model.safetensors.index.json": b"[]"}, "index.json cannot be read as an index of weights"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "../a"}}'}, "'../a', which is no file of the"),
        ({"model.safetensors.index.json": b'{"weight_map": {"a": "a.safetensors"}}'}, "a.safetensors cannot be read"),
    ],
)
def test_folders_without_weights_are_refused(files: dict[str, bytes], message: str, tmp_path: Path) -> None:
    for name, content in files.items():
        (tmp_path / name).write_bytes(content)
    refused(lambda: load_weights(model(), tmp_path), message)


@pytest.mark.parametrize(
    ("change", "names", "message"),
    [
        ({"pooler.weight": np.ones((2, 2), np.float32)}, {}, "'pooler.weight': None"),
        ({"head.bias": np.ones(3, np.float32)}, {}, r"head.bias of .* the shape \(3,\), but that .* is \(2,\)"),
        ({}, {"conv*.*": "conv*"}, "give both as many"),
        ({}, {"conv1.*": "conv2.*"}, "two arrays the name 'conv2.bias'"),
    ],
)
def test_arrays_that_do_not_fit_are_named(change: dict, names: dict, message: str, tmp_path: Path) -> None:
    save_file({**to_torch(model()), **change}, tmp_path / "model.safetensors")
    refused(lambda: load_weights(model(), tmp_path, names), message)
