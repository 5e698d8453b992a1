"""Estimators train in threads and processes with the bits of numpy arrays in threads."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.estimators import Classifier
from dsinga.job import Job
from tests.cluster.runs.test_cluster_sources import SOURCES, X, Y
from tests.support.small_job import assert_same, linear, with_topology


@pytest.fixture(scope="module")
def job() -> Job:
    return with_topology(linear("batchsize=2000"), 2)


# Dask and xarray collections, and numpy arrays with a client: what estimators train on a cluster.
ESTIMATED = ["numpy", "dask frame and series"]


def fit_estimator(data: Any, client: Client, job: Job) -> dict[str, Any]:
    x, y = data
    with client.as_current():
        estimator = Classifier(net=job, random_state=1).fit(x, y, client=client)
        return {**estimator.params_, "predicted": np.asarray(estimator.predict(x)), "score": estimator.score(x, y)}


@pytest.fixture(scope="module")
def estimated(job: Job, threads: Client) -> dict[str, Any]:
    """What numpy arrays give in threads: params, predictions and the score."""
    return fit_estimator((X, Y), threads, job)


@pytest.mark.process
@pytest.mark.parametrize("kind", ESTIMATED)
def test_an_estimator_is_fitted_on_processes(job: Job, processes: Client, tmp_path: Path, estimated: Any, kind: str):
    assert_same(fit_estimator(SOURCES[kind](tmp_path, processes), processes, job), estimated)
