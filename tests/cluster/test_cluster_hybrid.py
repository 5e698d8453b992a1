"""SINGA's hybrid of the CIFAR-10 convnet on the real data: images by rows, the fully connected layer by features.

With maxima, and ReLUs, one worker and two part in float32 after some steps, and it is not the cut: among the 720,000
windows of a batch in the first pooling are some with two numbers that a rounded sum may put in either order, and a
gradient that takes another way there changes the sum over all windows by about one over the square root of their
number, 1e-3. So the params of the net as it is are compared in float64, and those of a smooth one in the engine.
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

from dsinga.api import Result, build_net, partition_net, train
from dsinga.data import RecordStore, import_records
from dsinga.job import Job, load
from dsinga.layers import Records
from dsinga.training import initial_values
from tests.support.partitioned_jobs import STEEP
from tests.support.partitioned_run import Values, assert_close, assert_equal_runs, run_partitioned, run_whole
from tests.support.small_job import assert_same

pytestmark = pytest.mark.data

CONVNET = Path(__file__).parents[2] / "datasets" / "cifar10" / "convnet.conf"
HYBRID = ("neuralnet.layer[ip1].partition_dim=1", "test_freq=0")
SMOOTH = (
    "neuralnet.layer[pool1].pooling_conf.pool=AVG",
    *(f"neuralnet.layer[relu{number}].type=kSTanh" for number in (1, 2, 3)),
)
FIRST_GRADIENT = (
    "updater.momentum=0",
    "updater.weight_decay=0",
    "updater.learning_rate.type=kFixed",
    f"updater.learning_rate.base_lr={STEEP}",
)


@pytest.fixture(scope="module")
def cifar10(real_data: Path, tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of the imported records."""
    folder = tmp_path_factory.mktemp("real") / "cifar10"
    import_records("cifar10", real_data / "cifar10", folder)
    return folder


def hybrid(workers: int, steps: int, *overrides: str) -> Job:
    """Return the job, cut as in SINGA's hybrid.conf."""
    topology = f"cluster.nworkers_per_group={workers}"
    return load(CONVNET, [*HYBRID, topology, f"train_steps={steps}", *overrides])


def run(job: Job, client: Client, cifar10: Path, grain: str = "round") -> Result:
    """Train on the real data."""
    return train(job, client, data_root=str(cifar10), grain=grain, progress=False)


@pytest.mark.parametrize("workers", [2, 3])
def test_a_smooth_net_trains_as_on_one_worker(threads: Client, cifar10: Path, workers: int) -> None:
    cut = run(hybrid(workers, 20, *SMOOTH), threads, cifar10)
    assert_close(cut.params, run(hybrid(1, 20, *SMOOTH), threads, cifar10).params, 1e-5, "param")


def test_the_first_gradient_is_that_of_one_worker(threads: Client, cifar10: Path) -> None:
    def gradient(workers: int) -> Values:
        result = run(hybrid(workers, 1, *FIRST_GRADIENT), threads, cifar10)
        start = initial_values(result.net.params, result.job.seed)
        return {name: (start[name] - value) / np.float32(STEEP) for name, value in result.params.items()}

    assert_close(gradient(2), gradient(1), 1e-5, "gradient")


@pytest.mark.process
def test_threads_processes_and_graphs_give_the_same_bits(threads: Client, processes: Client, cifar10: Path) -> None:
    job = hybrid(2, 20)
    expected = run(job, threads, cifar10).params
    assert_same(run(job, processes, cifar10).params, expected)
    assert_same(run(job, processes, cifar10, grain="graph").params, expected)


def test_in_float64_the_unchanged_net_trains_as_on_one_worker(cifar10: Path) -> None:
    job = hybrid(1, 1)
    net, cut = build_net(job, data_root=str(cifar10)), partition_net(job, 2, data_root=str(cifar10))
    data, labels = RecordStore(cifar10 / "train_data.zarr").read(range(500))
    batches = [
        {"data": Records(data[at : at + 100].astype(np.float64), labels[at : at + 100])} for at in range(0, 500, 100)
    ]
    values = {name: value.astype(np.float64) for name, value in initial_values(net.params, job.seed).items()}
    assert_equal_runs(run_partitioned(cut, values, batches), run_whole(net, values, batches), 1e-12)
