"""Micro-batches and recomputation in models of dsinga.nn, and in estimators."""

from typing import Any

import numpy as np
import pytest
from distributed import Client
from distributed.protocol import deserialize, serialize
from scipy import sparse
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV
from sklearn.utils.estimator_checks import parametrize_with_checks

from dsinga import UserError, estimators, nn
from dsinga.estimators import Classifier, Regressor, Transformer, sparse_records
from tests.support.refusals import refused
from tests.support.small_job import assert_close, assert_same


def model(**conv: Any) -> nn.Sequential:
    layers = [
        nn.Input((1, 8, 8)), nn.Conv2D(4, 3, activation="relu", **conv), nn.Dropout(0.3), nn.Dense(3),
    ]  # fmt: skip
    net = nn.Sequential(layers)
    net.compile(nn.SGD(0.05), "sparse_categorical_crossentropy")
    return net


def data() -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(0)
    return rng.normal(size=(48, 1, 8, 8)).astype(np.float32), rng.integers(0, 3, 48)


def test_fit_takes_micro_batches() -> None:
    whole, parts = model(), model()
    whole.fit(*data(), batch_size=12, progress=False)
    parts.fit(*data(), batch_size=12, micro_batches=4, progress=False)
    assert_close(parts.params, whole.params, 1e-6)
    with pytest.raises(UserError, match="a batchsize of 12 cannot be divided into 5 equal micro_batches"):
        model().fit(*data(), batch_size=12, micro_batches=5, progress=False)


def test_every_layer_takes_recompute() -> None:
    kept, again = model(), model(recompute=True)
    kept.fit(*data(), batch_size=12, progress=False)
    again.fit(*data(), batch_size=12, progress=False)
    assert_same(again.params, kept.params)
    marked = [layer.name for layer in again.job(train_steps=1).neuralnet.layer if layer.recompute]
    assert marked == ["conv2d", "conv2d_relu"]  # the activation, too


def test_an_estimator_takes_the_micro_batches_of_its_job() -> None:
    x, y = data()
    jobs = [model().job(epochs=2, batch_size=12, micro_batches=count) for count in (1, 3)]
    whole, parts = (estimators.Classifier(job, random_state=0).fit(x, y) for job in jobs)
    assert_close(parts.params_, whole.params_, 1e-6)


# Estimators in the searches of scikit-learn and Dask-ML on a Dask cluster, beside scikit-learn's in this process.
GRID = {"hidden": [(8,), (16,)], "learning_rate": [0.01, 0.03]}
X, Y = (array[:200] for array in load_digits(return_X_y=True))


@pytest.fixture(scope="module")
def here() -> Any:
    return GridSearchCV(classifier(), GRID, cv=2).fit(X, Y)


def classifier() -> Classifier:
    return Classifier(epochs=2, random_state=0)


def assert_same_search(search: Any, here: Any) -> None:
    scores = (each.cv_results_["mean_test_score"] for each in (search, here))
    np.testing.assert_allclose(*scores, rtol=1e-12)  # means of the same scores, added up in another way
    assert search.best_params_ == here.best_params_
    np.testing.assert_array_equal(search.predict(X), here.predict(X))


def test_the_grid_search_of_sklearn_runs_on_a_cluster_by_joblib(threads: Client, here: Any) -> None:
    import joblib

    with threads.as_current(), joblib.parallel_config("dask", client=threads):
        assert_same_search(GridSearchCV(classifier(), GRID, cv=2).fit(X, Y), here)


@pytest.mark.filterwarnings("ignore")  # dask-ml has its own with recent releases of what it uses
def test_the_grid_search_of_dask_ml_runs_on_a_cluster(threads: Client, here: Any) -> None:
    selection = pytest.importorskip("dask_ml.model_selection")
    with threads.as_current():
        assert_same_search(selection.GridSearchCV(classifier(), GRID, cv=2).fit(X, Y), here)


# Estimators on sparse matrices, whose records become dense block by block where all of them would be large.
SPARSE_X = sparse.random(700, 30, density=0.1, random_state=0, format="coo")
SPARSE_Y = np.asarray(SPARSE_X.sum(axis=1)).ravel() > 1.5


@pytest.fixture
def always_large(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sparse_records, "SMALL_BYTES", 0)


@pytest.mark.parametrize(
    ("estimator", "method"),
    [
        (Classifier(random_state=0, epochs=2, early_stopping=True), "predict_proba"),
        (Regressor(random_state=0, epochs=2), "predict"),
        (Transformer(random_state=0, epochs=2), "transform"),
        (Transformer(method="rbm", random_state=0, epochs=2), "transform"),
    ],
    ids=str,
)
def test_blocks_of_a_sparse_matrix_give_the_bits_of_a_dense_one(estimator: Any, method: str, always_large: None):
    expected = estimator.fit(SPARSE_X.toarray(), SPARSE_Y)
    params, results = expected.params_, getattr(expected, method)(SPARSE_X.toarray())
    assert_same(estimator.fit(SPARSE_X, SPARSE_Y).params_, params)
    np.testing.assert_array_equal(getattr(estimator, method)(SPARSE_X), results)
    np.testing.assert_array_equal(getattr(estimator, method)(SPARSE_X.tocsc()), results)


def test_a_sparse_matrix_is_sent_to_a_cluster(threads: Client, always_large: None) -> None:
    weights = np.random.default_rng(0).random(700)
    here, there = (Classifier(random_state=0, epochs=2, blocks=3) for _ in range(2))
    here.fit(SPARSE_X, SPARSE_Y, sample_weight=weights, validation_data=(SPARSE_X, SPARSE_Y))
    there.fit(SPARSE_X, SPARSE_Y, sample_weight=weights, client=threads)
    assert_same(there.params_, here.params_)
    bad = SPARSE_X.tocsr().copy()
    bad.data[5] = np.nan
    refused(lambda: here.fit(bad, SPARSE_Y), "Input X contains NaN", error=ValueError)


def test_a_column_is_sent_to_other_processes() -> None:
    column = sparse_records.SparseColumn(sparse_records.SparseRecords(SPARSE_X.tocsr()), "X")
    np.testing.assert_array_equal(deserialize(*serialize(column)).load(10, 40), column.load(10, 40))


# The estimators pass the checks of scikit-learn, all of them.
QUANTILES = Regressor(loss="quantile", epochs=20)


@pytest.mark.ci
@parametrize_with_checks(
    [Classifier(), Regressor(), QUANTILES, Transformer(epochs=2), Transformer(method="rbm", epochs=2)]
)
def test_scikit_learn_checks(estimator: Any, check: Any) -> None:
    check(estimator)
