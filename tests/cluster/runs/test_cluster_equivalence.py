"""However a net is cut, in threads or processes and in either grain, it trains to the params of one worker: to 1e-5.

All four settings give the same bits, which differ from those of one worker by the rounding of float32. For nets
of every type of layer in float64, without a cluster, see tests/cutting/test_cutting_training.py.
"""

import functools
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import NamedTuple

import numpy as np
import pytest
from distributed import Client
from hypothesis import HealthCheck, assume, given, reject, settings
from hypothesis import strategies as st

from dsinga.api import train
from dsinga.base.errors import Diverged
from dsinga.cluster import connect
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
STEPS, ALL_STEPS = 6, 20  # of the default tests, and of the product of everything with everything

Clients = dict[str, Client]
Setting = tuple[str, str]  # the workers, threads or processes, and the grain

BY_ROUNDS: Setting = ("threads", "round")
OTHER_SETTINGS: list[Setting] = [("threads", "graph"), ("processes", "round"), ("processes", "graph")]


class Trained(NamedTuple):
    """Params after all steps, and the gradients of the first one."""

    params: Values
    gradients: Values


SingleWorker = Callable[[str, int], Trained]


@pytest.fixture(scope="module")
def clients(threads: Client, processes: Client) -> Clients:
    """The clusters of three threads and of three processes that tests share."""
    return {"threads": threads, "processes": processes}


@pytest.fixture(scope="module")
def larger_clients() -> Iterator[Clients]:
    """A cluster of four threads and one of four processes."""
    with connect(workers=WORKERS) as threads, connect(workers=WORKERS, separate_processes=True) as processes:
        yield {"threads": threads, "processes": processes}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the jobs have their stores."""
    return tmp_path_factory.mktemp("jobs")


@pytest.fixture(scope="module")
def single(clients: Clients, folder: Path) -> SingleWorker:
    """Train one of NETS by one worker, the first time that it is asked for."""
    return functools.cache(lambda name, steps: run(net_of(name), clients, folder, 0, steps))


def params(job: Job, clients: Clients, setting: Setting = BY_ROUNDS) -> Values:
    """Return the params after training."""
    workers, grain = setting
    return train(job, clients[workers], grain=grain, progress=False).params


def run(net: NeuralNet, clients: Clients, folder: Path, workers: int, steps: int) -> Trained:
    """Train a net on threads, by rounds; with 0 workers by one, from a job that says nothing of how the net is cut."""
    steep = job_of(net, folder, workers, steps=1, rate=STEEP)
    return Trained(params(job_of(net, folder, workers, steps), clients), gradients(net, params(steep, clients)))


def check(
    net: NeuralNet,
    workers: int,
    other_settings: list[Setting],
    single: Trained,
    clients: Clients,
    folder: Path,
    steps: int,
) -> None:
    """Assert that a net that is cut trains as ``single``, and in the other settings to the same bits."""
    cut = run(net, clients, folder, workers, steps)
    assert_close(cut.gradients, single.gradients, TOLERANCE, "gradient")
    assert_close(cut.params, single.params, TOLERANCE, "param")
    for setting in other_settings:
        assert_same(params(job_of(net, folder, workers, steps), clients, setting), cut.params)


@pytest.mark.parametrize(
    ("name", "strategy", "workers", "other"),
    [
        ("zoo", "rows", 3, ("processes", "round")),
        pytest.param("convnet", "features", 2, ("threads", "graph"), marks=pytest.mark.ci),
        ("convnet", "none", 2, ("threads", "graph")),  # a worker without layers
        ("mdnn", "locations", 2, ("processes", "round")),  # the paths apart
        ("convnet", "hybrid", 2, ("processes", "graph")),
        ("sequences", "mixed", 3, ("processes", "round")),
        pytest.param("convnet", "stripes", 2, ("threads", "graph"), marks=pytest.mark.ci),
    ],
)
def test_a_cut_net_trains_as_a_whole_one(
    single: SingleWorker, clients: Clients, folder: Path, name: str, strategy: str, workers: int, other: Setting
) -> None:
    check(net_of(name, strategy, workers), workers, [other], single(name, STEPS), clients, folder, STEPS)


@pytest.mark.slow
@pytest.mark.timeout(900)  # of 20 iterations as graphs: up to 544 tasks each
@pytest.mark.parametrize("workers", range(1, WORKERS + 1))
@pytest.mark.parametrize("strategy", STRATEGIES)
@pytest.mark.parametrize("name", NETS)
def test_every_strategy_on_every_number_of_workers_in_every_setting(
    single: SingleWorker, larger_clients: Clients, folder: Path, name: str, strategy: str, workers: int
) -> None:
    net, whole = net_of(name, strategy, workers), single(name, ALL_STEPS)
    check(net, workers, OTHER_SETTINGS, whole, larger_clients, folder, ALL_STEPS)


def check_random(data: st.DataObject, clients: Clients, folder: Path, choices: list[Setting]) -> None:
    """Draw a net, cut and placed at random, and assert that it trains as by one worker, in one of the settings.

    A random net may diverge on one worker, too, and in one that does, rounding errors grow without bound.
    """
    workers = data.draw(st.integers(1, WORKERS))
    net, setting = data.draw(nets(workers)), data.draw(st.sampled_from(choices))
    try:
        whole = params(job_of(net, folder), clients)
    except (Diverged, RuntimeWarning):  # numpy warns first, and warnings are errors
        reject()
    assume(all(np.abs(value).max() < DIVERGED for value in whole.values()))
    assert_close(params(job_of(net, folder, workers), clients, setting), whole, TOLERANCE, "param")


# Dask's threads draw from Python's random numbers meanwhile, which hypothesis blames on the strategy.
RANDOM_ELSEWHERE = pytest.mark.filterwarnings("ignore:Do not use the `random` module inside strategies")


@pytest.mark.slow
@pytest.mark.timeout(1200)
@RANDOM_ELSEWHERE
@settings(max_examples=150, suppress_health_check=list(HealthCheck))
@given(st.data())
def test_many_random_nets_train_as_on_one_worker(larger_clients: Clients, folder: Path, data: st.DataObject) -> None:
    check_random(data, larger_clients, folder, [BY_ROUNDS, *OTHER_SETTINGS])
