"""Nets for records of tables: TabM trains as that of the package tabm with PyTorch's AdamW; what they refuse."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from dsinga import models, nn
from dsinga.base.errors import UserError
from dsinga.estimators import Classifier

ROWS, RNG = 40, np.random.default_rng(0)
NUMBERS = RNG.normal(size=(ROWS, 3))
CODES = np.stack([RNG.integers(0, 4, ROWS), RNG.integers(0, 12, ROWS)], axis=1)
X = np.concatenate([NUMBERS, NUMBERS[:, :1] > 0, CODES], axis=1).astype(np.float32)  # 3 numbers, a flag, 2 categories
Y = (NUMBERS[:, 0] * NUMBERS[:, 1] > 0).astype(np.int64)
SMALL = {"members": 4, "depth": 2, "width": 8}
ANSWERS = np.stack([Y, 1 - Y], axis=1).astype(np.float32)


def test_tabm_trains_as_that_of_the_package() -> None:
    """The params of both after 20 steps of AdamW in float32, from the same ones."""
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
        peer.output.weight.copy_(torch.tensor(params["heads_weight"].transpose(0, 2, 1)))
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


def test_a_model_whose_loss_is_a_symbol_is_saved(tmp_path: Any) -> None:
    model = models.tabm(3, 1, [4, 12], 2, **SMALL)
    model.fit(X, Y, progress=False)
    model.save(tmp_path / "model")
    np.testing.assert_array_equal(nn.load_model(tmp_path / "model").predict(X), model.predict(X))


@pytest.mark.parametrize(
    ("arguments", "fault"),
    [
        ((0,), r"a record has 0 numbers, 0 flags and the categories \[\]; give at least one column"),
        ((2, 0, (), 1, "regression"), 'task is "classes", "answers" or "numbers", not \'regression\''),
    ],
)
def test_records_without_columns_and_unknown_tasks_are_refused(arguments: tuple[Any, ...], fault: str) -> None:
    with pytest.raises(UserError, match=fault):
        models.tabm(*arguments)
