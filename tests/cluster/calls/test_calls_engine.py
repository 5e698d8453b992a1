"""The Dask engine passes the contract of engines, and trains users' algorithms as this process does."""

import pytest
from distributed import Client

from dsinga.cluster.clients import find_cluster
from dsinga.testing import EngineContract


class TestCluster(EngineContract):
    @pytest.fixture(autouse=True)
    def of_threads(self, threads: Client) -> None:
        self.runner = find_cluster(threads)
