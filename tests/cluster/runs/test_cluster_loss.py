"""A Dask worker that dies ends a run without restarts with a clear error, and the run can be resumed.

Calls between workers and servers wait for five minutes, longer than a test may take: a run that ends here was ended by
the supervision of its workers.
"""

import functools
import os
import signal
from typing import Any

import pytest

from dsinga import RunError, cluster
from dsinga.api import roots
from dsinga.cluster import connect, prepare_run
from dsinga.cluster.run.servers import Servers
from dsinga.job import ClusterConf, Job
from dsinga.job.reader import with_fields
from tests.support.observers import AtRow, train_observed
from tests.support.small_job import with_topology

pytestmark = pytest.mark.process


@pytest.mark.ci
@pytest.mark.parametrize(
    ("figures", "dim", "victim"),
    [  # AllReduce and features at bridges, Sandblaster, Downpour, the rim of Hogwild
        ({"nworkers_per_group": 2, "nservers_per_group": 2}, 0, 1),
        ({"nworkers_per_group": 2}, 1, 1),
        ({"nworkers_per_group": 2, "server_worker_separate": True}, 0, 2),
        pytest.param({"nworker_groups": 3}, 0, 1, marks=pytest.mark.slow),
        pytest.param({"nworker_groups": 2, "server_worker_separate": True}, 0, 2, marks=pytest.mark.slow),
        ({"nworker_groups": 3, "nserver_groups": 3, "sync_topology": "kStar"}, 0, 1),
    ],
)
def test_the_loss_of_any_member_ends_the_run(job: Job, figures: dict[str, Any], dim: int, victim: int) -> None:
    """Also of a member that the others do not wait for at once."""
    job = with_fields(job, {"neuralnet.layer[ip].partition_dim": dim})
    job = job.replace(cluster=ClusterConf(**figures, max_restarts=0), train_steps=100_000)
    with connect(workers=3, separate_processes=True) as client:
        address = list(cluster.available_workers(client))[victim]
        observer = AtRow(20, functools.partial(os.kill, client.run(os.getpid)[address], signal.SIGKILL))
        with pytest.raises(RunError, match="was lost") as raised:
            train_observed(job, client, observer)
        assert address in str(raised.value)
        assert observer.acted


def test_a_server_that_is_lost_is_named_to_its_driver(job: Job) -> None:
    with connect(workers=2, separate_processes=True) as client:
        with prepare_run(with_topology(job, 2), client, roots(job, None)) as layout:
            pass
        servers = Servers(client, layout.config, layout.placement)
        servers.create(0)
        victim = layout.placement.servers[0][0]
        os.kill(client.run(os.getpid)[victim], signal.SIGKILL)
        for _ in range(2):  # when the call fails, and when Dask knows without a call
            with pytest.raises(RunError, match="was lost") as raised:
                servers.call(0, "snapshot", None)
            assert victim in str(raised.value)
