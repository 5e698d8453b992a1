"""Which records workers read: of a user's source, of an array that is sent once, and all of them."""

from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from distributed import Client, LocalCluster

import dsinga
from dsinga.api import evaluate, train
from dsinga.base.registry import register
from dsinga.data import DataSource, RecordSource, open_records, open_store, write_store
from dsinga.data.sources.arrays import ArrayColumn
from dsinga.job import ClusterConf, Job, loads
from dsinga.job.reader import with_fields
from tests.support.refusals import refused
from tests.support.registries import restored_registry
from tests.support.small_job import LINEAR, assert_same, with_topology

RNG = np.random.default_rng(0)
X, Y = RNG.normal(size=(40, 4)).astype(np.float32), RNG.integers(3, size=40)


def test_the_column_of_a_source_reaches_other_processes(
    tmp_path: Path, processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    np.concatenate([Y[:, None], X / 200], axis=1).astype(np.float32).tofile("rows.raw")
    with restored_registry():

        @register("source", "RawRows")
        class RawRows(DataSource):
            def open(self) -> Any:
                rows = np.fromfile(self.path, np.float32).reshape(-1, 5)
                return rows[:, 1:], rows[:, 0].astype(int)

        store = 'batchsize: 20 backend: "RawRows" path: "rows.raw"'
        job = loads(LINEAR.replace("batchsize: 20", store))
        params = dsinga.train(job, processes, workers=2, progress=False).params
    arrays = dsinga.train(loads(LINEAR), processes, data=(X / 200, Y), workers=2, progress=False)
    assert_same(params, arrays.params)


@pytest.mark.ci
def test_a_cluster_reads_chunks_of_a_relative_path(
    tmp_path: Path, processes: Client, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    zarr.create_array("x.zarr", data=X, chunks=(8, 4))
    data = (zarr.open_array("x.zarr", mode="r"), Y), (X, Y)
    runs = [dsinga.train(loads(LINEAR), processes, data=each, workers=2, progress=False) for each in data]
    assert_same(*(run.params for run in runs))


@pytest.fixture
def small(job: Job, stores: Path) -> Job:
    """The small job, which tests all 150 records, in two batches of 38 and two of 37."""
    return with_batches(job.replace(train_steps=2, test_freq=2, seed=3), [40])


def with_batches(job: Job, batchsize: list[int]) -> Job:
    """Return the small job with this batch size in all phases."""
    phases = ("kTrain", "kTest")
    return with_fields(job, {f"neuralnet.layer[data,{phase}].store_conf.batchsize": batchsize for phase in phases})


def of_phase(result, phase: str = "test") -> list[dict[str, float]]:
    """The metrics of the rows of a phase."""
    return [
        {name: row[name] for name in row if name not in ("step", "phase", "time")}
        for row in result.history.phase(phase)
    ]


@pytest.mark.parametrize(
    ("workers", "dim", "groups", "batchsize", "grain"),
    [(3, 0, 1, [50, 30, 20], "round"), (3, 1, 1, [40], "round"), (1, 0, 2, [40], "round"), (2, 0, 1, [40], "graph")],
)
def test_figures_are_those_of_evaluate(
    small: Job, stores: Path, threads: Client, workers: int, dim: int, groups: int, batchsize: list[int], grain: str
):
    cluster = ClusterConf(nworkers_per_group=workers, nworker_groups=groups)
    dims = {f"neuralnet.layer[{name}].partition_dim": dim for name in ("ip", "relu")}
    cut = with_batches(with_fields(small, dims).replace(cluster=cluster), batchsize)
    result = train(cut, threads, data_root=str(stores), progress=False, grain=grain)
    expected = evaluate(small, result.params, "test", threads, data_root=str(stores))
    _, last = of_phase(result)
    assert last == pytest.approx(expected, rel=1e-5)


def test_all_records_give_other_figures_than_some_of_them(small: Job, stores: Path, threads: Client):
    every = train(small, threads, data_root=str(stores), progress=False)
    some = train(small.replace(test_steps=1), threads, data_root=str(stores), progress=False)
    assert of_phase(every)[-1]["loss"] != pytest.approx(of_phase(some)[-1]["loss"], rel=1e-4)
    assert_same(some.params, every.params)


def test_an_extension_may_still_ask_for_some_batches(small: Job, stores: Path, threads: Client):
    from dsinga.extensions import EverySteps, Extension

    class Look(Extension):
        trigger = EverySteps(2)

        def run(self, loop):
            seen.append((loop.evaluate("test", 4), loop.evaluate("test"), loop.evaluate("test", 3)))

    seen: list = []
    train(small, threads, data_root=str(stores), progress=False, extensions=[Look()])
    (four, every, three), *_ = seen
    assert four["loss"] == pytest.approx(every["loss"], rel=0.05)  # batches of 38, the last of which begins anew
    assert four != every
    assert three != every


def test_fewer_test_records_than_a_batch(small: Job, stores: Path, threads: Client, tmp_path: Path):
    rng = np.random.default_rng(0)
    write_store(tmp_path / "few.zarr", [(rng.integers(0, 16, (5, 1, 8, 8), np.uint8), np.arange(5))])
    few = with_fields(small, {"neuralnet.layer[data,kTest].store_conf.path": str(tmp_path / "few.zarr")})
    few = few.replace(cluster=ClusterConf(nworkers_per_group=3))
    result = train(few, threads, data_root=str(stores), progress=False)
    expected = evaluate(few, result.params, "test", threads, data_root=str(stores))
    assert of_phase(result)[-1] == pytest.approx(expected, rel=1e-5)


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
    refused(lambda: open_records(x), "the cluster has not computed", "is error: OSError")


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


def test_a_source_is_read_in_the_thread_that_asks(records) -> None:
    with dask.config.set(scheduler=lambda *args, **kwargs: pytest.fail("a scheduler was asked")):
        source = open_records((da.from_array(records[0], chunks=(100, -1, -1, -1)), records[1]))
        assert isinstance(source, RecordSource)
        np.testing.assert_array_equal(source.read([999, 3])[0], records[0][[999, 3]])
