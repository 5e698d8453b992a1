"""Lazy prediction: a dask array of features, chunk by chunk, wherever Dask computes."""

import resource

import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster

import dsinga
from dsinga.data import open_store
from dsinga.job import Job
from tests.support.refusals import refused
from tests.support.small_job import linear


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
    refused(lambda: dsinga.predict_lazily(job, params, "ipp", lazy), "no layer 'ipp'; did you mean 'ip'")
    refused(lambda: dsinga.predict_lazily(job, params, "ip", lazy[:, 0, :, :7]), "1 x 8 x 8", "of 8 x 7")
    refused(lambda: dsinga.predict_lazily(job, params, "ip", x), "predict_lazily takes a dask array, not a ndarray")


@pytest.mark.slow
@pytest.mark.process
def test_a_million_rows_are_predicted_in_bounded_memory(forked: None) -> None:
    limit = parse_bytes("500 MB")
    x = da.random.default_rng(1).random((1_000_000, 200), chunks=(20_000, -1), dtype=np.float32)
    assert x.nbytes > limit
    params = {"w": np.random.default_rng(0).normal(size=(3, 200)).astype(np.float32), "b": np.zeros(3, np.float32)}
    scores = dsinga.predict_lazily(linear("batchsize=100"), params, "ip", x)
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, memory_limit=limit, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        total = client.compute(scores.sum(axis=0)).result(timeout=100)
        (peak,) = client.run(lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss).values()
    first = x[:20_000].compute()
    np.testing.assert_allclose(scores[:20_000].compute(), first @ params["w"].T, rtol=1e-3, atol=1e-3)
    np.testing.assert_allclose(total / 1e6, params["w"].sum(axis=1) / 2, atol=0.1)  # numbers from 0 to 1
    assert peak < 0.8 * limit  # at which Dask pauses a worker
