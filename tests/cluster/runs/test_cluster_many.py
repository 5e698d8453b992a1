"""What many partitions cost: work in proportion to their number, by counts; a thousand Dask workers are not lost."""

import sys
from collections.abc import Callable
from functools import partial
from pathlib import Path
from types import FrameType
from typing import Any

import numpy as np
import pytest
from distributed import Client

from dsinga.cluster import available_workers
from dsinga.cluster.dask import heartbeats
from dsinga.cluster.dask.supervision import TaskChains
from dsinga.cutting.cluster_topology import topology
from dsinga.cutting.phases import cut_nets
from dsinga.data import write_store
from dsinga.job import ClusterConf, Job, NetConf, Phase, loads
from dsinga.passes.opened_job import open_job
from dsinga.reading.checked_job import CheckedJob
from tests.support.plain_nets import dense, layer
from tests.support.train_in_threads import create_servers, create_workers, prepare, running

ROOM = str(Path(heartbeats.__file__).parents[2])


def lines_executed(function: Callable[[], Any]) -> int:
    """Return how many lines of dsinga a function executes; a line of a loop counts each time."""
    count = 0

    def trace(frame: FrameType, event: str, argument: Any) -> Any:
        nonlocal count
        if not frame.f_code.co_filename.startswith(ROOM):
            return None
        count += event == "line"
        return trace

    before = sys.gettrace()
    sys.settrace(trace)
    try:
        function()
    finally:
        sys.settrace(before)
    return count


def wide_job(folder: Path, workers: int) -> Job:
    """Return a job of three layers, with a record in a file for each worker, and at most four servers."""
    write_store(folder / "train_data.zarr", [(np.zeros((workers, 16), np.uint8), np.zeros(workers, np.int64))])
    store = {"path": "train_data.zarr", "batchsize": workers, "shape": 16}
    layers = [layer("data", "kRecordInput", store_conf=store), dense("fc0", "data", 64), dense("fc1", "fc0", 64)]
    layers += [dense("out", "fc1", 4), layer("loss", "kSoftmaxLoss", "out", "data")]
    cluster = ClusterConf(nworkers_per_group=workers, nservers_per_group=min(workers, 4))
    return loads("train_steps: 1").replace(neuralnet=NetConf(layer=layers), cluster=cluster)


def test_cutting_a_net_takes_work_in_proportion_to_the_workers(tmp_path: Path) -> None:
    counts = []
    for workers in (64, 128):
        (folder := tmp_path / str(workers)).mkdir()
        job = wide_job(folder, workers)
        opened = open_job(CheckedJob(job, [str(folder)]), workers)
        counts.append(lines_executed(partial(cut_nets, opened.nets, opened.readers)))
    assert counts[1] < 2.1 * counts[0]


def step(number: int, before: Any) -> int:
    return number


def test_a_wait_looks_at_the_tasks_of_a_round_when_all_have_ended(threads: Client) -> None:
    tasks: list[Any] = [None]
    for number in range(40):
        tasks.append(threads.submit(step, number, tasks[-1], pure=False))
    looks: list[float] = []
    chains = TaskChains(threads, available_workers(threads), looks.append)
    assert chains.wait(tasks[1:]) == list(range(40))
    assert len(looks) < len(tasks) / 2, "one for each task that has ended"


def test_workers_connect_to_the_servers_of_their_params_alone(tmp_path: Path) -> None:
    """Of layers that are cut by features each worker has params of its own, which few servers keep."""
    job = wide_job(tmp_path, 4)
    for each in job.neuralnet.layer:
        each.partition_dim = int(each.name.startswith("fc"))
    config, values = prepare(job, topology(job, 4, 1), [str(tmp_path)])
    with running(config) as workers:
        create_servers(config, values)
        workers += create_workers(config, values)
        needed = [worker._transports.keys() for worker in workers]
    for location, servers in enumerate(needed):
        params = config.nets[Phase.kTrain].locals[location].params
        assert servers == {0, *(slice_.server for slice_ in config.slices if slice_.param in params)}
    assert min(map(len, needed)) < 4


def test_dask_workers_that_send_heartbeats_rarely_because_they_are_many_are_not_lost(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    now = 0.0
    monkeypatch.setattr(heartbeats.time, "monotonic", lambda: now)
    beats = heartbeats.Heartbeats()
    for second in range(40):
        now = float(second)
        last = second - second % 11  # Dask: a heartbeat every 11 s from each of 2,000
        workers = {f"tcp://{number}": {"last_seen": last} for number in range(2000)}
        beats.update(None, workers)  # type: ignore[arg-type]
        assert not beats.silent()
