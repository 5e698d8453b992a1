"""Nets for records of tables beside the package tabm and PyTorch's AdamW: what they train, predict and refuse."""

from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.estimators import Classifier
from dsinga.training.schedules import schedule

ROWS, RNG = 40, np.random.default_rng(0)
NUMBERS = RNG.normal(size=(ROWS, 3))
CODES = np.stack([RNG.integers(0, 4, ROWS), RNG.integers(0, 12, ROWS)], axis=1)
X = np.concatenate([NUMBERS, NUMBERS[:, :1] > 0, CODES], axis=1).astype(np.float32)  # 3 numbers, a flag, 2 categories
Y = (NUMBERS[:, 0] * NUMBERS[:, 1] > 0).astype(np.int64)
SMALL = {"members": 4, "depth": 2, "width": 8}
BINS = [[-1.0, 0.0, 1.0], [-2.0, 0.0, 0.5, 2.0], [0.0]]
ANSWERS = np.stack([Y, 1 - Y], axis=1).astype(np.float32)


def test_tabm_trains_as_that_of_the_package() -> None:
    torch, tabm = pytest.importorskip("torch"), pytest.importorskip("tabm")
    x, steps, members = X[:, :3], 20, SMALL["members"]
    model = models.tabm(3, outputs=2, dropout=0.0, **SMALL)
    net = nn.LocalNet(model.job(x, Y, train_steps=1), x, Y, threads=1)
    params, updater = net.initial_params(), net.updater()
    sizes = {"n_blocks": 2, "d_block": 8, "dropout": 0.0, "k": members, "arch_type": "tabm"}
    peer = tabm.TabM(n_num_features=3, d_out=2, start_scaling_init="random-signs", **sizes)
    tensors = {f"members{layer}_{role}": getattr(peer.backbone.blocks[layer - 1][0], role) for layer in (1, 2)
               for role in ("weight", "r", "s", "bias")}  # fmt: skip
    with torch.no_grad():
        for name, tensor in tensors.items():
            tensor.copy_(torch.tensor(params[name]))
        peer.output.weight.copy_(torch.tensor(params["heads_weight"]))
        peer.output.bias.copy_(torch.tensor(params["heads_bias"]))
    optimizer = torch.optim.AdamW(peer.parameters(), lr=0.002, weight_decay=3e-4)
    labels = torch.tensor(Y).repeat_interleave(members)
    for _ in range(steps):
        gradients, metrics = net.backward(params, x, Y)
        updater.step(params, gradients)
        loss = torch.nn.functional.cross_entropy(peer(torch.tensor(x)).flatten(0, 1), labels)
        assert metrics["loss"] == pytest.approx(float(loss.detach()), rel=1e-5)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    for name, tensor in tensors.items():
        np.testing.assert_allclose(params[name], tensor.detach().numpy(), rtol=1e-4, atol=2e-5, err_msg=name)


@pytest.mark.parametrize(
    ("task", "outputs", "y"),
    [("classes", 2, Y), ("answers", 2, ANSWERS), ("numbers", 1, NUMBERS[:, 0].astype(np.float32))],
)
def test_a_prediction_is_the_mean_of_the_members_and_validation_tells_its_loss(task: Any, outputs: int, y: Any) -> None:
    model = models.tabm(3, 1, [4, 12], outputs, task, **SMALL)
    model.fit(X, y, epochs=2, batch_size=20, progress=False)
    each, predicted = model.features(X, "heads"), model.predict(X)
    if task == "classes":
        powers = np.exp(each)
        mean = (powers / powers.sum(axis=2, keepdims=True)).mean(axis=1)
        loss = -np.log(mean[np.arange(ROWS), Y]).mean()
    elif task == "answers":
        mean = (1 / (1 + np.exp(-each))).mean(axis=1)
        loss = -np.where(y > 0, np.log(mean), np.log(1 - mean)).mean()
    else:
        mean = each.mean(axis=1)
        loss = np.square(mean[:, 0] - y).mean()
    np.testing.assert_allclose(predicted, mean, rtol=1e-5, atol=1e-6)
    assert model.evaluate(X, y, return_dict=True)["loss"] == pytest.approx(loss, rel=1e-5)


def test_an_estimator_predicts_the_mean_probability() -> None:
    model = models.tabm(3, 1, [4, 12], 2, **SMALL)
    classifier = Classifier(model, epochs=2, batchsize=20, class_weight="balanced").fit(X, Y)
    model.set_weights([classifier.params_[name] for name in model.params])
    np.testing.assert_allclose(classifier.predict_proba(X), model.predict(X), rtol=1e-5, atol=1e-6)


def test_numbers_have_bins_and_nets_of_bins_begin_with_a_linear_function() -> None:
    model = models.tabm(3, 1, [4, 12], 2, bins=BINS, **{**SMALL, "depth": None})
    layers = {conf.name: conf for conf in model.job(X, Y).net.layer}
    assert {"members1", "members2"} == {name for name in layers if name.startswith("members")}
    assert layers["bins"].piecewiselinear_conf.bins() == [*BINS[:2], [-0.5, 0.5]]
    assert list(layers["members1"].param[1].init.block) == [16, 16, 16, 1, 4, 8]
    numbers = np.linspace(-3, 3, ROWS, dtype=np.float32)[:, None] * np.ones((1, 6), np.float32)
    numbers[:, 3:] = 0
    curves = model.features(numbers, "bins")
    np.testing.assert_allclose(np.diff(curves, 2, axis=0), 0, atol=1e-5)
    model.fit(X, Y, epochs=2, progress=False)
    assert np.abs(np.diff(model.features(numbers, "bins"), 2, axis=0)).max() > 1e-4


@pytest.mark.parametrize(
    ("task", "outputs", "y"),
    [("classes", 2, Y), ("answers", 2, ANSWERS), ("numbers", 1, NUMBERS[:, 0].astype(np.float32))],
)
def test_realmlp_learns_each_task(task: Any, outputs: int, y: Any) -> None:
    model = models.realmlp(3, 1, [4, 12], outputs, task, width=16, steps=80)
    losses = model.fit(X, y, epochs=40, batch_size=20, progress=False).history["loss"]
    assert losses[-1] < 0.6 * losses[0]
    job = model.job(X, y)
    layers = {conf.name: conf for conf in job.net.layer}
    assert layers["scaled"].param[0].lr_scale == 6
    assert layers["waves"].param[0].lr_scale == pytest.approx(0.1)
    rate = schedule(job.updater.learning_rate)
    highest = 0.2 if task == "numbers" else 0.04
    peaks, ends = [80 * (2 ** (cycle + 0.5) - 1) / 15 for cycle in range(4)], [0, 80 / 15, 80 * 3 / 15, 80 * 7 / 15, 80]
    np.testing.assert_allclose([rate(step) for step in peaks], highest, rtol=1e-6)
    np.testing.assert_allclose([rate(step) for step in ends], 0, atol=1e-9)


def test_a_dense_layer_of_realmlp_learns_as_one_divided_by_the_root_of_its_inputs() -> None:
    """w = W/√inputs trained with the factors of :func:`models.realmlp`, beside W trained by PyTorch's AdamW."""
    torch = pytest.importorskip("torch")
    model = models.realmlp(0, 3, outputs=2, depth=0, learning_rate=0.01, label_smoothing=0.0)
    x, steps = X[:, :3], 10
    net = nn.LocalNet(model.job(x, Y, train_steps=1), x, Y, threads=1)
    params, updater = net.initial_params(), net.updater()
    tensors = {name: torch.tensor(value * (3**0.5 if name == "scores_weight" else 1)) for name, value in params.items()}
    for tensor in tensors.values():
        tensor.requires_grad_()
    rates, decays = {"scaled_scale": 0.06, "scores_weight": 0.01, "scores_bias": 0.001}, {"scores_bias": 0.0}
    groups = [
        {"params": [tensors[name]], "lr": rates[name], "weight_decay": decays.get(name, 0.02)} for name in tensors
    ]
    optimizer = torch.optim.AdamW(groups, betas=(0.9, 0.95), eps=1e-12)
    for _ in range(steps):
        updater.step(params, net.backward(params, x, Y)[0])
        scores = (
            torch.tensor(x) * tensors["scaled_scale"] @ (tensors["scores_weight"] / 3**0.5).T + tensors["scores_bias"]
        )
        optimizer.zero_grad()
        torch.nn.functional.cross_entropy(scores, torch.tensor(Y)).backward()
        optimizer.step()
    expected = {name: tensor.detach().numpy() for name, tensor in tensors.items()}
    expected["scores_weight"] = expected["scores_weight"] / 3**0.5
    for name, value in params.items():
        np.testing.assert_allclose(value, expected[name], rtol=1e-4, atol=1e-5, err_msg=name)


def test_a_model_whose_loss_is_a_symbol_is_saved(tmp_path: Any) -> None:
    model = models.tabm(3, 1, [4, 12], 2, **SMALL)
    model.fit(X, Y, progress=False)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(nn.load_model(tmp_path / "model").predict(X), model.predict(X))
