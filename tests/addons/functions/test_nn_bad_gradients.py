"""Gradients that are not finite, though the loss is: whose it was is said by all faces, and the params stay."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import Diverged
from dsinga.engine.local_net import LocalNet

X = np.concatenate([np.zeros((8, 3), np.float32), np.ones((8, 3), np.float32)])  # of zeros the roots have no slope
Y = 2 * X[:, :1]
FACES = ["fit", "batch", "LocalNet", pytest.param("workers", marks=pytest.mark.ci)]


def root(x: Any) -> Any:
    import torch

    return torch.sqrt(x * x)


class Root(nn.Layer):
    def call(self, x: Any) -> Any:
        import torch

        return torch.sqrt(x * x)


def distance(truth: Any, prediction: Any) -> Any:
    import torch

    return torch.sqrt(torch.sum((prediction * truth) ** 2, -1))


def made(kind: str) -> nn.Model:
    x = nn.Input(3)
    h = nn.Dense(4, activation="relu", name="below", use_bias=False)(x)
    h = nn.Lambda(root, name="root")(h) if kind == "function" else h
    h = Root(name="root")(h) if kind == "class" else h
    h = h**0.5 if kind == "power" else h
    model = nn.Model(x, nn.Dense(1, name="top")(h))
    model.compile(nn.SGD(0.1, momentum=0.9), distance if kind == "loss" else "mse")
    model.set_weights([np.abs(array) for array in model.get_weights()])
    return model


def train(model: nn.Model, face: str, x: np.ndarray = X, **fields: Any) -> Any:
    if face == "batch":
        return model.train_on_batch(x, 2 * x[:, :1])
    if face == "LocalNet":
        net = LocalNet(model.job(train_steps=1), x, Y[: len(x)])
        return net.backward(model.params, x, Y[: len(x)])
    options = {"workers": 2} if face == "workers" else {}
    return model.fit(x, Y[: len(x)], batch_size=8, progress=False, **options, **fields)


SENTENCES = {
    "function": "the gradient of the function of 'root' is not finite at step 0, though its feature is; guard its",
    "class": "the gradient of the function of 'root' is not finite at step 0, though its feature is; guard its roots",
    "loss": "the gradient of the function of 'loss' is not finite at step 0, though its feature is; guard its roots",
    "power": "the gradient of layer 'power' is not finite at step 0, though its feature is; lower the learning rate",
}


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("face", FACES)
@pytest.mark.parametrize("kind", SENTENCES)
def test_the_layer_is_named_and_the_params_stay(kind: str, face: str, tmp_path: Path):
    pytest.importorskip("torch")
    model = made(kind)
    before = model.get_weights()
    with pytest.raises(Diverged) as error:
        train(model, face, X[:8])
    sentence = SENTENCES[kind]
    if kind == "power" and face == "workers":  # no worker repeats a pass of several to find the layer
        sentence = "the gradient of param 'below_weight' is not finite at step 0; lower the learning rate"
    assert str(error.value).startswith(sentence)
    for pair in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(*pair)
    assert np.isfinite(train(model, "batch", X[8:]))  # goes on


@pytest.mark.filterwarnings("ignore::RuntimeWarning")
@pytest.mark.parametrize("face", ["fit", pytest.param("workers", marks=pytest.mark.ci)])
@pytest.mark.parametrize("kind", SENTENCES)
def test_bad_batches_are_left_out(kind: str, face: str, caplog: pytest.LogCaptureFixture):
    pytest.importorskip("torch")
    model = made(kind)
    before = model.get_weights()
    with caplog.at_level(logging.WARNING, "dsinga"):
        train(model, face, X[:8], skip_bad_batches=True, epochs=2)
    for pair in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(*pair)
    if face == "fit":  # clusters have levels of their own
        assert caplog.text.count("the loss, a gradient or a record of group 0 is not finite at step") == 2


def test_large_gradients_are_no_fault():
    """The sum of their squares is infinite in float32."""
    model = nn.Sequential([nn.Input(3), nn.Dense(1)])
    model.compile(nn.SGD(1e-30), "mse")
    model.fit(X, Y * np.float32(1e25), batch_size=8, progress=False)
    assert all(np.isfinite(array).all() for array in model.get_weights())
