"""Estimators in the searches of scikit-learn and Dask-ML on a Dask cluster, beside scikit-learn's in this process."""

from typing import Any

import numpy as np
import pytest
from distributed import Client
from sklearn.datasets import load_digits
from sklearn.model_selection import GridSearchCV

from dsinga.estimators import Classifier

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
