"""Snapshots, results in the place of params, and the memory that copies of params take."""

import io
import json
import logging
import time
import tracemalloc
from concurrent.futures import Future
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga import UserError, api, nn
from dsinga.api import train
from dsinga.base import buffers
from dsinga.base.errors import RunError
from dsinga.cluster import connect
from dsinga.cluster.run.snapshots import Snapshots
from dsinga.engine.engine import Snapshot
from dsinga.extensions import EverySteps, Extension, KeepBest
from dsinga.job import ClusterConf, Job
from dsinga.monitor import show_progress
from dsinga.ops import get_ops
from tests.support.refusals import refused
from tests.support.small_job import assert_same


class Copies(Future[float]):
    """The copies that a run has been asked for, which come when the test says so."""

    def __init__(self, step: int):
        super().__init__()
        self.step = step


class Run:
    """A run that is asked for snapshots."""

    def __init__(self) -> None:
        self.requests: list[Copies] = []

    def request_snapshot(self, step: int) -> tuple[list[Copies], list[Any]]:
        self.requests.append(Copies(step))
        return [self.requests[-1]], []

    def join_copies(self, copies: list[float], replicas: list[Any]) -> tuple[dict[str, np.ndarray], dict[str, Any]]:
        return {"w": np.full(3, copies[0], np.float32)}, {}


@pytest.fixture
def snapshots(monkeypatch: pytest.MonkeyPatch) -> Snapshots:
    """Snapshots that are due at once."""
    monkeypatch.setattr("dsinga.cluster.run.snapshots.LEAST_SECONDS", 0.0)
    return Snapshots(Snapshot(0, {"w": np.zeros(3, np.float32)}, None), 0.5)


def requested(snapshots: Snapshots, run: Run, step: int) -> Copies:
    """Return the copies for ``step``, which are asked for as soon as they are due."""
    deadline = time.monotonic() + 60
    count = len(run.requests)
    while len(run.requests) == count:
        assert time.monotonic() < deadline
        snapshots.request(run, step)  # type: ignore[arg-type]
    return run.requests[-1]


def test_a_snapshot_counts_once_all_its_parts_are_there(snapshots: Snapshots) -> None:
    run = Run()
    copies = requested(snapshots, run, 5)
    assert not snapshots.collect()
    copies.set_result(copies.step)
    assert not snapshots.collect()  # the steps before it are not known to be done
    snapshots.reach(4)
    assert not snapshots.collect()
    snapshots.reach(5)
    assert snapshots.collect()
    assert snapshots.newest.step == 5
    assert snapshots.newest.params["w"][0] == 5


def test_there_is_one_request_at_a_time_and_none_for_an_old_step(snapshots: Snapshots) -> None:
    run = Run()
    requested(snapshots, run, 5)
    snapshots.request(run, 6)  # type: ignore[arg-type]
    assert [copies.step for copies in run.requests] == [5]
    snapshots.drop()
    snapshots.replace(Snapshot(9, {}, {}))
    snapshots.request(run, 9)  # type: ignore[arg-type]
    assert len(run.requests) == 1


@pytest.mark.parametrize("error", [RunError("past"), RuntimeError("Worker holding Actor was lost"), TimeoutError()])
def test_copies_that_fail_leave_the_snapshot_before(snapshots: Snapshots, error: Exception) -> None:
    copies = requested(snapshots, Run(), 5)
    copies.set_exception(error)
    snapshots.reach(5)
    assert not snapshots.collect()
    assert snapshots.newest.step == 0
    assert requested(snapshots, Run(), 6).step == 6


def test_too_little_memory_ends_snapshots_with_a_warning(
    snapshots: Snapshots, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run()
    copies = requested(snapshots, run, 5)
    copies.set_exception(MemoryError())
    snapshots.reach(5)
    with caplog.at_level(logging.WARNING):
        assert not snapshots.collect()
    assert "too little memory for snapshots" in caplog.text
    snapshots.request(run, 7)  # type: ignore[arg-type]
    assert len(run.requests) == 1


def test_the_state_of_the_loop_is_added_at_its_step(snapshots: Snapshots) -> None:
    copies = requested(snapshots, Run(), 5)
    snapshots.add_loop(4, lambda: {"at": 4})
    snapshots.add_loop(5, lambda: {"at": 5})
    copies.set_result(copies.step)
    snapshots.reach(5)
    assert snapshots.collect()
    assert snapshots.newest.loop == {"at": 5}


def test_a_share_of_zero_makes_none() -> None:
    run = Run()
    Snapshots(Snapshot(0, {}, None), 0.0).request(run, 5)  # type: ignore[arg-type]
    assert not run.requests


def test_servers_may_change_copies(snapshots: Snapshots) -> None:
    snapshot = Snapshot(3, {"w": np.ones(2, np.float32)}, {"w": {"history": np.ones(2, np.float32)}})
    params, state = snapshot.copy()
    params["w"][:] = 5
    state["w"]["history"][:] = 7
    assert snapshot.params["w"][0] == snapshot.state["w"]["history"][0] == 1  # type: ignore[index]
    assert snapshot.nbytes == 16


def test_a_result_takes_the_place_of_its_params(job: Job, stores: Path, threads: Client):
    result = api.train(job.replace(train_steps=2), threads, progress=False, data_root=str(stores))
    expected = api.evaluate(job, result.params, client=threads, data_root=str(stores))
    assert api.evaluate(job, result, client=threads, data_root=str(stores)) == expected
    refused(lambda: api.predict(job, result, "x", client=threads, data_root=str(stores)), "'x'", "its layers are data")
    with pytest.raises(UserError, match=r"job must be a dsinga.Job or the path of a job file, not a Result"):
        api.evaluate(result, client=threads)  # type: ignore[arg-type]


def test_the_line_that_names_the_params_names_the_best_ones(
    job: Job, stores: Path, threads: Client, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys
):
    monkeypatch.chdir(tmp_path)
    job = job.replace(train_steps=2, test_freq=1)
    where = {"client": threads, "data_root": str(stores)}
    api.train(job, workspace="small-workspace", progress=False, extensions=[KeepBest("test/loss")], **where)
    api.evaluate(job, **where)
    assert capsys.readouterr().err == (
        "params of small-workspace/checkpoint/step2 (the best ones are in small-workspace/best.safetensors)\n"
    )


def test_rows_at_the_end_of_each_epoch(job: Job, stores: Path, threads: Client, tmp_path: Path):
    by_epochs = job.replace(train_steps=0, disp_freq=0, seed=3, cluster=ClusterConf(nworkers_per_group=2))
    result = train(by_epochs, threads, epochs=3, data_root=str(stores), progress=False, workspace=tmp_path)
    assert result.step == result.job.train_steps == 30
    for phase in ("train", "test"):
        assert result.history.phase(phase)[:, ("step", "epoch")] == [(10, 1), (20, 2), (30, 3)]
    assert json.loads((tmp_path / "metrics.jsonl").read_text().splitlines()[0])["epoch"] == 1
    assert "epoch" not in repr(result)
    by_steps = by_epochs.replace(train_steps=30)
    assert_same(train(by_steps, threads, data_root=str(stores), progress=False).params, result.params)


def test_frequencies_of_the_job_count(job: Job, stores: Path, threads: Client):
    often = job.replace(train_steps=0, epochs=1, disp_freq=4, test_freq=5, cluster=ClusterConf(nworker_groups=3))
    result = train(often, threads, data_root=str(stores), progress=False)
    assert result.history.phase("test")[:, ("step", "epoch")] == [(0, 0), (4, 1)]
    assert result.history.phase("train")[:, ("step", "epoch")] == [(4, 1)]  # ceil(1000 / 300) steps


def test_lines_name_the_epoch():
    out = io.StringIO()
    with show_progress(30, "small", out) as display:
        display.show_row({"step": 10, "epoch": 1.25, "phase": "test", "time": 1.0, "loss": 0.5})
    assert out.getvalue() == "step 10/30  epoch 1.25  test  loss 0.5\n"


WIDTH, LAYERS = 1200, 4


def fit(width: int, client: Client) -> None:
    images = np.ones((8, width), np.float32)
    model = nn.Sequential([nn.Dense(width) for _ in range(LAYERS)])
    model.compile(nn.SGD(0.001), "mse")
    model.fit(images, images, epochs=3, batch_size=8, client=client, progress=False)


@pytest.mark.ci
@pytest.mark.skipif(get_ops().name != "onednn", reason="numpy's gradients are no arrays of the pool")
def test_a_run_within_one_process_has_one_copy_of_params_and_of_the_largest_gradient(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(buffers, "CHUNK", 1 << 16)  # of larger ones most is not touched
    with connect(workers=1, separate_processes=False) as client:
        fit(WIDTH, client)  # what it imports and, where there is numba, compiles is no copy
        tracemalloc.start(1)
        try:
            fit(WIDTH, client)
            _, peak = tracemalloc.get_traced_memory()
        finally:
            tracemalloc.stop()
    assert peak < 2 * LAYERS * WIDTH**2 * 4


class Closes(Extension):
    """Closes the Dask workers of a cluster in this process."""

    trigger = EverySteps(2)

    def __init__(self, client: Client):
        self.cluster: Any = client.cluster

    def run(self, loop: Any) -> None:
        for worker in [*self.cluster.workers.values()]:
            self.cluster.sync(worker.close)


def test_a_run_that_loses_the_only_dask_worker_of_its_process_ends_at_once() -> None:
    images = np.ones((8, 4), np.float32)
    model = nn.Sequential([nn.Dense(4)])
    model.compile(nn.SGD(0.001), "mse")
    with connect(workers=1, separate_processes=False) as client, pytest.raises(RunError, match="keeps no snapshot"):
        model.fit(images, images, epochs=100, batch_size=8, client=client, progress=False, callbacks=[Closes(client)])
