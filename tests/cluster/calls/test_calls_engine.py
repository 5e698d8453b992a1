"""The Dask engine passes the contract of engines, and trains users' algorithms as this process does."""

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.api.runners import THIS_PROCESS
from dsinga.cluster.clients import find_cluster
from dsinga.job import AlgConf, ClusterConf
from dsinga.loop.local_run import trains_locally
from dsinga.testing import EngineContract
from dsinga.training import bp
from tests.cluster.runs.test_loop_products import DATA, NET


class TestCluster(EngineContract):
    @pytest.fixture(autouse=True)
    def of_threads(self, threads: Client) -> None:
        self.runner = find_cluster(threads)


def test_an_own_algorithm_is_trained_alike(threads: Client) -> None:
    @dsinga.register("algorithm", "Halved")
    def halved(net, values, records, ctx, push):  # type: ignore[no-untyped-def]
        return bp(net, values, records, ctx, lambda name, gradient: push(name, gradient / 2))

    job = dsinga.loads(NET).replace(cluster=ClusterConf(), train_one_batch=AlgConf(alg="kUserAlg", user_alg="Halved"))
    assert trains_locally(job)
    here, there = (dsinga.train(job, client, data=DATA, progress=False) for client in (THIS_PROCESS, threads))
    np.testing.assert_equal(here.params, there.params)
