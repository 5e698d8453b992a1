"""Runs over two hosts, secured by TLS: two worker processes at two addresses that share no memory."""

import functools
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, Nanny, Scheduler, SpecCluster

from dsinga import RunError, cluster
from dsinga.api import train
from dsinga.cluster.transport import endpoints
from dsinga.cluster.transport.socket_loop import open_connections
from dsinga.job import ClusterConf, Job, loads
from dsinga.job.reader import with_fields
from tests.support.leftovers import nothing_left
from tests.support.observers import AtRow, train_observed
from tests.support.polling import wait_until
from tests.support.small_job import JOB, assert_same, with_topology, without_restarts
from tests.support.socket_pairs import certificates

pytestmark = [pytest.mark.process, pytest.mark.ci]


def share_no_memory() -> None:
    """Let this process find no others on its host."""
    endpoints.connect_to_host = lambda name, secret: None


@pytest.fixture(scope="module")
def hosts(forked: None) -> Iterator[Client]:
    """A cluster of two hosts."""
    security = certificates()
    shared = {"security": security, "protocol": "tls", "nthreads": 2, "memory_limit": 0, "dashboard": False}
    workers = {number: {"cls": Nanny, "options": {**shared, "host": f"127.0.0.{number + 1}"}} for number in range(2)}
    scheduler = {"cls": Scheduler, "options": {"host": "127.0.0.1", "security": security, "protocol": "tls",
                 "dashboard": False, "dashboard_address": ":0"}}  # fmt: skip
    with SpecCluster(workers, scheduler, security=security) as cluster, Client(cluster, set_as_default=False) as client:
        client.run(share_no_memory)
        yield client


@pytest.fixture(autouse=True)
def small_pieces(monkeypatch: pytest.MonkeyPatch) -> None:
    """Cut params of more than 300 numbers into pieces."""
    monkeypatch.setattr("dsinga.cluster.server.slicing.PIECE_BYTES", 1200)


@pytest.fixture
def job(stores: Path) -> Job:
    return loads(JOB.replace("train_steps: 50", "train_steps: 8"), str(stores / "small.conf"))


@pytest.mark.parametrize(
    ("servers", "options"),
    [(1, {}), (2, {}), (2, {"compression": "kBF16"}), (2, {"compression": "kBF16", "update": "kWorker"})],
    ids=["a server", "two servers", "rounded gradients", "rounded sums"],
)
def test_hosts_give_the_bits_of_threads(
    job: Job, hosts: Client, threads: Client, servers: int, options: dict[str, Any]
) -> None:
    job = job.replace(cluster=ClusterConf(nworkers_per_group=2, nservers_per_group=servers, **options))
    assert_same(train(job, hosts, progress=False).params, train(job, threads, progress=False).params)
    wait_until(lambda: hosts.run(open_connections) == dict.fromkeys(hosts.scheduler_info()["workers"], 0))


def test_features_cross_hosts(job: Job, hosts: Client, threads: Client) -> None:
    """Also for two workers on one host."""
    job = with_topology(with_fields(job, {"neuralnet.layer[ip].partition_dim": 1}), 3, 2)
    assert_same(train(job, hosts, progress=False).params, train(job, threads, progress=False).params)


@pytest.mark.parametrize("compression", ["kNone", "kBF16"])
def test_groups_on_different_hosts_send_each_other_changes(job: Job, hosts: Client, compression: str) -> None:
    conf = ClusterConf(nworker_groups=2, nserver_groups=2, sync_topology="kStar", sync_freq=1, compression=compression)
    result = train(job.replace(cluster=conf, train_steps=40), hosts, progress=False)
    assert all(np.isfinite(value).all() for value in result.params.values())
    assert result.history[-1]["loss"] < result.history[0]["loss"]


@pytest.mark.slow
def test_nothing_is_left_on_hosts(job: Job, hosts: Client) -> None:
    job = with_topology(job, 2, 2)
    train(job, hosts, progress=False)
    with nothing_left(hosts):
        train(job, hosts, progress=False)


def test_a_lost_host_ends_the_run(job: Job, hosts: Client) -> None:
    """The last test: the host comes back as another one. Calls would wait for five minutes."""
    address = list(cluster.available_workers(hosts))[1]
    observer = AtRow(0, functools.partial(os.kill, hosts.run(os.getpid)[address], signal.SIGKILL))
    job = without_restarts(with_topology(job, 2, 2)).replace(train_steps=100_000, disp_freq=1)
    with pytest.raises(RunError, match="was lost") as raised:
        train_observed(job, hosts, observer)
    assert address in str(raised.value)
    assert observer.acted
    wait_until(lambda: set(hosts.run(open_connections).values()) == {0})
