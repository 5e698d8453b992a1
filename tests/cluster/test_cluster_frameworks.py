"""Every training framework trains: synchronous ones as one worker does, asynchronous ones nearly as well."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
from distributed import Client
from smalljob import assert_close

from dsinga import cluster
from dsinga.api import roots, train
from dsinga.job import ClusterConf, Job, SyncEdgeConf, SyncTopology

# Worker groups, server groups, workers and servers of a group.
FRAMEWORKS = {
    "Downpour": (3, 1, 1, 2),
    "Hogwild": (3, 3, 1, 1),
    "hybrid": (2, 1, 2, 2),
    "hybrid Hogwild": (2, 2, 2, 1),
}


def with_groups(job: Job, *figures: int, **more: Any) -> Job:
    """Return the job, testing at its end, with so many worker groups, server groups, workers and servers a group."""
    groups, server_groups, workers, servers = figures
    conf = ClusterConf(
        nworker_groups=groups,
        nserver_groups=server_groups,
        nworkers_per_group=workers,
        nservers_per_group=servers,
        **more,
    )
    return job.replace(cluster=conf, test_freq=1000, test_steps=2)


@pytest.fixture(scope="module")
def four_threads() -> Any:
    with cluster.connect(workers=4) as client:
        yield client


@pytest.fixture(scope="module")
def four_processes() -> Any:
    with cluster.connect(workers=4, separate_processes=True) as client:
        yield client


@pytest.fixture(params=["threads", "processes"])
def client(request: pytest.FixtureRequest) -> Client:
    return request.getfixturevalue(f"four_{request.param}")


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_framework_trains_to_the_accuracy_of_one_worker(job: Job, client: Client, framework: str) -> None:
    result = train(with_groups(job, *FRAMEWORKS[framework]), client, progress=False)
    assert result.step == 50
    assert result.history.phase("test")[-1, "accuracy"] > 0.9
