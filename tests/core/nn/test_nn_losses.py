"""Losses by the names of Keras: their values by Keras's formulas, what they take, and faults."""

import numpy as np
import pytest
from scipy import special
from scipy.spatial import distance

from dsinga import nn
from dsinga.base.registry import register
from dsinga.layers.losses.mean_loss import MeanLoss
from tests.support.refusals import refused
from tests.support.registries import restored_registry

RNG = np.random.default_rng(0)
X = RNG.normal(size=(50, 6)).astype(np.float32)
CLASSES = RNG.integers(3, size=50)
NUMBERS = RNG.normal(size=(50, 3)).astype(np.float32)
ANSWERS = RNG.integers(2, size=(50, 3)).astype(np.float32)


def model(*end, loss, **compiled) -> nn.Sequential:
    made = nn.Sequential([nn.Input(6), nn.Dense(3, name="scores"), *end])
    made.compile("sgd", loss, **compiled)
    return made


def scores(made: nn.Model) -> np.ndarray:
    """Return the scores by numpy."""
    return X @ made.params["scores_weight"].T + made.params["scores_bias"]


@pytest.mark.parametrize("end", [(), (nn.Softmax(),)])
@pytest.mark.parametrize("loss", ["sparse_categorical_crossentropy", "categorical_crossentropy"])
def test_cross_entropy_from_scores_or_from_a_softmax(end, loss):
    made = model(*end, loss=loss, metrics=["accuracy"])
    chances = special.softmax(scores(made), axis=1)
    labels = CLASSES if loss.startswith("sparse") else np.eye(3)[CLASSES]
    metrics = made.evaluate(X, labels)
    assert metrics["loss"] == pytest.approx(-np.log(chances[np.arange(50), CLASSES]).mean(), rel=1e-5)
    assert metrics["accuracy"] == pytest.approx((chances.argmax(axis=1) == CLASSES).mean())
    np.testing.assert_allclose(made.predict(X), chances if end else scores(made), rtol=1e-4, atol=1e-5)


def focal(x: np.ndarray, t: np.ndarray) -> np.ndarray:
    right = special.expit(np.where(t == 1, x, -x))
    return -np.where(t == 1, 0.25, 0.75) * (1 - right) ** 2 * np.log(right)


SHARES = special.softmax(NUMBERS, axis=1)
FORMULAS = {  # by loss: labels, and the loss of each number, or of each row, from scores and labels
    "mae": (NUMBERS, lambda x, t: np.abs(x - t)),
    "mean_squared_error": (NUMBERS, lambda x, t: (x - t) ** 2),
    "huber": (NUMBERS, lambda x, t: special.huber(1, x - t)),
    nn.HuberLoss(delta=0.5, scale=2): (NUMBERS, lambda x, t: 2 * special.huber(0.5, x - t).sum(axis=1)),
    "binary_crossentropy": (ANSWERS, lambda x, t: -special.log_expit(np.where(t == 1, x, -x))),
    "focal": (ANSWERS, focal),
    "kl_divergence": (SHARES, lambda x, t: special.rel_entr(t, special.softmax(x, axis=1)).sum(axis=1)),
    "cosine_similarity": (NUMBERS, lambda x, t: [distance.cosine(*pair) for pair in zip(x, t, strict=True)]),
}


@pytest.mark.parametrize("loss", FORMULAS, ids=str)
def test_losses_that_compare_with_numbers(loss):
    labels, formula = FORMULAS[loss]
    made = model(loss=loss)
    assert made.evaluate(X, labels)["loss"] == pytest.approx(np.mean(formula(scores(made), labels)), rel=1e-5)


@pytest.mark.parametrize(
    ("end", "loss"),
    [
        (nn.Softmax(), "kld"),
        (nn.Activation("sigmoid"), nn.FocalLoss()),
        (nn.Activation("sigmoid"), "binary_crossentropy"),
    ],
)
def test_a_loss_takes_the_scores_before_an_activation(end, loss):
    labels = SHARES
    assert model(end, loss=loss).evaluate(X, labels) == pytest.approx(model(loss=loss).evaluate(X, labels), rel=1e-5)


def test_without_labels_the_records_are_the_target():
    made = nn.Sequential([nn.Input(6), nn.Dense(2), nn.Dense(6, name="copy")])
    made.compile("sgd", "mse")
    found = made.evaluate(X)["loss"]
    assert found == pytest.approx(((made.predict(X) - X) ** 2).mean(), rel=1e-5)


def test_a_users_loss_declares_its_labels():
    with restored_registry():
        register("layer", "Unlabelled")(type("Unlabelled", (MeanLoss,), {"source_count": 2}))
        made = model(loss=nn.Unlabelled())
        refused(lambda: made.evaluate(X, NUMBERS), "Unlabelled reads no labels", r"labels = Labels\(source=1")
        assert model(nn.Dense(6), loss=nn.Unlabelled()).evaluate(X)  # of the records


def test_an_explicit_loss_has_its_sources():
    x = nn.Input(6)
    code = nn.Dense(2)(x)
    copy = nn.Dense(6)(code)
    made = nn.Model(x, [code, copy])
    made.compile("sgd", [nn.EuclideanLoss()(copy, x)])
    codes, copies = made.predict(X)
    assert codes.shape == (50, 2)
    assert made.evaluate(X)["loss"] == pytest.approx(((copies - X) ** 2).sum(axis=1).mean(), rel=1e-5)


def test_two_outputs_have_a_loss_and_labels_each():
    x = nn.Input(6)
    hidden = nn.Dense(8, activation="relu")(x)
    kind, size = nn.Dense(3, name="kind")(hidden), nn.Dense(1, name="size")(hidden)
    made = nn.Model(x, [kind, size])
    made.compile(
        "adam", {"kind": "sparse_categorical_crossentropy", "size": "mse"}, loss_weights={"kind": 1, "size": 0.5}
    )
    labels = [CLASSES, NUMBERS[:, 0]]
    history = made.fit(X, labels, epochs=5, progress=False, validation_data=(X, labels)).history
    assert history["loss"][-1] < history["loss"][0]
    metrics = made.evaluate(X, labels)
    assert history["val_size_loss/loss"][-1] == pytest.approx(metrics["size_loss/loss"], rel=1e-4)
    kinds, sizes = made.predict(X)
    entropy = -special.log_softmax(kinds, axis=1)[np.arange(50), CLASSES].mean()
    error = ((sizes[:, 0] - NUMBERS[:, 0]) ** 2).mean()
    assert metrics["kind_loss/loss"] == pytest.approx(entropy, rel=1e-4)
    assert metrics["loss"] == pytest.approx(entropy + 0.5 * error, rel=1e-4)


def test_a_loss_layer_has_settings():
    made = model(loss=nn.SoftmaxLoss(topk=2))
    best = np.argsort(scores(made), axis=1)[:, 1:]
    expected = (best == CLASSES[:, None]).any(axis=1).mean()
    assert made.evaluate(X, CLASSES)["accuracy"] == pytest.approx(expected)
    assert model(loss=nn.HingeLoss("L2")).evaluate(X, CLASSES)["loss"] > 0
