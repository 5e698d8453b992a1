"""Contrastive divergence: against plain numpy, and machines small enough for sums over all states."""

import math

import numpy as np
import pytest

from dsinga.job import Phase
from dsinga.layers import Context, Records, Rows
from dsinga.layers.rbm import normal
from dsinga.net import NeuralNet
from dsinga.training import forward
from tests.support.rbm_cases import Exact, cd, context, machine, net_of, sigmoid, values_of
from tests.support.refusals import refused
from tests.support.training_cases import NUMPY, build, dense, layer

ROWS, UNITS, HIDDEN = 6, 7, 5


def data_of(rows: int = ROWS, units: int = UNITS) -> np.ndarray:
    return np.random.default_rng(8).uniform(0, 1, (rows, units))


def transcription(values, data, ctx: Context, steps: int, hidden_gaussian=False, visible_gaussian=False):
    """CD-k in plain numpy: return the gradients, and Σ (v - v')² after the first step."""
    w, a, b = values["w"], values.get("vis_bias", 0), values.get("hid_bias", 0)
    hidden = mean = data @ w.T + b if hidden_gaussian else sigmoid(data @ w.T + b)
    v, errors = data, []
    for turn in range(steps):
        name = "hid" if turn == 0 else f"hid/{turn}"
        if hidden_gaussian:
            sample = mean + normal(ctx, name, HIDDEN)
        else:
            sample = (ctx.uniform(name, HIDDEN) < mean) * 1.0
        v = sample @ w + a if visible_gaussian else sigmoid(sample @ w + a)
        mean = v @ w.T + b if hidden_gaussian else sigmoid(v @ w.T + b)
        errors.append(((v - data) ** 2).sum())
    total = ctx.rows.total
    gradients = {"w": (mean.T @ v - hidden.T @ data) / total}
    gradients |= {"vis_bias": (v - data).sum(axis=0) / total, "hid_bias": (mean - hidden).sum(axis=0) / total}
    return gradients, errors[0]


@pytest.mark.parametrize("steps", [1, 2, 5])
@pytest.mark.parametrize("hidden_gaussian", [False, True])
@pytest.mark.parametrize("visible_gaussian", [False, True])
def test_the_gradient_is_that_of_the_formula(steps: int, hidden_gaussian: bool, visible_gaussian: bool):
    net = net_of(UNITS, HIDDEN, ROWS, {"gaussian": visible_gaussian}, gaussian=hidden_gaussian)
    values, data, ctx = values_of(net, 0.3), data_of(), context(net)
    pushed, metrics = cd(net, values, data, ctx, steps)
    expected, error = transcription(values, data, ctx, steps, hidden_gaussian, visible_gaussian)
    assert pushed.keys() == expected.keys()
    for name, gradient in pushed.items():
        np.testing.assert_allclose(gradient, expected[name], rtol=1e-10, atol=1e-12, err_msg=name)
    assert metrics["reconstruction_error"] == (pytest.approx(error), ROWS)


def test_without_biases_only_the_weight_has_a_gradient():
    net = net_of(UNITS, HIDDEN, ROWS, bias_term=False)
    values, data, ctx = values_of(net), data_of(), context(net)
    pushed, _ = cd(net, values, data, ctx)
    assert list(pushed) == ["w"]
    np.testing.assert_allclose(pushed["w"], transcription(values, data, ctx, 1)[0]["w"], rtol=1e-10, atol=1e-12)


def exact(net: NeuralNet, values: dict[str, np.ndarray]) -> Exact:
    return Exact(values["w"], values["vis_bias"], values["hid_bias"])


def test_persistent_chains_approach_the_gradient_of_the_likelihood():
    rows = 20_000
    net = net_of(4, 3, rows, persistent=True)
    values = values_of(net)
    data = np.random.default_rng(2).integers(0, 2, (rows, 4)).astype(np.float64)
    for step in range(4):
        pushed, _ = cd(net, values, data, context(net, step=step), steps=10)
        values["hid_chain"] = pushed["hid_chain"]
    assert set(np.unique(pushed["hid_chain"])) == {0.0, 1.0}
    for name, gradient in zip(("w", "vis_bias", "hid_bias"), exact(net, values).likelihood_gradient(data), strict=True):
        np.testing.assert_allclose(pushed[name], gradient, atol=5 / math.sqrt(rows), err_msg=name)


@pytest.mark.parametrize("persistent", [False, True])
@pytest.mark.parametrize("bounds", [(0, 2, ROWS), (0, 1, 4, ROWS)])
def test_parts_of_a_batch_add_up_to_the_whole(bounds: tuple[int, ...], persistent: bool):
    net = net_of(UNITS, HIDDEN, ROWS, persistent=persistent)
    values, data = values_of(net), data_of()
    whole, metrics = cd(net, values, data, context(net), steps=3)
    parts = []
    for start, stop in zip(bounds, bounds[1:], strict=False):
        parts.append(cd(net, values, data[start:stop], context(net, Rows(start, stop, ROWS)), steps=3))
    for name, gradient in whole.items():
        np.testing.assert_allclose(sum(part[0][name] for part in parts), gradient, rtol=1e-12, atol=1e-14, err_msg=name)
    total, count = metrics["reconstruction_error"]
    assert sum(part[1]["reconstruction_error"][0] for part in parts) == pytest.approx(total)
    assert sum(part[1]["reconstruction_error"][1] for part in parts) == count == ROWS


def test_layers_below_are_computed_and_not_trained():
    net = build(dense("ip", "data", 6), layer("s", "kSigmoid", "ip"), *machine(HIDDEN, "s"), shape=(UNITS,), rows=ROWS)
    values, data = values_of(net), data_of()
    pushed, _ = cd(net, values, data, context(net))
    assert set(pushed) == {"w", "vis_bias", "hid_bias"}
    above = sigmoid(data @ values["ip_weight"].T + values["ip_bias"])
    np.testing.assert_allclose(pushed["w"], transcription(values, above, context(net), 1)[0]["w"], rtol=1e-10)


def test_a_stack_in_one_net_trains_every_machine_on_the_one_below():
    net = build(*machine(HIDDEN, name="1"), *machine(3, "hid1", "2"), shape=(UNITS,), rows=ROWS)
    values, data = values_of(net), data_of()
    pushed, metrics = cd(net, values, data, context(net))
    assert set(pushed) == {"w1", "vis1_bias", "hid1_bias", "w2", "vis2_bias", "hid2_bias"}
    assert sum("reconstruction_error" in name for name in metrics) >= 2
    w, a, b = values["w2"], values["vis2_bias"], values["hid2_bias"]
    below = sigmoid(data @ values["w1"].T + values["hid1_bias"])
    mean = sigmoid(below @ w.T + b)
    v = sigmoid((context(net).uniform("hid2", 3) < mean) @ w + a)
    expected = (sigmoid(v @ w.T + b).T @ v - mean.T @ below) / ROWS
    np.testing.assert_allclose(pushed["w2"], expected, rtol=1e-10, atol=1e-12)


def test_the_test_phase_reports_the_reconstruction_error():
    layers = machine(HIDDEN)
    train, test = (build(*layers, shape=(UNITS,), rows=ROWS, phase=phase) for phase in (Phase.kTrain, Phase.kTest))
    values, data = values_of(train), data_of()
    _, metrics = cd(train, values, data, context(train))
    outputs, tested = forward(test, values, {"data": Records(data)}, context(test), ["hid", "reconstruction(vis)"])
    assert tested == metrics
    np.testing.assert_allclose(outputs["hid"].feature, sigmoid(data @ values["w"].T + values["hid_bias"]))
    assert outputs["reconstruction(vis)"].feature.shape == (ROWS, UNITS)


@pytest.mark.parametrize("bad", [-0.1, 1.5, 255.0])
def test_data_outside_0_to_1_are_refused_for_binary_units(bad: float):
    net = net_of(UNITS, HIDDEN, ROWS)
    data = data_of()
    data[2, 3] = bad
    refused(lambda: cd(net, values_of(net), data, context(net)), "'data'", r"scale them \(std_value")


def test_normal_numbers_are_normal_and_belong_to_their_rows():
    ctx = Context(NUMPY, Phase.kTrain, Rows(0, 1000, 1000), seed=1, step=2)
    numbers = normal(ctx, "x", 101)
    assert abs(numbers.mean()) < 0.01
    assert abs(numbers.std() - 1) < 0.01
    assert abs((numbers**4).mean() - 3) < 0.15
    part = Context(NUMPY, Phase.kTrain, Rows(300, 310, 1000), seed=1, step=2)
    np.testing.assert_array_equal(normal(part, "x", 101), numbers[300:310])
