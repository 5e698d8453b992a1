"""Nets of PyTorch through ONNX files: the same model as by ``convert.from_torch``, and back in ONNX Runtime."""

import re
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.convert import from_torch
from tests.support.later_import import keys_of, torch
from tests.support.onnx_nets import session_of

pytest.importorskip("onnx")

MODULES = keys_of("onnx_modules", "MODULES")
QUICK = {"MLP", "fire module", "recommender", "squeeze and excite"}
STEPS, ROWS = 20, 8


def modules() -> Any:
    """Return the module of modules, which imports PyTorch."""
    pytest.importorskip("torch")
    from tests.support import onnx_modules

    return onnx_modules


def both(name: str, exporter: str, folder: Path) -> tuple[Any, nn.Model, nn.Model]:
    """Return a module, the model of the ONNX file that an exporter writes of it, and the model of the module."""
    if exporter != "traced":
        pytest.importorskip("onnxscript")
    module = modules().made(name)
    path = folder / "net.onnx"
    modules().exported(module, modules().records(name, 3), path, exporter)
    return module, nn.load_onnx(path), from_torch(module, *(shape for shape, _ in modules().MODULES[name][0]))


def arrays(name: str, count: int, seed: int = 0) -> Any:
    """Return records for the module of a name as a model takes them."""
    tensors = [tensor.numpy() for tensor in modules().records(name, count, seed)]
    return tensors[0] if len(tensors) == 1 else tensors


def params_of(model: nn.Model) -> dict[str, np.ndarray]:
    """Return the params of a model, but numbers that do not train; queries, keys and values as one, as in files."""
    result = {}
    for name, array in model.params.items():
        joined = re.sub(r"in_proj_[qkv]_", "in_proj_", name)
        if joined != name:
            parts = [model.params[re.sub(r"in_proj_[qkv]_", f"in_proj_{part}_", name)] for part in "qkv"]
            result[joined] = np.concatenate(parts)
        elif ".constant" not in name:
            result[name] = array
    return result


def layers(model: nn.Model) -> list[tuple[str, str, tuple[str, ...]]]:
    """Return the layers that have params, as their names, types and params."""
    kept = set(params_of(model))
    result = set()
    for node in model.predicting_net().nodes:
        name, *params = (re.sub(r"in_proj_[qkv]", "in_proj", each) for each in (node.layer.name, *node.params))
        if kept.intersection(params):
            result.add((name, type(node.layer).__name__, tuple(params)))
    return sorted(result)


def check_outputs(module: Any, model: nn.Model, name: str) -> Any:
    """Check that a model gives what the module does; return the outputs."""
    with torch.no_grad():
        theirs = module(*modules().records(name, 7)).numpy()
    ours = model.predict(arrays(name, 7)).reshape(theirs.shape)
    np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(theirs).max()))
    return ours


def check_training(imported: nn.Model, known: nn.Model, name: str, outputs: Any, optimizer: Any) -> None:
    """Check that steps of training have the same losses in both models, and end with the same params."""
    random = np.random.default_rng(3)
    targets = random.normal(size=(STEPS, ROWS, outputs[0].size)).astype(np.float32)
    for model in (imported, known):
        model.compile(optimizer(), "mse")
    for step in range(STEPS):
        x = arrays(name, ROWS, step)
        losses = [model.train_on_batch(x, targets[step]) for model in (imported, known)]
        assert losses[0] == pytest.approx(losses[1], rel=1e-5)
    ours = params_of(imported)
    for key, array in params_of(known).items():
        scale = max(1.0, np.abs(array).max())
        np.testing.assert_allclose(ours[key] / scale, array / scale, atol=1e-5, err_msg=key)


# "plain" is the newer exporter, whose nodes are not optimised.
@pytest.mark.parametrize("exporter", ["traced", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=() if name in QUICK else pytest.mark.ci) for name in MODULES],
)
def test_a_file_of_a_module_gives_the_model_of_the_module(name: str, exporter: str, tmp_path: Path) -> None:
    if (name, exporter) == ("language model by hand", "traced"):
        pytest.skip("its forward has len(codes), which tracing takes for the number of records of the export")
    module, imported, known = both(name, exporter, tmp_path)
    assert layers(imported) == layers(known)
    ours, theirs = params_of(imported), params_of(known)
    assert ours.keys() == theirs.keys()
    for key, array in theirs.items():
        np.testing.assert_array_equal(ours[key], array, err_msg=key)
    outputs = check_outputs(module, imported, name)
    begins = [{key: array.copy() for key, array in model.params.items()} for model in (imported, known)]
    check_training(imported, known, name, outputs, lambda: nn.SGD(0.01))
    imported.params, known.params = begins
    # Gradients that are 0 but for rounding, as those of biases before a batch normalisation, do not count.
    check_training(imported, known, name, outputs, lambda: nn.Adam(1e-3, epsilon=1e-4))


@pytest.mark.slow
@pytest.mark.parametrize("name", MODULES)
def test_an_optimised_file_of_a_module_gives_its_outputs_and_its_params_train(name: str, tmp_path: Path) -> None:
    module, imported, known = both(name, "optimised", tmp_path)
    outputs = check_outputs(module, imported, name)
    joint = imported.params.keys() & known.params.keys()
    assert joint
    imported.compile(nn.Adam(1e-2), "mse")
    x, y = arrays(name, ROWS), np.zeros((ROWS, outputs[0].size), np.float32)
    losses = [imported.train_on_batch(x, y) for _ in range(STEPS)]
    assert losses[-1] < losses[0]


@pytest.mark.parametrize("name", MODULES)
def test_the_model_of_a_module_gives_its_outputs_in_onnx_runtime(name: str, tmp_path: Path) -> None:
    pytest.importorskip("onnxruntime")
    module = modules().made(name)
    model = from_torch(module, *(shape for shape, _ in modules().MODULES[name][0]))
    model.export(tmp_path / "net.onnx")
    session = session_of(tmp_path / "net.onnx")
    for count in (1, 3, 17):
        tensors = modules().records(name, count)
        with torch.no_grad():
            theirs = module(*tensors).numpy()
        feeds = {
            info.name: tensor.numpy().astype(np.float32 if "float" in info.type else np.int64)
            for info, tensor in zip(session.get_inputs(), tensors, strict=True)
        }
        ours = session.run(None, feeds)[0].reshape(theirs.shape)
        np.testing.assert_allclose(ours, theirs, rtol=1e-5, atol=1e-5 * max(1.0, np.abs(theirs).max()))
