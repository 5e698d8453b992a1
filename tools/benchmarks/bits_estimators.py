"""The estimators of ``python -m tools.benchmarks.bits``: here and on a cluster, in parts, saved, with nets of jobs."""

from __future__ import annotations

import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
from distributed import Client
from sklearn.model_selection import GridSearchCV

from dsinga import loads, models, nn
from dsinga.estimators import Classifier, Regressor, Transformer, load
from tools.benchmarks.bits_report import Call, Report, report

RNG = np.random.default_rng(11)
X, HELD_OUT = RNG.normal(size=(480, 6)) * 3 + 5, RNG.normal(size=(120, 6)) * 3 + 5
WEIGHTS = RNG.random(480)
METHODS = ("predict", "predict_proba", "transform")
Fit = Callable[[Any, Path, Client | None], Any]


def classes_of(x: Any) -> Any:
    """Return a class for each record, a text."""
    return np.where(x[:, 0] + x[:, 1] > 10, "above", np.where(x[:, 2] > 6, "middle", "below"))


def matrix_of(x: Any) -> Any:
    """Return three labels for each record, zeros and ones."""
    return (x[:, :3] > 5).astype(int)


def numbers_of(x: Any) -> Any:
    """Return two numbers for each record."""
    return x[:, :2] * x[:, 2:4] * 10


def lazy(x: Any) -> Any:
    """Return a dask array of an array, in chunks that are no batches."""
    return da.from_array(x, chunks=(130, *x.shape[1:]))


def result_of(estimator: Any, x: Any, rows: Any = None) -> Report:
    """Return the report of a fitted estimator: its params, its results for records, and its history."""
    results = {name: getattr(estimator, name)(x) for name in METHODS if hasattr(estimator, name)}
    computed = {name: np.asarray(value) for name, value in results.items()}
    arrays = {name: value.astype("U8") if value.dtype == object else value for name, value in computed.items()}
    return report({**estimator.params_, **arrays}, estimator.history_ if rows is None else rows)


def fitted(make: Callable[[], Any], targets: Any = classes_of, processes: bool = False, **options: Any) -> Call:
    """Return the call that fits an estimator on numpy arrays, here or on the cluster; ``options`` are those of fit."""

    def compute(folder: Path, client: Client | None) -> Report:
        y = () if targets is None else (targets(X),)
        return result_of(make().fit(X, *y, **options, **({"client": client} if processes else {})), HELD_OUT)

    return Call(compute, processes=processes)


def fitted_lazily(make: Callable[[], Any], targets: Any = classes_of, **options: Any) -> Call:
    """Return the call that fits an estimator on dask arrays on the cluster, and computes lazy results there."""

    def compute(folder: Path, client: Client | None) -> Report:
        y = () if targets is None else (lazy(targets(X)),)
        with client.as_current():  # type: ignore[union-attr]
            return result_of(make().fit(lazy(X), *y, client=client, **options), lazy(HELD_OUT))

    return Call(compute, processes=True)


def in_parts(make: Callable[[], Any], targets: Any = classes_of, processes: bool = False) -> Call:
    """Return the call that fits an estimator part by part, keeps it by pickle in between, and saves and loads it."""

    def compute(folder: Path, client: Client | None) -> Report:
        estimator = make()
        for part in range(3):
            rows = slice(160 * part, 160 * part + 160)
            estimator.partial_fit(X[rows], targets(X)[rows], client=client)
            estimator = estimator if part else pickle.loads(pickle.dumps(estimator))
        path = folder / f"estimator-{type(estimator).__name__}-{processes}"
        estimator.save(path)
        return result_of(load(path), HELD_OUT, estimator.history_)

    return Call(compute, processes=processes)


def warm_start(folder: Path, client: Client | None) -> Report:
    """Fit twice, the second time from the params of the first."""
    estimator = classifier(warm_start=True)
    first = [*estimator.fit(X, classes_of(X)).history_]
    return result_of(estimator.fit(X[:300], classes_of(X)[:300]), HELD_OUT, [*first, *estimator.history_])


def early_stopping(folder: Path, client: Client | None) -> Report:
    """Fit a job on the cluster that ends where its validations no longer improve, and keeps the best params."""
    job = loads(
        f"{models.mlp([8], inputs=6, classes=3, batchsize=40, epochs=30)}\n"
        'extension { type: kEarlyStopping monitor: "test/loss" patience: 2 min_delta: 0.05 }\n'
        'extension { type: kKeepBest monitor: "test/loss" }'
    )
    x, held_out, tested = X / 10, HELD_OUT / 10, classes_of(HELD_OUT)
    fit = Classifier(job).fit(x, classes_of(X), validation_data=(held_out, tested), client=client)
    return result_of(fit, held_out)


def of_model(folder: Path, client: Client | None) -> Report:
    """Fit a compiled model, which begins with the shape of its records."""
    model = nn.Sequential([nn.Input((6,)), nn.Rescaling(0.1), nn.Dense(8, activation="tanh"), nn.Dense(3)])
    model.compile(nn.SGD(0.1, momentum=0.9), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return result_of(Classifier(model, epochs=3, batchsize=32, random_state=5).fit(X, classes_of(X)), HELD_OUT)


def grid_search(folder: Path, client: Client | None) -> Report:
    """Search the settings of a classifier by scikit-learn."""
    search = GridSearchCV(classifier(), {"hidden": [(6,), (8, 4)], "learning_rate": [0.01, 0.05]}, cv=2)
    search.fit(X, classes_of(X))
    rows = [{"score": float(score)} for score in search.cv_results_["mean_test_score"]]
    return result_of(search.best_estimator_, HELD_OUT, rows)


def classifier(**fields: Any) -> Classifier:
    """Return a small classifier."""
    return Classifier(**{"hidden": (8,), "epochs": 4, "batchsize": 50, "random_state": 0, **fields})


def regressor(**fields: Any) -> Regressor:
    """Return a small regressor."""
    return Regressor(**{"hidden": (8, 4), "epochs": 4, "batchsize": 50, "random_state": 0, **fields})


def autoencoder() -> Transformer:
    """Return a small auto-encoder."""
    return Transformer(n_components=3, hidden=(5,), epochs=3, batchsize=50, random_state=0)


def rbm() -> Transformer:
    """Return a small restricted Boltzmann machine."""
    return Transformer(n_components=3, method="rbm", epochs=3, batchsize=50, random_state=0)


def layer() -> Transformer:
    """Return the features of a layer of a job."""
    return Transformer(models.mlp([8], inputs=6, batchsize=40, train_steps=24), layer="act1")


def codes_of(x: Any) -> Any:
    """Return a class for each record, a number."""
    return np.unique(classes_of(x), return_inverse=True)[1]


TESTED = {"validation_data": (HELD_OUT, classes_of(HELD_OUT)), "sample_weight": WEIGHTS}

ESTIMATORS: dict[str, Call] = {
    # in this process
    "classifier": fitted(classifier),
    "classifier-default": fitted(lambda: Classifier(random_state=0), **TESTED),
    "classifier-one-batch": fitted(lambda: classifier(batchsize=480), sample_weight=WEIGHTS),
    "classifier-matrix": fitted(classifier, matrix_of),
    "classifier-parts": in_parts(classifier),
    "classifier-warm-start": Call(warm_start),
    "classifier-model": Call(of_model),
    "classifier-grid": Call(grid_search),
    "regressor": fitted(regressor, numbers_of, validation_data=(HELD_OUT, numbers_of(HELD_OUT))),
    "regressor-parts": in_parts(regressor, numbers_of),
    "transformer": fitted(autoencoder, None),
    "transformer-rbm": fitted(rbm, None),
    "transformer-layer": fitted(layer, codes_of),
    # on the cluster
    "classifier-client": fitted(classifier, processes=True, **TESTED),
    "classifier-dask": fitted_lazily(classifier, sample_weight=lazy(WEIGHTS)),
    "classifier-dask-matrix": fitted_lazily(classifier, matrix_of),
    "classifier-client-early-stopping": Call(early_stopping, processes=True),
    "classifier-client-parts": in_parts(classifier, processes=True),
    "regressor-client": fitted(regressor, numbers_of, processes=True),
    "regressor-dask": fitted_lazily(regressor, numbers_of),
    "transformer-dask": fitted_lazily(autoencoder, None),
    "transformer-dask-rbm": fitted_lazily(rbm, None),
}
