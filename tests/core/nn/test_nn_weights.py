"""Weights of records, classes, steps and points, in training and in tests, against formulas and scikit-learn."""

from typing import Any

import dask.array as da
import numpy as np
import pandas as pd
import pytest
from distributed import Client
from sklearn.utils.class_weight import compute_class_weight

import dsinga
from dsinga import nn
from tests.support.refusals import refused
from tests.support.small_job import assert_same

RNG = np.random.default_rng(0)
Y = RNG.integers(3, size=60)
X = (RNG.normal(size=(60, 4)) + Y[:, None]).astype(np.float32)
W = RNG.random(60).astype(np.float32) * 3
STEPS = {"x": np.repeat(X[:, None], 5, axis=1) + np.arange(5)[:, None].astype(np.float32), "w": RNG.random((60, 5))}
LABELS_OF_STEPS = RNG.integers(3, size=(60, 5))
QUIET: dict[str, Any] = {"progress": False}


def model(loss: Any = "sparse_categorical_crossentropy", outputs: int = 3) -> nn.Sequential:
    made = nn.Sequential([nn.Input(4), nn.Dense(8, activation="tanh"), nn.Dense(outputs)])
    made.compile(nn.SGD(0.1), loss)
    return made


def of_steps(loss: Any = "sparse_categorical_crossentropy", outputs: int = 3) -> nn.Sequential:
    made = nn.Sequential([nn.Input((5, 4)), nn.GRU(6, return_sequences=True), nn.Dense(outputs)])
    made.compile(nn.SGD(0.1), loss)
    return made


def of_points() -> nn.Sequential:
    made = nn.Sequential([nn.Input((1, 6, 5)), nn.Conv2D(3, 3, padding="same")])
    made.compile(nn.SGD(0.1), "sparse_categorical_crossentropy")
    return made


IMAGES, LABELS_OF_POINTS = RNG.random((60, 1, 6, 5)).astype(np.float32), RNG.integers(3, size=(60, 6, 5))
# By kind: a model, records, labels, weights, and the loss of each weighted number from predictions.
KINDS: dict[str, tuple[Any, Any, Any, Any]] = {
    "records": (model, X, Y, W),
    "steps": (of_steps, STEPS["x"], LABELS_OF_STEPS, STEPS["w"]),
    "records of steps": (of_steps, STEPS["x"], LABELS_OF_STEPS, W),
    "points": (of_points, IMAGES, LABELS_OF_POINTS, RNG.random((60, 6, 5))),
    "records of points": (of_points, IMAGES, LABELS_OF_POINTS, W),
    "numbers": (lambda: model("mse", 1), X, X[:, :1] * 2, W),
    "numbers of steps": (lambda: of_steps("mae", 1), STEPS["x"], STEPS["x"][..., :1], STEPS["w"]),
    "answers": (lambda: model("binary_crossentropy", 1), X, (Y > 0).astype(float)[:, None], W),
    "answers of steps": (
        lambda: of_steps("binary_crossentropy", 1), STEPS["x"], (LABELS_OF_STEPS > 0)[..., None] * 1.0, STEPS["w"],
    ),
}  # fmt: skip


def losses_of(made: nn.Sequential, x: Any, y: Any) -> np.ndarray:
    """Return the loss of each label, in the shape of the labels' records, steps or points."""
    outputs = made.predict(x).astype(np.float64)
    loss = made.objective.losses[0]
    if loss == "mse":
        return ((outputs - y) ** 2)[..., 0]
    if loss == "mae":
        return np.abs(outputs - y)[..., 0]
    if loss == "binary_crossentropy":
        return (np.logaddexp(0, outputs) - y * outputs)[..., 0]
    axis = 1 if outputs.ndim == 4 else -1
    log_p = outputs - np.log(np.exp(outputs).sum(axis=axis, keepdims=True))
    return -np.take_along_axis(log_p, np.expand_dims(y, axis), axis=axis).squeeze(axis)


@pytest.mark.parametrize("kind", KINDS)
def test_weighted_losses_are_sums_over_the_number_of_records(kind: str, threads: Client) -> None:
    make, x, y, w = KINDS[kind]
    made = make()
    made.fit(x, y, epochs=1, **QUIET)
    losses = losses_of(made, x, y)
    expected = (losses * np.asarray(w).reshape(*np.shape(w), *[1] * (losses.ndim - np.ndim(w)))).mean()
    assert made.evaluate(x, y, sample_weight=w, batch_size=25)["loss"] == pytest.approx(expected, rel=1e-4)
    history = make()
    history.params = made.params
    frozen = nn.SGD(1e-9)
    history.compile(frozen, made.objective.losses[0])
    rows = history.fit(x, y, validation_data=(x, y, w), epochs=1, **QUIET).history
    assert rows["val_loss"][0] == pytest.approx(expected, rel=1e-3)
    history.params = made.params
    rows = history.fit(x, y, sample_weight=w, batch_size=60, epochs=1, **QUIET).history
    assert rows["loss"][0] == pytest.approx(expected, rel=1e-3)


FACES: dict[str, dict[str, Any]] = {"here": {}, "workers": {"workers": 2}, "client": {"client": None}, "job": {}}


@pytest.mark.parametrize("face", FACES)
def test_validation_records_have_weights_wherever_a_pair_is_taken(face: str, threads: Client) -> None:
    options = {"client": threads} if face == "client" else FACES[face]
    made = model()
    trained = nn.from_job(made.job(X, Y, epochs=1)) if face == "job" else made
    rows = trained.fit(X, Y, validation_data=(X[:20], Y[:20], W[:20]), epochs=2, **options, **QUIET).history
    plain = model()
    plain.fit(X, Y, validation_data=(X[:20], Y[:20]), epochs=2, **options, **QUIET)
    assert_same(trained.params, plain.params)  # training is as it was
    plain.params = trained.params
    expected = plain.evaluate(X[:20], Y[:20], sample_weight=W[:20])
    assert rows["val_loss"][-1] == pytest.approx(expected["loss"], rel=1e-5)
    assert rows["val_accuracy"][-1] == pytest.approx(expected["accuracy"])
    right = plain.predict(X[:20]).argmax(axis=1) == Y[:20]
    assert expected["accuracy"] == pytest.approx(np.average(right, weights=W[:20]))
    lazily = plain.evaluate(da.from_array(X[:20]), da.from_array(Y[:20]), sample_weight=W[:20], client=threads)
    assert lazily["loss"] == pytest.approx(expected["loss"], rel=1e-5)


def test_classes_have_weights_in_all_forms_of_labels() -> None:
    factors = {0: 0.5, 1: 2.0}
    by_record = np.select([Y == 0, Y == 1], [0.5, 2.0], 1.0)
    for labels, loss, outputs in (
        (Y, "sparse_categorical_crossentropy", 3),
        (Y.tolist(), "sparse_categorical_crossentropy", 3),
        (pd.Series(Y), "sparse_categorical_crossentropy", 3),
        (Y[:, None], "sparse_categorical_crossentropy", 3),
        (np.eye(3)[Y], "categorical_crossentropy", 3),
        (np.eye(3, dtype=np.float32)[Y], nn.SoftmaxLoss(), 3),
    ):
        first, second = model(loss, outputs), model(loss, outputs)
        first.fit(X, labels, class_weight=factors, epochs=2, **QUIET)
        second.fit(X, labels, sample_weight=by_record, epochs=2, **QUIET)
        assert_same(first.params, second.params)
    last = np.sort(Y)  # whose highest class is held out
    first, second = model(), model()
    first.fit(X, last, class_weight={1: 2.0, 2: 9.0}, validation_split=0.4, epochs=1, **QUIET)
    second.fit(X[:36], last[:36], sample_weight=np.where(last[:36] == 1, 2.0, 1.0), epochs=1, **QUIET)
    assert_same(first.params, second.params)
    answers = (Y > 0).astype(np.float32)
    for labels in (answers, answers[:, None], answers.astype(bool), answers.astype(int)[:, None]):
        first, second = (model("binary_crossentropy", 1) for _ in range(2))
        first.fit(X, labels, class_weight={0: 3.0}, epochs=2, **QUIET)
        second.fit(X, labels, sample_weight=np.where(answers, 1.0, 3.0), epochs=2, **QUIET)
        assert_same(first.params, second.params)
    for kind, labels in (("steps", LABELS_OF_STEPS), ("points", LABELS_OF_POINTS)):
        make, x, *_ = KINDS[kind]
        first, second = make(), make()
        first.fit(x, labels, class_weight={1: 4.0}, sample_weight=W, epochs=1, **QUIET)
        weights = np.where(labels == 1, 4.0, 1.0) * W.reshape(60, *[1] * (labels.ndim - 1))
        second.fit(x, labels, sample_weight=weights, epochs=1, **QUIET)
        assert_same(first.params, second.params)


def test_balanced_weights_are_those_of_scikit_learn() -> None:
    y = np.where(Y == 2, 1, Y)  # twice as many of class 1
    balanced = compute_class_weight("balanced", classes=np.unique(y), y=y)
    first, second = model(), model()
    first.fit(X, y, class_weight="balanced", epochs=2, **QUIET)
    second.fit(X, y, sample_weight=balanced[y], epochs=2, **QUIET)
    assert_same(first.params, second.params)


def test_the_last_records_of_arrays_validate() -> None:
    def fit(**options: Any) -> tuple[nn.Sequential, dict[str, list[float]]]:
        made = model()
        return made, made.fit(epochs=2, **options, **QUIET).history

    first, rows = fit(x=X, y=Y, sample_weight=W, validation_split=0.25)
    second, expected = fit(x=X[:45], y=Y[:45], sample_weight=W[:45], validation_data=(X[45:], Y[45:], W[45:]))
    assert rows == expected
    assert_same(first.params, second.params)
    for x, y in ((X, [*Y.tolist()]), ((X, Y), None), (da.from_array(X), da.from_array(Y))):
        _, rows = fit(x=x, y=y, validation_split=0.25)
        assert rows["val_loss"]
    refused(lambda: fit(x="records.zarr", y=Y, validation_split=0.25), "validation_split takes arrays")


@pytest.mark.parametrize("count", [1, 2])
def test_fewer_validation_records_than_workers_give_the_metrics_of_one_worker(count: int) -> None:
    rows = [
        model().fit(X, Y, validation_data=(X[:count], Y[:count]), epochs=1, workers=workers, **QUIET).history
        for workers in (1, 3)
    ]
    assert rows[0]["val_loss"] == pytest.approx(rows[1]["val_loss"], rel=1e-5)
    assert rows[0]["val_accuracy"] == rows[1]["val_accuracy"]


def test_no_records_have_no_predictions(threads: Client) -> None:
    for make, x, *_ in KINDS.values():
        made = make()
        expected = made.predict(x[:2])
        for options in ({}, {"client": threads}, {"batch_size": 7}):
            empty = made.predict(x[:0], **options)
            assert (empty.shape, empty.dtype) == ((0, *expected.shape[1:]), expected.dtype)
    made = model()
    made.fit(X, Y, **QUIET)
    assert made.predict(da.from_array(X[:0]), client=threads).shape == (0, 3)
    assert dsinga.predict(made.job(X, Y, epochs=1), made.params, "dense_1", data=X[:0]).shape == (0, 3)


def test_arguments_of_keras_that_mean_what_happens_anyway_are_taken() -> None:
    for verbose in (0, 1, 2, "auto"):
        model().fit(X, Y, epochs=1, verbose=verbose, shuffle=True, initial_epoch=0)
    made = model()
    assert made.predict(X, verbose=0).shape == (60, 3)
    assert made.evaluate(X, Y, verbose=0, return_dict=True).keys() == {"loss", "accuracy"}
    layers = [
        nn.Input(4, dtype="float32"), nn.Dense(6, dtype=np.float32), nn.LayerNormalization(epsilon=1e-5),
        nn.BatchNormalization(epsilon=1e-5, center=True, scale=True), nn.Dense(3),
    ]  # fmt: skip
    plain = [nn.Input(4), nn.Dense(6), nn.LayerNormalization(), nn.BatchNormalization(), nn.Dense(3)]
    assert str(nn.Sequential(layers)) == str(nn.Sequential(plain))


def test_the_params_of_a_layer_are_set_for_all_models_that_have_it_and_further_training_begins_with_them():
    shared = nn.Dense(3)
    one, two = (nn.Sequential([nn.Input(4), shared]) for _ in range(2))
    for made in (one, two):
        made.compile("sgd", "sparse_categorical_crossentropy")
    one.train_on_batch(X, Y)
    weights = shared.get_weights()
    refused(lambda: shared.set_weights([]), "takes arrays of the shapes", "not none")
    shared.set_weights([np.zeros_like(weight) for weight in weights])
    assert not two.predict(X).any()
    weights[0][:] = 7  # a copy
    expected = nn.Sequential([nn.Input(4), nn.Dense(3)])
    expected.compile("sgd", "sparse_categorical_crossentropy")
    expected.set_weights([np.zeros_like(weight) for weight in weights])
    for made in (one, expected):
        made.train_on_batch(X, Y)
    for array, other in zip(two.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(array, other)
