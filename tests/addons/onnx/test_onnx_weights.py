"""Params that a file combines with other arrays train as PyTorch trains them, or are refused by their names."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from tests.support.later_import import keys_of, torch
from tests.support.onnx_nets import graph_of, loaded, node

onnx = pytest.importorskip("onnx")
QUICK = {"exp of a scalar", "a sum", "weight norm", "parts of a weight that overlap"}
NAMES = keys_of("onnx_weights", "MODULES")


def array_of(tensor: Any) -> np.ndarray:
    """Return the numbers of a tensor."""
    array: np.ndarray = tensor.detach().numpy()
    return array


def check_params(model: nn.Model, module: Any) -> None:
    """Check that a model has the params of a module, but those of recurrent layers, whose gates are apart."""
    for name, param in module.named_parameters():
        if not name.startswith("r."):
            found = {name.replace(".", "_"), f"{name}_vector", "_".join(name.rsplit(".", 1))} & model.params.keys()
            ours = model.params[found.pop()]
            np.testing.assert_allclose(ours.reshape(param.shape), array_of(param), atol=1e-5, err_msg=name)


@pytest.mark.parametrize("exporter", ["traced", pytest.param("plain", marks=pytest.mark.slow)])
@pytest.mark.parametrize("name", [pytest.param(each, marks=() if each in QUICK else pytest.mark.ci) for each in NAMES])
def test_params_that_meet_params_train_as_in_pytorch(name: str, exporter: str, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    if exporter == "plain":
        pytest.importorskip("onnxscript")
    from tests.support import onnx_modules, onnx_weights

    for optimizers in (
        (nn.SGD(0.01), lambda params: torch.optim.SGD(params, 0.01)),
        (nn.Adam(0.01, epsilon=1e-4), lambda params: torch.optim.Adam(params, 0.01, eps=1e-4)),
    ):
        module, records = onnx_weights.made(name)
        path = tmp_path / "net.onnx"
        onnx_modules.exported(module, [records(3)], path, exporter)
        if name in onnx_weights.REFUSED:
            with pytest.raises(UserError, match=r"c\.parametrizations|params w|weight, which layers take in forms"):
                nn.load_onnx(path)
            return
        model, optimizer = nn.load_onnx(path), optimizers[1](module.parameters())
        model.compile(optimizers[0], "mse")
        shape = model.predict(array_of(records(1))).shape[1:]
        for step in range(10):
            x, y = records(8, step), np.random.default_rng(step).normal(size=(8, *shape)).astype(np.float32)
            optimizer.zero_grad()
            scores = module(x)
            torch.nn.functional.mse_loss(scores, torch.tensor(y).reshape(scores.shape)).backward()
            optimizer.step()
            model.train_on_batch(array_of(x), y)
        check_params(model, module)
        x = records(7, 99)
        theirs = array_of(module(x))
        np.testing.assert_allclose(model.predict(array_of(x)).reshape(theirs.shape), theirs, atol=1e-4)


def test_what_keeps_its_numbers_is_said(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    arrays = {"least": np.float32(-1), "seen": np.float32([1, 0, 1]), "p": np.ones(3, np.float32)}
    nodes = [node("Clip", "x least", "a"), node("Mul", "a seen", "b"), node("Mul", "b p")]
    with caplog.at_level(logging.WARNING, "dsinga"):
        assert loaded(graph_of(nodes, arrays=arrays), tmp_path).params.keys() == {"p_vector", "mul.constant_vector"}
    assert "net: least, seen do not train as params of the net: they are masks or bounds" in caplog.text


@pytest.mark.parametrize(("size", "beta"), [(1, 3.0), (3, 3.0), (1, 1.0)])
def test_factors_of_a_product_and_its_bias_train(size: int, beta: float, tmp_path: Path) -> None:
    """The gradients are those of alpha·x·W + beta·b, also where one number is the bias of all."""
    random = np.random.default_rng(0)
    arrays = {"fc.weight": random.normal(size=(3, 3)).astype(np.float32), "b": np.ones(size, np.float32)}
    product = node("Gemm", "x fc.weight b", alpha=0.5, beta=beta)
    model, x = loaded(graph_of([product], arrays=arrays), tmp_path), random.normal(size=(5, 3)).astype(np.float32)
    model.compile(nn.SGD(1.0), "mse")
    error = 0.5 * x @ arrays["fc.weight"] + beta * arrays["b"]
    model.train_on_batch(x, np.zeros_like(error))
    slope = 2 * error / error.size
    np.testing.assert_allclose(model.params["fc_weight"], (arrays["fc.weight"] - 0.5 * x.T @ slope).T, atol=1e-5)
    expected = arrays["b"] - beta * slope.sum(axis=0 if size > 1 else None)
    np.testing.assert_allclose(model.params["b_vector"], expected, atol=1e-5)


@pytest.mark.parametrize("momentum", [0.0, 0.5, 0.9, 0.99, 1.0])
def test_the_momentum_of_statistics_goes_out_and_in(momentum: float, tmp_path: Path) -> None:
    model = nn.Sequential([nn.Input(3), nn.Dense(2), nn.BatchNormalization(momentum=momentum, name="norm")])
    x = np.random.default_rng(0).normal(size=(8, 3)).astype(np.float32)
    model.export(tmp_path / "net.onnx", check=x)
    again = nn.load_onnx(tmp_path / "net.onnx")
    layer = again.predicting_net().layer("norm")
    assert layer.settings.momentum == pytest.approx(1 - momentum)
    again.compile("sgd", "mse")
    again.train_on_batch(x, np.zeros((8, 2), np.float32))
    assert (again.params["norm_mean"] == 0).all() == (momentum == 1)


@pytest.mark.parametrize("after", [
    lambda: [nn.LSTM(3)], lambda: [nn.Bidirectional(nn.GRU(3))], lambda: [nn.GlobalAveragePooling1D()],
    lambda: [nn.GRU(3, return_sequences=True), nn.GlobalMaxPooling1D()],
])  # fmt: skip
def test_masks_of_codes_are_read_back(after: Any, tmp_path: Path) -> None:
    codes = np.random.default_rng(0).integers(0, 7, (9, 5))
    model = nn.Sequential([nn.Input((5,)), nn.Embedding(7, 4, mask_zero=True), *after(), nn.Dense(2)])
    model.export(tmp_path / "net.onnx")
    np.testing.assert_allclose(nn.load_onnx(tmp_path / "net.onnx").predict(codes), model.predict(codes), atol=1e-6)
