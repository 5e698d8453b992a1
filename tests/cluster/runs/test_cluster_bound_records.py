"""The functions of the API take records in place of the stores that a job names, on a cluster."""

from pathlib import Path

import numpy as np
from scipy.special import softmax

import dsinga
from dsinga.data import open_store, write_store
from dsinga.job import Job
from dsinga.reading.bind_records import bind_records
from tests.core.engine.test_bind_records import pathless as pathless
from tests.support.small_job import assert_same, with_topology
from tests.support.train_in_threads import train_in_threads


def test_the_functions_of_the_api_take_data(job: Job, pathless: Job, stores: Path, threads, tmp_path: Path) -> None:
    train, test = open_store(stores / "train.zarr"), open_store(stores / "test.zarr")
    pathless = with_topology(pathless, 1)
    net = dsinga.build_net(pathless, data=train)
    assert net.params.keys() == dsinga.partition_net(pathless, 2, data=train).whole.params.keys()
    result = dsinga.train(pathless, threads, data=train, progress=False)
    assert_same(result.params, train_in_threads(bind_records(pathless, train)).params)
    expected = dsinga.evaluate(job, result.params, "test", threads)
    assert dsinga.evaluate(pathless, result.params, "test", threads, data=test) == expected
    features = dsinga.predict(job, result.params, "ip", "test", threads)
    write_store(tmp_path / "x.zarr", [(test.read(range(150))[0], None)])
    unlabelled = open_store(tmp_path / "x.zarr")
    np.testing.assert_array_equal(
        dsinga.predict(pathless, result.params, "ip", "test", threads, data=unlabelled), features
    )
    probabilities = dsinga.predict(pathless, result.params, "loss", "test", threads, data=unlabelled)
    np.testing.assert_allclose(probabilities, softmax(features, axis=1), rtol=1e-5)
