"""Lazy prediction: a dask array of features, chunk by chunk, wherever Dask computes."""

import dask.array as da
import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.data import open_store
from dsinga.job import Job
from tests.support.refusals import refused


@pytest.fixture
def params(job: Job, threads: Client) -> dict[str, np.ndarray]:
    return dsinga.train(job.replace(train_steps=3), threads, progress=False).params


@pytest.fixture
def x(stores) -> np.ndarray:
    return open_store(stores / "test.zarr").read(range(150))[0]


@pytest.mark.parametrize("layer", ["ip", "conv", "loss"])
def test_the_features_are_those_of_predict(job: Job, threads: Client, params, x, layer: str) -> None:
    expected = dsinga.predict(job, params, layer, client=threads, data=x)
    lazy = dsinga.predict_lazily(job, params, layer, da.from_array(x, chunks=(40, -1, -1, -1)))
    assert (lazy.shape, lazy.dtype, lazy.chunks[0]) == (expected.shape, expected.dtype, (40, 40, 40, 30))
    np.testing.assert_allclose(lazy.compute(), expected, rtol=1e-4, atol=1e-6)
    np.testing.assert_allclose(lazy[20:60:2].sum(axis=0).compute(), expected[20:60:2].sum(axis=0), rtol=1e-4, atol=1e-5)


def test_worker_processes_compute_it(job: Job, processes: Client, params, x) -> None:
    lazy = dsinga.predict_lazily(job, params, "ip", da.from_array(x, chunks=(10, -1, -1, -1)))
    future = processes.compute(lazy)
    expected = dsinga.predict(job, params, "ip", data=x)
    np.testing.assert_allclose(future.result(timeout=60), expected, rtol=1e-4, atol=1e-6)


def test_bad_input_is_refused(job: Job, params, x) -> None:
    lazy = da.from_array(x, chunks=(40, -1, -1, -1))
    refused(lambda: dsinga.predict_lazily(job, params, "ipp", lazy), "no layer 'ipp'", "did you mean 'ip'")
    refused(lambda: dsinga.predict_lazily(job, params, "ip", lazy[:, 0, :, :7]), "1 x 8 x 8", "of 8 x 7")
    refused(lambda: dsinga.predict_lazily(job, params, "ip", x), "predict_lazily takes a dask array, not a ndarray")
