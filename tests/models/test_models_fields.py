"""Nets for fields beside the same nets in PyTorch: the loss of each of 50 steps; what they refuse; cut nets."""

from __future__ import annotations

import math
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.errors import UserError
from tests.support.later_import import functional, torch

MODES = {"edge": "replicate", "reflect": "reflect", "periodic": "circular"}  # torch's
ROWS, STEPS, RATE = 4, 50, 0.05


class Peer:
    """Layers of PyTorch with the params of a model, which have the shapes of dsinga's."""

    def __init__(self, params: dict[str, Any], padding: tuple[str, str], normalisation: str):
        self.params, self.padding, self.normalisation = params, padding, normalisation

    def convolve(self, name: str, x: Any, kernel: int = 3) -> Any:
        weight, bias = self.params[f"{name}_weight"], self.params.get(f"{name}_bias")
        side = kernel // 2
        for mode, sides in zip(self.padding, ((0, 0, side, side), (side, side, 0, 0)), strict=True):
            x = functional.pad(x, sides, MODES[mode]) if mode != "zero" else functional.pad(x, sides)
        return functional.conv2d(x, weight.reshape(len(weight), -1, kernel, kernel), bias)

    def normalise(self, name: str, x: Any) -> Any:
        if self.normalisation == "none":
            return x
        scale, bias = self.params[f"{name}_scale"], self.params[f"{name}_bias"]
        if self.normalisation == "batch":
            return functional.batch_norm(x, None, None, scale, bias, training=True, eps=1e-5)
        return functional.group_norm(x, math.gcd(x.shape[1], 8), scale, bias, eps=1e-5)

    def linear(self, x: Any) -> Any:
        weight = self.params["output_weight"]
        return functional.conv2d(x, weight[..., None, None], self.params["output_bias"])

    def unet(self, x: Any, depth: int) -> Any:
        def block(name: str, x: Any) -> Any:
            for number in (1, 2):
                x = self.normalise(f"{name}_norm{number}", self.convolve(f"{name}_conv{number}", x)).relu()
            return x

        skipped = []
        for level in range(depth):
            skipped.append(block(f"down{level}", x))
            x = functional.max_pool2d(skipped[-1], 2)
        x = block("bottom", x)
        for level in reversed(range(depth)):
            weight, bias = self.params[f"up{level}_grow_weight"], self.params[f"up{level}_grow_bias"]
            up = functional.conv_transpose2d(x, weight.reshape(len(weight), -1, 2, 2), bias, 2)
            x = block(f"up{level}", torch.cat([skipped[level], up], 1))
        return self.linear(x)

    def field_resnet(self, x: Any, blocks: int) -> Any:
        def convolved(name: str, x: Any, kernel: int = 3) -> Any:
            x = functional.leaky_relu(self.convolve(name, x, kernel), 0.3)
            return self.normalise(f"{name}_norm", x)

        x = convolved("conv", x, 7)
        for number in range(1, blocks + 1):
            x = x + convolved(f"block{number}_conv2", convolved(f"block{number}_conv1", x))
        return self.linear(x)


def losses_of_both(model: nn.Model, forward: Callable[[Peer, Any], Any], padding: Any, normalisation: str) -> Any:
    """Return the losses of 50 steps of SGD with momentum by dsinga and by PyTorch, from the same params, on batches."""
    rng = np.random.default_rng(3)
    shape = model.inputs[0].shape[1:]
    x = rng.normal(size=(STEPS, ROWS, *shape)).astype(np.float32)
    y = np.tanh(x[:, :, :1] + np.roll(x[:, :, 1:2], 2, -1)).astype(np.float32)
    model.compile(nn.SGD(RATE, 0.9), "mse")
    job = model.job(x[0], y[0].reshape(ROWS, -1), train_steps=1)
    net = nn.LocalNet(job, x[0], y[0].reshape(ROWS, -1), threads=1)
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in params.items()}
    peer = Peer(tensors, (padding, padding) if isinstance(padding, str) else padding, normalisation)
    trained = [tensor for name, tensor in tensors.items() if not name.endswith(("_mean", "_variance"))]
    optimizer = torch.optim.SGD(trained, RATE, momentum=0.9)
    ours, theirs = [], []
    for records, labels in zip(x, y, strict=True):
        gradients, metrics = net.backward(params, records, labels.reshape(ROWS, -1))
        updater.step(params, gradients)
        ours.append(metrics["loss"])
        loss = functional.mse_loss(forward(peer, torch.tensor(records)), torch.tensor(labels))
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
        theirs.append(float(loss.detach()))
    return np.array(ours), np.array(theirs)


@pytest.mark.parametrize(
    ("padding", "normalisation"),
    [("periodic", "batch"), (("edge", "periodic"), "group"), (("zero", "reflect"), "none")],
)
def test_a_unet_has_the_losses_of_pytorchs_in_each_of_50_steps(padding: Any, normalisation: Any) -> None:
    model = models.unet((2, 16, 8), 1, width=8, depth=2, padding=padding, normalisation=normalisation)
    ours, theirs = losses_of_both(model, lambda peer, x: peer.unet(x, 2), padding, normalisation)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize("normalisation", ["batch", "group"])
def test_a_residual_net_has_the_losses_of_pytorchs_in_each_of_50_steps(normalisation: Any) -> None:
    model = models.field_resnet((2, 8, 12), 1, width=8, blocks=2, normalisation=normalisation)
    forward = lambda peer, x: peer.field_resnet(x, 2)  # noqa: E731
    ours, theirs = losses_of_both(model, forward, ("zero", "periodic"), normalisation)
    assert theirs[-1] < 0.5 * theirs[0]
    np.testing.assert_allclose(ours, theirs, rtol=1e-5)


@pytest.mark.parametrize(
    ("make", "says"),
    [
        (lambda: models.unet((1, 12, 16), depth=3), "halves fields 3 times, which 12 x 16 points cannot be"),
        (lambda: models.unet((16, 16)), r"takes fields of the shape \(channels, height, width\), not \(16, 16\)"),
        (lambda: models.unet((1, 8, 8), normalisation="layer"), 'normalisation is "batch", "group" or "none"'),
        (
            lambda: models.unet((1, 8, 8), padding="circular"),
            "no padding_mode 'circular'; these are zero, edge, reflect",
        ),
        (lambda: models.field_resnet((8, 8)), r"takes fields of the shape"),
    ],
)
def test_what_does_not_fit_is_refused(make: Callable[[], nn.Model], says: str) -> None:
    with pytest.raises(UserError, match=says):
        make()
