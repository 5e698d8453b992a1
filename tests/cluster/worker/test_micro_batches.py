"""A job trains to the same params in any number of micro-batches, whatever its algorithm, its cut and its engine."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.job import ClusterConf, Job, loads
from dsinga.reading.bind_records import bind_records
from tests.cluster.runs.test_loop_resumed import CHAINS
from tests.cluster.worker.test_group_worker import STRATEGIES
from tests.support.refusals import refused
from tests.support.small_job import JOB, assert_close, assert_same, linear, place_layers, with_topology
from tests.support.train_in_threads import train_in_threads

# The small job without batch normalisation, whose statistics are those of a micro-batch.
WITHOUT_STATISTICS = JOB.replace('  layer { name: "norm" type: kBM srclayers: "relu" }\n', "").replace(
    'srclayers: "norm"', 'srclayers: "relu"'
)
COUNTS = (1, 2, 4, 8)
STEPS = 6


def small(stores: Path, micro_batches: int, text: str = WITHOUT_STATISTICS, **fields: Any) -> Job:
    """Return the small job with a batch that every one of COUNTS divides."""
    job = loads(text.replace("batchsize: 100", "batchsize: 96"), str(stores / "small.conf"))
    return job.replace(train_steps=STEPS, micro_batches=micro_batches, **fields)


@pytest.fixture(scope="module")
def whole(stores: Path) -> dict[str, np.ndarray]:
    """The params after training on whole batches."""
    return train_in_threads(small(stores, 1), [str(stores)]).params


@pytest.mark.parametrize("count", COUNTS)
def test_one_worker_trains_to_the_params_of_whole_batches(stores: Path, whole: dict[str, np.ndarray], count: int):
    local = dsinga.train(small(stores, count), progress=False)
    assert_close(local.params, whole, 1e-6)
    with_servers = train_in_threads(small(stores, count), [str(stores)])
    assert_same(local.params, with_servers.params)


@pytest.mark.parametrize(("strategy", "workers"), [*zip(STRATEGIES, [2, 3, 2, 3, 2, 3], strict=True)])
def test_workers_of_a_group_do_so_too(stores: Path, whole: dict[str, np.ndarray], strategy: str, workers: int):
    job = with_topology(small(stores, 4), workers, 2)
    place_layers(job, STRATEGIES[strategy])
    first = train_in_threads(job, [str(stores)])
    assert_close(first.params, whole, 1e-6)
    assert_same(train_in_threads(job, [str(stores)]).params, first.params)


@pytest.mark.parametrize("workers", [2, 3])
def test_statistics_of_each_workers_rows_are_those_of_as_many_micro_batches(stores: Path, workers: int):
    text = JOB.replace("type: kBM", "type: kBM bm_conf { synchronized: false }")
    first = train_in_threads(with_topology(small(stores, 1, text), workers), [str(stores)]).params
    second = train_in_threads(small(stores, workers, text), [str(stores)]).params
    trained = [name for name in first if not name.endswith(("_mean", "_variance"))]
    assert len(trained) < len(first)
    assert_close({name: first[name] for name in trained}, {name: second[name] for name in trained}, 1e-6)


def test_a_gathered_weight_is_computed_by_each_worker(stores: Path, whole: dict[str, np.ndarray]):
    cluster = ClusterConf(nworkers_per_group=2, fullc_gather=True)
    assert_close(train_in_threads(small(stores, 2, cluster=cluster), [str(stores)]).params, whole, 1e-6)


@pytest.mark.parametrize("workers", [1, 2])
def test_a_machine_follows_the_chains_of_all_rows(stores: Path, workers: int):
    job = with_topology(loads(CHAINS, str(stores / "rbm.conf")).replace(train_steps=4), workers)
    whole = train_in_threads(job, [str(stores)]).params
    assert_close(train_in_threads(job.replace(micro_batches=2), [str(stores)]).params, whole, 1e-6)


def test_a_run_resumes_with_another_number(stores: Path, whole: dict[str, np.ndarray], tmp_path: Path):
    dsinga.train(small(stores, 8).replace(train_steps=3), workspace=tmp_path, progress=False)
    assert_close(dsinga.train(small(stores, 2), workspace=tmp_path, resume=True, progress=False).params, whole, 1e-6)


def test_a_batch_with_a_record_that_is_not_finite_is_left_out_as_a_whole(tmp_path: Path):
    x = np.random.default_rng(0).normal(size=(80, 4)).astype(np.float32)
    x[3] = np.nan
    y = np.arange(80) % 3
    jobs = [linear("=skip_bad_batches=true", f"=micro_batches={count}", "=train_steps=4") for count in (1, 4)]
    whole, parts = (dsinga.train(job, data={"train": (x, y)}, progress=False).params for job in jobs)
    assert_close(parts, whole, 1e-6)
    assert np.isfinite(parts["w"]).all()
    cluster = ClusterConf(nworkers_per_group=2)
    bound = bind_records(jobs[1].replace(cluster=cluster), {"train": (x, y)})
    assert_close(train_in_threads(bound).params, whole, 1e-6)


def test_statistics_of_micro_batches_are_announced_once(stores: Path, caplog: pytest.LogCaptureFixture):
    with caplog.at_level(logging.WARNING):
        dsinga.train(small(stores, 4, JOB), progress=False)
    (message,) = [record.message for record in caplog.records if "micro_batches" in record.message]
    assert message.startswith("batch normalisation (norm) takes its statistics of each of the 4 micro_batches")
    caplog.clear()
    dsinga.train(small(stores, 1, JOB), progress=False)
    assert not caplog.records


@pytest.mark.parametrize("workers", [2, 3])
def test_statistics_are_those_of_the_micro_batch_of_all_workers(stores: Path, workers: int):
    one = train_in_threads(small(stores, 4, JOB), [str(stores)]).params
    assert_close(train_in_threads(with_topology(small(stores, 4, JOB), workers), [str(stores)]).params, one, 2e-6)


BAD = {
    "does not divide": (("=micro_batches=3",), "'data': a batchsize of 20 cannot be divided into 3 equal micro_b"),
    "none": (("=micro_batches=0",), r"micro_batches must be in \[1, "),
    "too few rows": (("=micro_batches=10", "=cluster.nworkers_per_group=4"), "a micro-batch of 2 cannot be cut over 4"),
}


@pytest.mark.parametrize("name", BAD)
def test_a_number_that_cannot_be_is_refused(name: str):
    fields, message = BAD[name]
    data = {"train": (np.zeros((40, 4), np.float32), np.zeros(40, np.int64))}
    refused(lambda: train_in_threads(bind_records(linear(*fields), data)), message)


@pytest.mark.parametrize("grain", ["round", pytest.param("graph", marks=pytest.mark.ci)])
def test_features_are_computed_again_on_a_cluster(stores: Path, threads: Client, grain: str):
    """With the bits of features that are kept; sums over the workers of a batch norm are asked for once."""
    kept, again = small(stores, 1, JOB), small(stores, 1, JOB)
    again.neuralnet.recompute = 3
    params = [dsinga.train(job, threads, workers=2, grain=grain, progress=False).params for job in (kept, again)]
    assert_same(params[1], params[0])
