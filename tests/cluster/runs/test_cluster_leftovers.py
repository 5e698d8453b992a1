"""A run that has ended leaves nothing in any process, and does not need the garbage collector for that."""

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.base.registry import register
from dsinga.data import write_store
from dsinga.job import AlgConf, ClusterConf, Job
from dsinga.training.bp import bp
from tests.support.leftovers import nothing_left
from tests.support.small_job import linear

# Of a net with params, features and batches that are large enough to be found among the arrays of a process.
WIDE = ("batchsize=80", "shape=2000", "std_value=255", "=neuralnet.layer[ip].innerproduct_conf.num_output=1600")
STEPS = ("=train_steps=4", "=disp_freq=2", "=test_freq=4", "=updater.momentum=0.9")


@pytest.fixture(scope="module")
def wide(tmp_path_factory: pytest.TempPathFactory) -> Job:
    """The job, its records written to a store."""
    folder = tmp_path_factory.mktemp("wide")
    rng = np.random.default_rng(0)
    records = rng.integers(0, 256, (320, 2000), dtype=np.uint8)
    write_store(folder / "wide.zarr", [(records, rng.integers(0, 10, 320))])
    return linear(f"path={folder}/wide.zarr", *WIDE, *STEPS)


def with_cluster(job: Job, **fields: Any) -> Job:
    return job.replace(cluster=ClusterConf(**fields))


def rounds(job: Job, client: Client) -> None:
    dsinga.train(with_cluster(job, nworkers_per_group=2, nservers_per_group=2), client, progress=False)


def graphs(job: Job, client: Client) -> None:
    dsinga.train(with_cluster(job, nworkers_per_group=2), client, progress=False, grain="graph")


def features_cut(job: Job, client: Client) -> None:
    net = job.neuralnet.replace(partition_dim=1)
    dsinga.train(with_cluster(job.replace(neuralnet=net), nworkers_per_group=2), client, progress=False)


def groups(job: Job, client: Client) -> None:
    conf = {"nworker_groups": 2, "nserver_groups": 2, "nworkers_per_group": 1, "nservers_per_group": 1}
    dsinga.train(with_cluster(job, **conf), client, progress=False)


def failing_task(job: Job, client: Client) -> None:
    @register("algorithm", "FailsInTheSecondWorker")
    def fails(net, values, records, ctx, push):
        if ctx.step == 2 and ctx.rows.start > 0:
            raise ZeroDivisionError("a fault of the user's algorithm")
        return bp(net, values, records, ctx, push)

    job = with_cluster(job, nworkers_per_group=2).replace(train_one_batch=AlgConf(user_alg="FailsInTheSecondWorker"))
    with pytest.raises(ZeroDivisionError, match="a fault of the user's algorithm"):
        dsinga.train(job, client, progress=False)


def interrupted(job: Job, client: Client) -> None:
    def interrupt(step: int, metrics: dict[str, float]) -> None:
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        dsinga.train(with_cluster(job, nworkers_per_group=2), client, progress=False, extensions=[interrupt])


def inference(job: Job, client: Client) -> None:
    params = {"w": np.ones((1600, 2000), np.float32), "b": np.zeros(1600, np.float32)}
    dsinga.evaluate(job, params, client=client, phase="test")
    dsinga.predict(job, params, layer="ip", client=client)
    next(dsinga.predict_batches(job, params, "ip", client=client))  # nobody takes the other batches


# What Dask passed to a task that failed: it is in the frames of its error, until the collector runs.
TASK_ARGUMENTS = (
    "dsinga.cluster.worker.config.RoundReport",
    "dsinga.passes.round.Timing",
    "dsinga.cluster.worker.config.WorkerKey",
)
ENDS = [rounds, graphs, features_cut, groups, failing_task, interrupted, inference]
all_ends = pytest.mark.parametrize("run", ENDS, ids=[end.__name__ for end in ENDS])
# Memory is counted, so nothing else may have left work in this process: not a part of the default tests.
pytestmark = pytest.mark.slow


@all_ends
def test_nothing_is_left_in_threads(run: Callable[[Job, Client], None], wide: Job, threads: Client) -> None:
    run(wide, threads)
    with nothing_left(ignored=TASK_ARGUMENTS if run is failing_task else ()):
        run(wide, threads)


@pytest.mark.process
@all_ends
def test_nothing_is_left_in_processes(run: Callable[[Job, Client], None], wide: Job, processes: Client) -> None:
    run(wide, processes)
    with nothing_left(processes, TASK_ARGUMENTS if run is failing_task else ()):
        run(wide, processes)
