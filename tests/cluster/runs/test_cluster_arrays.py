"""Training from arrays that live in Python gives the bits of training from a store with the same records."""

import os
import resource
from pathlib import Path

import dask
import dask.array as da
import numpy as np
import pytest
from dask.utils import parse_bytes
from distributed import Client, LocalCluster

import dsinga
from dsinga.base.errors import UserError
from dsinga.data import RecordSource, open_records, open_store
from dsinga.data.sources.arrays import ArrayColumn
from dsinga.job import Job
from tests.support.small_job import assert_same, linear, with_topology


@pytest.fixture
def short(job: Job) -> Job:
    return with_topology(job.replace(train_steps=15), 2)


@pytest.fixture
def records(stores: Path) -> tuple[np.ndarray, np.ndarray]:
    data, labels = open_store(stores / "train.zarr").read(range(1000))
    return data, labels


def test_chunks_that_a_cluster_could_not_compute_are_refused(threads: Client, records) -> None:
    def fail(block: np.ndarray) -> np.ndarray:
        raise OSError("the disk is gone")

    x = threads.persist(da.from_array(records[0], chunks=(500, -1, -1, -1)).map_blocks(fail, dtype=np.uint8))
    with pytest.raises(UserError, match="the cluster has not computed the dask array 'x': .* is error: OSError.*gone"):
        open_records(x)


@pytest.mark.ci
def test_one_worker_of_one_thread_trains_on_what_it_keeps(job: Job, forked: None, records) -> None:
    short = with_topology(job.replace(train_steps=4), 1)
    with LocalCluster(n_workers=1, threads_per_worker=1, dashboard_address=":0") as local, Client(local) as client:
        x = client.persist(da.from_array(records[0], chunks=(100, 1, 8, 8)) // 1)
        result = dsinga.train(short, client, data=(x, da.from_array(records[1])), progress=False)
    assert_same(result.params, dsinga.train(short, data=records, progress=False).params)


def test_an_array_in_memory_is_sent_once_however_many_workers_read_it(
    job: Job, processes: Client, records, monkeypatch: pytest.MonkeyPatch
) -> None:
    pickled: list[str] = []  # Dask pickles an object up to three times to send it, each time in another way
    monkeypatch.setattr(
        ArrayColumn, "__getstate__", lambda self: pickled.append(self.name) or vars(self), raising=False
    )
    counts = []
    for workers in (1, 3):
        dsinga.train(with_topology(job.replace(train_steps=2), workers), processes, data=records, progress=False)
        counts.append(pickled.count("x"))
        pickled.clear()
    assert counts[0] == counts[1] <= 3
    params = dsinga.train(job.replace(train_steps=1), progress=False).params
    dsinga.predict(job, params, "ip", "train", processes, data=records)
    assert pickled.count("x") <= 3  # for ten batches


def test_threads_of_this_process_share_the_array(short: Job, threads: Client, records, monkeypatch) -> None:
    monkeypatch.setattr(ArrayColumn, "__getstate__", lambda self: pytest.fail("an array was pickled"), raising=False)
    dsinga.train(short, threads, data=records, progress=False)


def test_evaluate_reads_the_arrays_of_its_phase(short: Job, threads: Client, stores: Path) -> None:
    params = dsinga.train(short.replace(train_steps=2), threads, progress=False).params
    test = open_store(stores / "test.zarr").read(range(150))
    data = da.from_array(test[0], chunks=(40, -1, -1, -1)), test[1]
    assert dsinga.evaluate(short, params, "test", threads, data=data) == dsinga.evaluate(short, params, "test", threads)


def test_a_source_is_read_in_the_thread_that_asks(records) -> None:
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("a scheduler was asked")):
        source = open_records((da.from_array(records[0], chunks=(100, -1, -1, -1)), records[1]))
        assert isinstance(source, RecordSource)
        np.testing.assert_array_equal(source.read([999, 3])[0], records[0][[999, 3]])


@pytest.mark.slow
@pytest.mark.process
def test_an_array_larger_than_the_memory_of_a_worker_trains_in_bounded_memory(forked: None) -> None:
    limit = parse_bytes("600 MB")
    x = da.random.default_rng(1).random((200_000, 1000), chunks=(2000, -1), dtype=np.float32)
    assert x.nbytes > limit
    y = np.arange(200_000) % 2
    with (
        LocalCluster(n_workers=1, threads_per_worker=1, memory_limit=limit, dashboard_address=":0") as local,
        Client(local) as client,
    ):
        (before,) = client.run(os.getpid).values()
        epoch = linear("batchsize=2000", "=train_steps=100")
        result = dsinga.train(epoch, client, data=(x, y), progress=False)
        (after,) = client.run(os.getpid).values()
        (peak,) = client.run(lambda: 1024 * resource.getrusage(resource.RUSAGE_SELF).ru_maxrss).values()
    assert (result.step, before) == (100, after)
    assert peak < 0.8 * limit  # at which Dask pauses a worker
