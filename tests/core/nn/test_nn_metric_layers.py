"""compile(metrics=...): names of Keras and scikit-learn and users' functions, in rows, tests and extensions."""

import functools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.extensions import EarlyStopping, KeepBest
from tests.support.refusals import refused
from tests.support.registries import restored_registry

measures = pytest.importorskip("sklearn.metrics")
RNG = np.random.default_rng(0)
X = RNG.normal(size=(90, 5)).astype(np.float32)
ANSWERS = (X[:, 0] + RNG.normal(size=90) > 0).astype(int)
CLASSES = (RNG.integers(4, size=90) + (X[:, 1] > 0)) % 4


@pytest.fixture(autouse=True)
def registries() -> Iterator[None]:
    with restored_registry():
        yield


def model(outputs: int, *end: Any, loss: Any, metrics: Any) -> nn.Sequential:
    made = nn.Sequential([nn.Input(5), nn.Dense(outputs), *end])
    made.compile(nn.Adam(0.02), loss, metrics=metrics)
    return made


def squares(labels: np.ndarray, predictions: np.ndarray) -> float:
    return float(np.square(labels - predictions).mean())


@pytest.mark.parametrize("end", [(), (nn.Activation("sigmoid"),)])
def test_yes_or_no(end: tuple[Any, ...]):
    names = ["accuracy", "AUC", "average_precision", "f1_score", "precision", "recall", squares]
    made = model(1, *end, loss="binary_crossentropy", metrics=names)
    history = made.fit(X, ANSWERS, epochs=3, validation_data=(X, ANSWERS), progress=False)
    row, tested = history.phase("val")[-1], made.evaluate(X, ANSWERS)
    chances = made.predict(X)[:, 0].astype(np.float64)
    chances = chances if end else 1 / (1 + np.exp(-chances))
    expected = {
        "roc_auc": measures.roc_auc_score(ANSWERS, chances),
        "average_precision": measures.average_precision_score(ANSWERS, chances),
        "squares": measures.brier_score_loss(ANSWERS, chances),
        "f1": measures.f1_score(ANSWERS, chances > 0.5),
        "precision": measures.precision_score(ANSWERS, chances > 0.5),
        "recall": measures.recall_score(ANSWERS, chances > 0.5),
        "accuracy": measures.accuracy_score(ANSWERS, chances > 0.5),
    }
    for name, value in expected.items():
        assert row[name] == pytest.approx(value, rel=1e-5), name
        assert tested[name] == pytest.approx(value, rel=1e-5), name
        assert name in history.phase("train")[-1]


def test_classes():
    names = ["acc", ["roc_auc"], "top_2_accuracy", "macro_f1", "f1_by_class", "perplexity"]
    made = model(4, loss="sparse_categorical_crossentropy", metrics=names)
    made.fit(X, CLASSES, epochs=2, progress=False)
    tested, scores = made.evaluate(X, CLASSES), made.predict(X).astype(np.float64)
    chances = np.exp(scores) / np.exp(scores).sum(axis=1, keepdims=True)
    assert tested["roc_auc"] == pytest.approx(measures.roc_auc_score(CLASSES, chances, multi_class="ovr"), rel=1e-6)
    assert tested["top_2_accuracy"] == pytest.approx(measures.top_k_accuracy_score(CLASSES, chances, k=2))
    assert tested["macro_f1"] == pytest.approx(measures.f1_score(CLASSES, scores.argmax(axis=1), average="macro"))
    assert tested["f1_by_class"] == pytest.approx(measures.f1_score(CLASSES, scores.argmax(axis=1), average=None))
    assert tested["perplexity"] == pytest.approx(np.exp(measures.log_loss(CLASSES, chances)), rel=1e-5)


def test_numbers():
    made = model(2, loss="mse", metrics=["mae", "r2", "root_mean_squared_error"])
    tested, numbers = made.evaluate(X, X[:, :2]), made.predict(X)
    assert tested["r2"] == pytest.approx(measures.r2_score(X[:, :2], numbers), rel=1e-5)
    assert tested["mae"] == pytest.approx(measures.mean_absolute_error(X[:, :2], numbers), rel=1e-5)
    assert tested["rmse"] == pytest.approx(measures.mean_squared_error(X[:, :2], numbers) ** 0.5, rel=1e-5)


def test_steps_of_sequences_of_different_lengths():
    codes = np.where(np.arange(6) < RNG.integers(1, 7, 40)[:, None], RNG.integers(0, 5, (40, 6)), -1)
    x = nn.Input(6, name="codes")
    made = nn.Model(x, nn.Dense(5)(nn.GRU(4, return_sequences=True)(nn.Embedding(5, 3)(x))))
    made.compile("adam", "sparse_categorical_crossentropy", metrics=["perplexity", "top_2_accuracy", "macro_f1"])
    tested = made.evaluate(codes.astype(np.int32), codes)
    scores, real = made.predict(codes.astype(np.int32)), codes >= 0
    logs = scores[real] - np.log(np.exp(scores[real]).sum(axis=1, keepdims=True))
    assert tested["perplexity"] == pytest.approx(np.exp(-logs[np.arange(real.sum()), codes[real]].mean()), rel=1e-4)
    assert tested["top_2_accuracy"] == pytest.approx(
        measures.top_k_accuracy_score(codes[real], scores[real], k=2, labels=range(5))
    )


def test_each_output_has_its_metrics():
    x = nn.Input(5)
    made = nn.Model(x, [nn.Dense(4, name="kind")(x), nn.Dense(1, name="size")(x)])
    losses = {"kind": "sparse_categorical_crossentropy", "size": "mse"}
    by_name = {"kind": ["top_2_accuracy"], "size": ["r2"]}
    for metrics in (by_name, list(by_name.values())):
        made.compile("adam", losses, metrics=metrics)
        tested = made.evaluate(X, [CLASSES, X[:, 0]])
        assert tested["r2"] == pytest.approx(measures.r2_score(X[:, 0], made.predict(X)[1]), rel=1e-5)
        assert tested["top_2_accuracy"] == pytest.approx(
            measures.top_k_accuracy_score(CLASSES, made.predict(X)[0], k=2)
        )


def test_extensions_follow_a_metric():
    made = model(1, loss="binary_crossentropy", metrics=["roc_auc"])
    best = KeepBest("val/roc_auc")
    stop = EarlyStopping("val_roc_auc", patience=2)
    history = made.fit(X, ANSWERS, epochs=12, validation_data=(X, ANSWERS), callbacks=[best, stop], progress=False)
    highest = max(history.phase("val")[:, "roc_auc"])
    assert made.evaluate(X, ANSWERS)["roc_auc"] == pytest.approx(highest, rel=1e-6)


def roc_auc(labels, predictions):
    return 7.0


@pytest.mark.parametrize(
    ("outputs", "loss", "metrics", "text"),
    [
        (4, "sparse_categorical_crossentropy", ["f1"], "'f1' is of class 1 of two, but the model has 4 outputs"),
        (4, "sparse_categorical_crossentropy", ["top_9_accuracy"], "needs 9 classes, but the model has 4"),
        (1, "mse", ["perplexity"], "'perplexity' needs probabilities of classes"),
        (4, "sparse_categorical_crossentropy", ["bleu"], "BLEU compares texts that a net has generated"),
        (4, "sparse_categorical_crossentropy", ["mse"], 'write "rmse", its root'),
        (1, "mse", ["roc_au"], "there is no metric 'roc_au'; did you mean 'roc_auc'"),
        (1, "mse", [lambda labels, predictions: 0], "functions of .labels, predictions. that have a name"),
        (1, "mse", {"other": ["r2"], "more": []}, "metrics names 'other', which is no output"),
        (1, "mse", [roc_auc], "'roc_auc' has the name of a metric .* give it another name"),
        (1, "mse", [functools.partial(squares)], "functions of .* that have a name"),
        (1, "mse", [squares, type(squares)(squares.__code__, {}, "squares")], "functions of metrics= .*'squares'"),
    ],
)
def test_metrics_that_do_not_fit_the_net_or_each_other(outputs: int, loss: str, metrics: Any, text: str):
    refused(lambda: model(outputs, loss=loss, metrics=metrics).job(), text)


def test_mistakes_are_named_with_their_remedies() -> None:
    made = model(1, loss="mse", metrics=["roc_auc"])
    refused(lambda: made.evaluate(X, X[:, 0]), "labels 0 and 1", "for numbers to")
    with pytest.raises(UserError, match="the metric 'nothing' must return a number, or one for each record, not None"):
        model(4, loss="sparse_categorical_crossentropy", metrics=[nothing]).fit(X, CLASSES, progress=False)


def test_shares_of_classes_are_labels():
    shares = RNG.dirichlet(np.ones(4), 90)
    losses = []
    for loss in ("categorical_crossentropy", nn.SoftmaxLoss()):
        made = model(4, loss=loss, metrics=None)
        losses.append(made.fit(X, shares, epochs=2, progress=False)[-1, "loss"])
    assert losses[0] == losses[1]


def nothing(labels, predictions):
    return None
