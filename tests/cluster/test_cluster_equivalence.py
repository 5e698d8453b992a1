"""However a net is cut, by either road and in either grain, the engine trains it as one worker does: to 1e-5.

All four give the same bits. What is left to differ from one worker is the rounding of float32; for nets of every type
of layer in float64, without a cluster, see tests/training/test_training_partition.py.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from distributed import Client
from hypothesis import HealthCheck, Phase, assume, given, reject, settings
from hypothesis import strategies as st

from dsinga.api import train
from dsinga.cluster import connect
from dsinga.errors import Diverged
from dsinga.job import Job
from dsinga.net import NeuralNet
from tests.support.partition_nets import NETS, STRATEGIES, net_of
from tests.support.partitioned_jobs import STEEP, gradients, job_of
from tests.support.partitioned_run import Values, assert_close
from tests.support.random_nets import nets
from tests.support.small_job import assert_same

pytestmark = pytest.mark.process

WORKERS = 4
TOLERANCE = 1e-5
DIVERGED = 100  # params that have grown to this, from about 1
STEPS, ALL_STEPS = 10, 20  # of the default tests, and of the product of everything with everything

Clients = dict[str, Client]
ExchangeOptions = tuple[str, str]  # road, and grain

PLAIN: ExchangeOptions = ("threads", "round")
OTHERS: list[ExchangeOptions] = [("threads", "graph"), ("processes", "round"), ("processes", "graph")]


class Trained(NamedTuple):
    """Params after all steps, and the gradients of the first one."""

    params: Values
    gradients: Values


Alone = Callable[[str, int], Trained]


@pytest.fixture(scope="module")
def clients() -> Iterator[Clients]:
    """A cluster of four threads and one of four processes."""
    with connect(workers=WORKERS) as threads, connect(workers=WORKERS, separate_processes=True) as processes:
        yield {"threads": threads, "processes": processes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the jobs have their stores."""
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def alone(clients: Clients, folder: Path) -> Alone:
    """Train one of NETS by one worker, the first time that it is asked for."""
    return functools.cache(lambda name, steps: run(net_of(name), clients, folder, 0, steps))


def params(job: Job, clients: Clients, manner: ExchangeOptions = PLAIN) -> Values:
    """Return the params after training."""
    road, grain = manner
    return train(job, clients[road], grain=grain, progress=False).params


def run(net: NeuralNet, clients: Clients, folder: Path, workers: int, steps: int) -> Trained:
    """Train a net on threads, by rounds; with 0 workers by one, from a job that says nothing of how the net is cut."""
    steep = job_of(net, folder, workers, steps=1, rate=STEEP)
    return Trained(params(job_of(net, folder, workers, steps), clients), gradients(net, params(steep, clients)))


def check(
    net: NeuralNet,
    workers: int,
    others: list[ExchangeOptions],
    alone: Trained,
    clients: Clients,
    folder: Path,
    steps: int,
) -> None:
    """Assert that a net that is cut trains as ``alone``, and in other manners to the same bits."""
    cut = run(net, clients, folder, workers, steps)
    assert_close(cut.gradients, alone.gradients, TOLERANCE, "gradient")
    assert_close(cut.params, alone.params, TOLERANCE, "param")
    for manner in others:
        assert_same(params(job_of(net, folder, workers, steps), clients, manner), cut.params)


@pytest.mark.parametrize(
    ("name", "strategy", "workers", "other"),
    [
        ("zoo", "rows", 4, ("processes", "round")),
        ("convnet", "features", 2, ("threads", "graph")),
        ("convnet", "none", 1, ("threads", "graph")),
        ("zoo", "locations", 3, ("processes", "round")),
        ("convnet", "hybrid", 2, ("processes", "graph")),
        ("zoo", "mixed", 3, ("processes", "round")),
        ("mdnn", "locations", 2, ("processes", "round")),  # the paths apart
        ("residual", "features", 2, ("threads", "graph")),
        ("sequences", "mixed", 3, ("processes", "round")),
    ],
)
def test_a_cut_net_trains_as_a_whole_one(
    alone: Alone, clients: Clients, folder: Path, name: str, strategy: str, workers: int, other: ExchangeOptions
) -> None:
    check(net_of(name, strategy, workers), workers, [other], alone(name, STEPS), clients, folder, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # of 20 iterations as graphs: up to 544 tasks each
@pytest.mark.parametrize("workers", range(1, WORKERS + 1))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETS)
def test_every_strategy_on_every_number_of_workers_in_every_manner(
    alone: Alone, clients: Clients, folder: Path, name: str, strategy: str, workers: int
) -> None:
    check(net_of(name, strategy, workers), workers, OTHERS, alone(name, ALL_STEPS), clients, folder, ALL_STEPS)


def check_random(data: st.DataObject, clients: Clients, folder: Path, manners: list[ExchangeOptions]) -> None:
    """Draw a net, cut and placed at random, and assert that it trains as by one worker, in one of these manners.

    A random net may diverge without our doing, and in one that does any rounding grows to any difference.
    """
    workers = data.draw(st.integers(1, WORKERS))
    net, manner = data.draw(nets(workers)), data.draw(st.sampled_from(manners))
    try:
        whole = params(job_of(net, folder), clients)
    except (Diverged, RuntimeWarning):  # or the warning of numpy that comes before, where warnings are errors
        reject()
    assume(all(np.abs(value).max() < DIVERGED for value in whole.values()))
    assert_close(params(job_of(net, folder, workers), clients, manner), whole, TOLERANCE, "param")


# Dask's threads draw from Python's random numbers while hypothesis draws a net, which takes it for ours.
RANDOM_ELSEWHERE = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@RANDOM_ELSEWHERE
@settings(max_examples=4, phases=[Phase.generate], suppress_health_check=list(HealthCheck))
@given(st.data())
def test_random_nets_train_as_on_one_worker(clients: Clients, folder: Path, data: st.DataObject) -> None:
    check_random(data, clients, folder, [PLAIN, *OTHERS])


@pytest.mark.slow
@pytest.mark.timeout(1200)
@RANDOM_ELSEWHERE
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_random_nets_train_as_on_one_worker(clients: Clients, folder: Path, data: st.DataObject) -> None:
    check_random(data, clients, folder, [PLAIN, *OTHERS])
