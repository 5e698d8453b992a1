"""A small net learns to read handwritten digits."""

import numpy as np
import pytest

from dsinga.job import NetConf, Phase, UpdaterConf
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import bp, create_updater, forward, initial_values
from tests.support.training_cases import layer

STEPS, BATCH = 200, 50


def mlp(phase, rows):
    init = {"type": "kUniformFanInOut"}
    data = layer("data", "kRecordInput", store_conf={"path": "digits", "std_value": 16})
    layers = [
        data,
        layer("hidden", "kInnerProduct", "data", innerproduct_conf={"num_output": 32}, param=[{"init": init}]),
        layer("tanh", "kSTanh", "hidden"),
        layer("top", "kInnerProduct", "tanh", innerproduct_conf={"num_output": 10}, param=[{"init": init}]),
        layer("loss", "kSoftmaxLoss", "top", "data"),
    ]
    return create_net(NetConf(layer=layers), phase, {"data": RecordInfo((64,), rows)})


@pytest.fixture(scope="module")
def digits():
    """Scikit-learn's digits in a fixed random order: (images (1797, 64) float32, labels)."""
    datasets = pytest.importorskip("sklearn.datasets")
    images, labels = datasets.load_digits(return_X_y=True)
    order = np.random.default_rng(0).permutation(len(labels))
    return images[order].astype(np.float32), labels[order]


def train(digits, settings, steps=STEPS):
    """Train in a plain loop on the first 1500 digits; return the params, and the loss of each step."""
    images, labels = digits
    net, ops, updater = mlp(Phase.kTrain, BATCH), get_ops(), create_updater(UpdaterConf(**settings))
    values = initial_values(net.params, seed=1)
    states = {name: updater.create_state(value.size) for name, value in values.items()}
    losses = []
    for step in range(steps):
        rows = np.arange(step * BATCH, (step + 1) * BATCH) % 1500
        pushed = {}
        ctx = Context(ops, Phase.kTrain, Rows(0, BATCH, BATCH), seed=1, step=step)
        metrics = bp(net, values, {"data": Records(images[rows], labels[rows])}, ctx, pushed.__setitem__)
        for name, gradient in pushed.items():
            updater.update(step, values[name].reshape(-1), ops.to_numpy(gradient).reshape(-1), states[name])
        losses.append(metrics["loss"][0] / metrics["loss"][1])
    return values, losses


@pytest.mark.parametrize(
    "settings",
    [
        {"type": "kSGD", "momentum": 0.9, "weight_decay": 1e-4, "learning_rate": {"base_lr": 0.05, "type": "kFixed"}},
        {"type": "kAdaGrad", "learning_rate": {"base_lr": 0.05, "type": "kFixed"}},
        {"type": "kAdam", "learning_rate": {"base_lr": 0.005, "type": "kFixed"}},
    ],
    ids=lambda settings: settings["type"],
)
def test_a_small_net_learns_to_read_digits(digits, settings):
    values, losses = train(digits, settings)
    assert losses[0] == pytest.approx(np.log(10), rel=0.5)
    images, labels = digits
    ctx = Context(get_ops(), Phase.kTest, Rows(0, 297, 297))
    _, metrics = forward(mlp(Phase.kTest, 297), values, {"data": Records(images[1500:], labels[1500:])}, ctx)
    assert metrics["accuracy"][0] / metrics["accuracy"][1] > 0.9


def test_two_runs_have_the_same_bits(digits):
    settings = {"type": "kSGD", "momentum": 0.9}
    (values, losses), (other_values, other_losses) = train(digits, settings, 5), train(digits, settings, 5)
    assert losses == other_losses
    for name in values:
        np.testing.assert_array_equal(values[name], other_values[name])
