"""The residual net compared with PyTorch: loss and all gradients, on the same params."""

from typing import Any

import numpy as np
import pytest

from dsinga import models
from dsinga.job import NetConf, Phase
from dsinga.layers import RecordInfo
from dsinga.net import NeuralNet, create_net
from tests.support.later_import import functional, torch
from tests.support.training_cases import context, gradients, layer, records_of

ROWS, SIZE = 6, 8


def residual_net() -> NeuralNet:
    """The net of 14 layers for images of 8 x 8, which come as they are, in float64."""
    job = models.resnet(14, size=SIZE, augment=False)
    conf = NetConf(layer=[layer("data", "Exact"), *job.net.layer[2:]])
    return create_net(conf, Phase.kTrain, {"data": RecordInfo((3, SIZE, SIZE), ROWS)})


def forward(x: Any, params: dict[str, Any]) -> Any:
    """What PyTorch makes of images with the params of the net."""

    def normalised(name: str, x: Any, kernel: int = 3, stride: int = 1) -> Any:
        weight = params[f"{name}_weight"]
        x = functional.conv2d(x, weight.reshape(len(weight), -1, kernel, kernel), stride=stride, padding=kernel // 2)
        return functional.batch_norm(
            x, None, None, params[f"{name}_bn_scale"], params[f"{name}_bn_bias"], training=True, eps=1e-5
        )

    x = normalised("conv1", x).relu()
    for stage in (2, 3, 4):
        for number in (1, 2):
            block, stride = f"block{stage}_{number}", 2 if (stage > 2 and number == 1) else 1
            inner = normalised(f"{block}_conv2", normalised(f"{block}_conv1", x, stride=stride).relu())
            shortcut = x if stride == 1 else normalised(f"{block}_proj", x, 1, stride)
            x = (inner + shortcut).relu()
    return functional.linear(x.mean(dim=(2, 3)), params["ip_weight"], params["ip_bias"])


def test_loss_and_gradients_are_pytorchs():
    net, rng = residual_net(), np.random.default_rng(0)
    values = {
        name: rng.normal(0, 0.3, param.shape) + (param.spec.role == "scale") for name, param in net.params.items()
    }
    records = records_of(net, classes=10)
    ours, metrics = gradients(net, values, records, context(net))

    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    scores = forward(torch.tensor(records["data"].data), tensors)
    theirs = functional.cross_entropy(scores, torch.tensor(records["data"].labels))
    theirs.backward()

    total, count = metrics["loss"]
    assert total / count == pytest.approx(float(theirs.detach()), rel=1e-10)
    trained = [name for name, param in net.params.items() if param.trainable]
    assert len(trained) == 15 * 3 + 2
    for name in trained:
        expected = tensors[name].grad.numpy()
        np.testing.assert_allclose(ours[name], expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max(), err_msg=name)
