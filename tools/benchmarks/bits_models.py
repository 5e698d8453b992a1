"""The models of ``python -m tools.benchmarks.bits``: fit, evaluate and predict of dsinga.nn, here and on a cluster."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client

from dsinga import loads, nn
from dsinga.extensions import EarlyStopping, KeepBest, ReduceOnPlateau
from tools.benchmarks.bits_report import Call, Report, report

RNG = np.random.default_rng(12)
X, Y = RNG.integers(0, 255, (180, 3, 8, 8), np.uint8), RNG.integers(0, 5, 180)
TEST, TEST_Y = RNG.integers(0, 255, (60, 3, 8, 8), np.uint8), RNG.integers(0, 5, 60)
IMAGES = RNG.integers(0, 255, (40, 3, 16, 16), np.uint8)
CODES = RNG.integers(0, 20, (180, 7)).astype(np.int32)
WEIGHTED = {"sample_weight": np.where(Y == 3, 2.0, 0.5)}
QUIET: dict[str, Any] = {"progress": False, "batch_size": 32}


def sequential(optimizer: Any = "adam", classes: int = 5) -> nn.Model:
    """Return a compiled convolutional net."""
    model = nn.Sequential(
        [
            nn.Rescaling(1 / 255),
            nn.RandomFlip(),
            nn.Conv2D(4, 3, padding="same", activation="relu"),
            nn.BatchNormalization(),
            nn.MaxPooling2D(2),
            nn.Flatten(),
            nn.Dropout(0.2),
            nn.Dense(8, activation="relu"),
            nn.Dense(classes, activation="softmax"),
        ]
    )
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def functional() -> nn.Model:
    """Return a compiled net with two inputs and two outputs, and a layer that is called twice."""
    image, ink = nn.Input(shape=(3, 8, 8), name="image"), nn.Input(shape=2, name="ink")
    dense = nn.Dense(6, activation="tanh", name="shared")
    features = nn.Dense(6, activation="relu", name="first")(nn.Flatten()(nn.Rescaling(1 / 255)(image)))
    both = nn.Concatenate(name="both")([dense(features), nn.Dense(4, activation="tanh", name="second")(ink)])
    twice = nn.Add(name="twice")([dense(features), nn.Dense(6, name="third")(both)])
    classes, odd = nn.Dense(5, name="classes")(twice), nn.Dense(1, activation="sigmoid", name="odd")(both)
    model = nn.Model([image, ink], [classes, odd])
    losses = {"classes": "sparse_categorical_crossentropy", "odd": "binary_crossentropy"}
    model.compile(nn.SGD(nn.ExponentialDecay(0.05, 10, 0.9), momentum=0.8), losses, loss_weights=[1, 0.5])
    return model


def recurrent() -> nn.Model:
    """Return a compiled net of sequences of codes."""
    model = nn.Sequential(
        [
            nn.Input((7,)),
            nn.Embedding(20, 6),
            nn.Bidirectional(nn.GRU(5, return_sequences=True)),
            nn.GlobalMaxPooling1D(),
            nn.Dense(5),
        ]
    )
    model.compile(nn.RMSprop(0.01), nn.SoftmaxLoss(topk=2))
    return model


def both_inputs(x: Any) -> dict[str, Any]:
    """Return the inputs of the functional net."""
    return {"image": x, "ink": x.reshape(len(x), -1)[:, :2] / np.float32(255)}


def result_of(model: Any, x: Any, y: Any, rows: Any, client: Client | None = None) -> Report:
    """Return the report of a trained model: its params, its outputs, and its history and evaluation."""
    is_single = not isinstance(y, list)
    outputs = model.predict(x, batch_size=25, client=client if is_single else None)
    arrays = {f"output{k}": value for k, value in enumerate([outputs] if is_single else outputs)}
    return report({**model.params, **arrays}, [*rows, dict(model.evaluate(x, y, batch_size=25, client=client))])


def fitted(processes: bool = False, lazy: bool = False, **options: Any) -> Call:
    """Return the call that fits the convolutional net with validations and callbacks."""

    def compute(folder: Path, client: Client | None) -> Report:
        model, seen = sequential(), list[dict[str, float]]()
        callbacks = [
            ReduceOnPlateau("val_loss", patience=1),
            EarlyStopping("val_loss", patience=3, restore_best_weights=True),
            lambda step, metrics: seen.append({"step": step}),
        ]
        x, y, test = (da.from_array(array, chunks=50) if lazy else array for array in (X, Y, TEST))
        history = model.fit(
            x, y, epochs=5, validation_data=(TEST, TEST_Y), callbacks=callbacks, client=client, **options, **QUIET
        )
        return result_of(model, test, TEST_Y, [*history, *seen], client)

    return Call(compute, processes=processes)


def fitted_twice(make: Callable[[], Any], x: Any, y: Any, processes: bool = False, **options: Any) -> Call:
    """Return the call that fits a model twice, and has it predict."""

    def compute(folder: Path, client: Client | None) -> Report:
        model = make()
        rows = [*model.fit(x, y, epochs=2, client=client, **options, **QUIET)]
        rows += model.fit(x, y, train_steps=10, client=client, **QUIET)
        return result_of(model, x, y, rows, client)

    return Call(compute, processes=processes)


def saved(folder: Path, client: Client | None) -> Report:
    """Fit from stores with a workspace, keep the best params, save and load the model, and take a layer's feature."""
    small, model = folder / "small", sequential(nn.SGD(0.01, momentum=0.9), 10)
    history = model.fit(
        str(small / "train_data.zarr"), epochs=3, validation_data=str(small / "test_data.zarr"),
        callbacks=KeepBest("val_loss"), workspace=folder / "fit", checkpoint_freq=9, **QUIET,
    )  # fmt: skip
    model.save(folder / "model")
    loaded = nn.load_model(folder / "model")
    names = [layer.name for layer in model.job().neuralnet.layer if layer.name.startswith("dense")]
    features = {f"feature-{name}": value for name, value in zip(names, loaded.features(IMAGES, names), strict=True)}
    return report({**loaded.params, **features, "output": loaded.predict(IMAGES)}, history)


def from_job(folder: Path, client: Client | None) -> Report:
    """Fit the model of a job that is made from the text of another model's job."""
    first = sequential()
    model = nn.from_job(loads(str(first.job(X, Y, epochs=2, batch_size=30, cluster=nn.Cluster(workers=2, servers=2)))))
    rows = model.fit(X, Y, progress=False)
    return result_of(model, TEST, TEST_Y, rows)


def own_loop(folder: Path, client: Client | None) -> Report:
    """Train by gradients and an updater in a loop without ``fit``."""
    net = nn.LocalNet(sequential().job(X, Y, train_steps=1, batch_size=30), X, Y)
    params, updater, rows = net.initial_params(), net.updater(), []
    for start in range(0, 180, 30):
        result = net.backward(params, X[start : start + 30], Y[start : start + 30])
        updater.step(params, result.gradients)
        rows.append(dict(result.metrics))
    return report(params, [*rows, net.evaluate(params, TEST, TEST_Y)])


MODELS: dict[str, Call] = {
    "fit": fitted(),
    "fit-two": fitted(workers=2),
    "fit-client": fitted(processes=True, workers=3),
    "fit-dask": fitted(lazy=True),
    "fit-dask-client": fitted(lazy=True, processes=True, workers=2),
    "fit-functional": fitted_twice(functional, both_inputs(X), [Y, Y % 2]),
    "fit-functional-client": fitted_twice(functional, both_inputs(X), [Y, Y % 2], processes=True, workers=2),
    "fit-recurrent": fitted_twice(recurrent, CODES, Y, **WEIGHTED),
    "fit-recurrent-client": fitted_twice(recurrent, CODES, Y, processes=True, **WEIGHTED),
    "fit-stores": Call(saved),
    "fit-job": Call(from_job),
    "fit-own-loop": Call(own_loop),
}
