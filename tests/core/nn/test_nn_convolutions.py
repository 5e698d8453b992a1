"""Depthwise, grouped, separable and dilated convolutions of nn train as the same net in PyTorch."""

from typing import Any

import numpy as np

from dsinga import nn
from tests.support.later_import import functional as F
from tests.support.later_import import torch

X = np.random.default_rng(0).standard_normal((40, 4, 9, 8), np.float32)
Y = np.random.default_rng(1).integers(0, 3, 40)


def layers() -> list[Any]:
    return [
        nn.DepthwiseConv2D(3, 2, "same", depth_multiplier=2, activation="relu", name="depthwise"),
        nn.Conv2D(12, 3, padding="same", dilation_rate=2, groups=4, activation="tanh", name="grouped"),
        nn.SeparableConv2D(6, 3, padding=1, dilation_rate=(1, 2), activation="relu", name="separable"),
        nn.Flatten(),
        nn.Dense(3, name="dense"),
    ]


def peer(params: dict[str, Any], x: Any) -> Any:
    def convolve(name: str, x: Any, shape: tuple[int, ...], **spacing: Any) -> Any:
        return F.conv2d(x, params[f"{name}_weight"].reshape(shape), params.get(f"{name}_bias"), **spacing)

    x = convolve("depthwise", F.pad(x, (0, 1, 1, 1)), (8, 1, 3, 3), stride=2, groups=4).relu()
    x = convolve("grouped", x, (12, 2, 3, 3), padding=2, dilation=2, groups=4).tanh()
    x = convolve("separable_depthwise", x, (12, 1, 3, 3), padding=1, dilation=(1, 2), groups=12)
    x = convolve("separable", x, (6, 12, 1, 1)).relu()
    return F.linear(x.flatten(1), params["dense_weight"], params["dense_bias"])


def test_a_net_trains_as_in_pytorch() -> None:
    """20 steps of SGD; the loss of each, and the params at the end."""
    model = nn.Sequential([nn.Input(X.shape[1:]), *layers()])
    model.compile(nn.SGD(0.1), nn.SoftmaxLoss())
    losses = [model.train_on_batch(X, Y)]
    params = {name: torch.tensor(array, requires_grad=True) for name, array in model.params.items()}
    theirs = []
    for _ in range(20):
        losses.append(model.train_on_batch(X, Y))
        loss = F.cross_entropy(peer(params, torch.tensor(X)), torch.tensor(Y))
        gradients = torch.autograd.grad(loss, [*params.values()])
        with torch.no_grad():
            for param, gradient in zip(params.values(), gradients, strict=True):
                param -= 0.1 * gradient
        theirs.append(float(loss.detach()))
    np.testing.assert_allclose(losses[1:], theirs, rtol=1e-5)
    assert losses[-1] < losses[0]
    for name, param in params.items():
        np.testing.assert_allclose(model.params[name], param.detach().numpy(), rtol=1e-4, atol=1e-5, err_msg=name)
