"""The Transformer and the residual net beside PyTorch, on the same params."""

import math
from typing import Any

import numpy as np
import pytest

from dsinga import models
from dsinga.job import NetConf, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import NeuralNet, create_net
from dsinga.ops import get_ops
from tests.support.later_import import functional, torch
from tests.support.training_cases import context, gradients, layer, records_of

ROWS, SOURCE, TARGET, WORDS = 8, 6, 5, (11, 9)


SMALL: dict[str, Any] = {"blocks": 2, "width": 8, "heads": 4, "hidden": 12, "dropout": 0.0, "batchsize": ROWS}


def sentences() -> dict[str, Records]:
    """Return sentences of different lengths in both languages; the labels are the next words."""
    rng = np.random.default_rng(0)

    def codes(steps: int, words: int) -> np.ndarray:
        ended = np.arange(steps) >= np.array([steps, 1, *rng.integers(1, steps + 1, ROWS - 2)])[:, None]
        return np.where(ended, -1, rng.integers(0, words, (ROWS, steps)))

    target = codes(TARGET, WORDS[1])
    labels = np.where(target < 0, -1, rng.integers(0, WORDS[1], target.shape))
    return {"source": Records(codes(SOURCE, WORDS[0])), "target": Records(target, labels)}


INFOS = {
    "source": RecordInfo((SOURCE,), ROWS, has_labels=False),
    "target": RecordInfo((TARGET,), ROWS, label_shape=(TARGET,)),
}


def torch_loss(params: dict[str, Any], records: dict[str, Records], smoothing: float) -> Any:
    """Return what PyTorch makes of the sentences with the params of the net: the sum of losses by sentence."""
    import torch
    from torch.nn import functional

    def norm(name: str, x: Any) -> Any:
        return functional.layer_norm(x, x.shape[-1:], params[f"{name}_scale"], params[f"{name}_bias"])

    def dense(name: str, x: Any) -> Any:
        return functional.linear(x, params[f"{name}_weight"], params.get(f"{name}_bias"))

    def heads(x: Any) -> Any:
        return x.reshape(*x.shape[:2], SMALL["heads"], -1).transpose(1, 2)

    def attend(name: str, x: Any, memory: Any, mask: Any) -> Any:
        normed = norm(f"{name}_norm", x)
        keys = normed if memory is None else memory
        q, k, v = dense(f"{name}_query", normed), dense(f"{name}_key", keys), dense(f"{name}_value", keys)
        y = functional.scaled_dot_product_attention(heads(q), heads(k), heads(v), attn_mask=mask)
        return x + dense(f"{name}_output", y.transpose(1, 2).reshape(x.shape))

    def perceptron(name: str, x: Any) -> Any:
        return x + dense(f"{name}_output", dense(f"{name}_hidden", norm(f"{name}_norm", x)).relu())

    def embed(language: str) -> Any:
        codes = torch.tensor(records[language].data)
        width, steps = SMALL["width"], codes.shape[1]
        angles = torch.arange(steps)[:, None] / 10_000 ** (torch.arange(0, width, 2, dtype=torch.float64) / width)
        positions = torch.stack([angles.sin(), angles.cos()], dim=2).reshape(steps, width)
        words = params[f"{language}_embedding_weight"][codes.clamp(min=0)] * (codes >= 0)[..., None]
        return words * math.sqrt(width) + positions

    seen = torch.tensor(records["source"].data >= 0)[:, None, None]
    x = embed("source")
    for number in (1, 2):
        x = attend(f"encoder{number}_self", x, None, seen)
        x = perceptron(f"encoder{number}_perceptron", x)
    memory, y = norm("encoder", x), embed("target")
    before = torch.ones(TARGET, TARGET, dtype=torch.bool).tril()
    for number in (1, 2):
        y = attend(f"decoder{number}_self", y, None, before)
        y = attend(f"decoder{number}_cross", y, memory, seen)
        y = perceptron(f"decoder{number}_perceptron", y)
    weight = params.get("scores_weight", params["target_embedding_weight"])
    scores = functional.linear(norm("decoder", y), weight, params.get("scores_bias"))
    labels = torch.tensor(records["target"].labels).reshape(-1)
    return functional.cross_entropy(
        scores.reshape(len(labels), -1), labels, ignore_index=-1, label_smoothing=smoothing, reduction="sum"
    )


@pytest.mark.parametrize(("tied", "smoothing"), [(True, 0.1), (False, 0.0)])
def test_loss_and_gradients_are_pytorchs(tied: bool, smoothing: float):
    job = models.transformer(*WORDS, **SMALL, tie_weights=tied, label_smoothing=smoothing)
    net, rng, records = create_net(job.net, Phase.kTrain, INFOS), np.random.default_rng(1), sentences()
    values = {name: rng.normal(0, 0.5, p.shape) + (p.spec.role == "scale") for name, p in net.params.items()}
    ctx = Context(get_ops("numpy"), Phase.kTrain, Rows(0, ROWS, ROWS))
    ours, metrics = gradients(net, values, records, ctx)
    assert ours.keys() == values.keys()
    check_gradients(
        ours, metrics["loss"][0] / ROWS, values, lambda params: torch_loss(params, records, smoothing) / ROWS
    )


def check_gradients(ours: Any, loss: float, values: Any, peer: Any) -> None:
    """Compare a loss and its gradients with PyTorch's."""
    tensors = {name: torch.tensor(value, requires_grad=True) for name, value in values.items()}
    theirs = peer(tensors)
    theirs.backward()
    assert loss == pytest.approx(float(theirs.detach()), rel=1e-10)
    for name, gradient in ours.items():
        expected = tensors[name].grad.numpy()
        dense = gradient.dense() if hasattr(gradient, "dense") else gradient
        np.testing.assert_allclose(dense, expected, rtol=1e-7, atol=1e-9 * np.abs(expected).max(), err_msg=name)


RECORDS, SIZE = 6, 8


def residual_net() -> NeuralNet:
    """The net of 14 layers for images of 8 x 8, which come as they are, in float64."""
    job = models.resnet(14, size=SIZE, augment=False)
    conf = NetConf(layer=[layer("data", "Exact"), *job.net.layer[2:]])
    return create_net(conf, Phase.kTrain, {"data": RecordInfo((3, SIZE, SIZE), RECORDS)})


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


def test_loss_and_gradients_of_residual_nets_are_pytorchs():
    net, rng = residual_net(), np.random.default_rng(0)
    values = {name: rng.normal(0, 0.3, p.shape) + (p.spec.role == "scale") for name, p in net.params.items()}
    records = records_of(net, classes=10)
    ours, metrics = gradients(net, values, records, context(net))
    x, y = map(torch.tensor, records["data"])
    trained = {name: ours[name] for name, param in net.params.items() if param.trainable}
    assert len(trained) == 15 * 3 + 2
    total, count = metrics["loss"]
    check_gradients(trained, total / count, values, lambda params: functional.cross_entropy(forward(x, params), y))
