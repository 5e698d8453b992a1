"""A run waits for the Dask workers, and the scheduler, that it is to have, however late they come, and says so."""

import json
import socket
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest
from distributed import Client
from distributed.diagnostics.plugin import SchedulerPlugin

import dsinga
from dsinga import nn
from dsinga.cluster import connect
from dsinga.cluster.connecting import embedded, scheduler_probe
from dsinga.job import Job
from tests.support.late_workers import PARAMS, TWO, X, Y, check_status, check_wait, late_cluster, small_job
from tests.support.polling import wait_until
from tests.support.tls import running_scheduler


def model() -> nn.Sequential:
    """Return a compiled model."""
    net = nn.Sequential([nn.Input((2,)), nn.Dense(3)])
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


BOTH = {**TWO, "min_workers": 2}
# What takes workers, and how many Dask workers it needs.
FACES: dict[str, tuple[int, Callable[[Job, Client], object]]] = {
    "train": (2, lambda job, client: dsinga.train(job, client, workers=2, progress=False)),
    "train by a job": (2, lambda job, client: dsinga.train(job.replace(cluster=TWO), client, progress=False)),
    "train, min_workers": (2, lambda job, client: dsinga.train(job.replace(cluster=BOTH), client, progress=False)),
    "train on all": (1, lambda job, client: dsinga.train(job, client, progress=False)),
    "submit": (2, lambda job, client: dsinga.submit(job, client, workers=2).result(60)),
    "fit": (2, lambda _, client: model().fit(X, Y, batch_size=20, client=client, workers=2, progress=False)),
    "evaluate": (1, lambda job, client: dsinga.evaluate(job, PARAMS, "train", client)),
    "predict": (1, lambda job, client: dsinga.predict(job, PARAMS, "ip", "train", client)),
}


@pytest.mark.parametrize(("face", "age"), [*((face, "old") for face in FACES), ("train", "new")])
def test_whatever_takes_workers_waits_for_late_ones(
    face: str, age: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    needed, call = FACES[face]
    threads = 2 if "min_workers" in face else 1
    check_wait(needed, call, tmp_path, monkeypatch, threads=threads, is_old=age == "old")


COMMANDS = {
    "train": ("train", "--workspace", "work"),
    "test": ("test", "--phase", "train", "--checkpoint", "params.safetensors"),
    "predict": ("predict", "--phase=train", "--checkpoint", "params.safetensors", "--layer=ip", "--out=o.zarr"),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_cluster_does_not_come_ends_with_75(
    command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """It says how long it has waited "for others, as cluster.patience says"."""
    name, *options = COMMANDS[command]
    check_status(name, tuple(options), tmp_path, monkeypatch, capsys)


def test_a_scheduler_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch, announced_at_once: None) -> None:
    """First there is no file, then that of a scheduler which is gone, then one of a scheduler that is busy."""
    said: list[str] = []
    monkeypatch.setattr(embedded._log, "handle", lambda record: said.append(record.getMessage()))
    file = tmp_path / "scheduler.json"

    def connect_late() -> str:
        with connect(scheduler_file=str(file), patience=60.0) as client:
            return client.scheduler.address

    def hears(text: str) -> None:
        wait_until(lambda: done.done() or any(text in sentence for sentence in said))
        assert not done.done(), done.result()

    with (
        running_scheduler("tcp://127.0.0.1") as running,
        ThreadPoolExecutor() as pool,
        socket.create_server(("127.0.0.1", 0)) as listener,
    ):
        silent = f"tcp://127.0.0.1:{listener.getsockname()[1]}"
        done = pool.submit(connect_late)
        hears(f"no Dask scheduler has written {file}; waiting for it; 0:00:")
        with monkeypatch.context() as impatient:
            impatient.setattr(embedded, "CONNECT_SECONDS", 0.2)
            impatient.setattr(scheduler_probe, "HELLO_SECONDS", 0.1)
            file.write_text('{"address": "tcp://127.0.0.1:1"}')
            hears("no Dask scheduler answers at tcp://127.0.0.1:1: ")
            file.write_text(json.dumps({"address": silent}))
            hears(f"what listens at {silent} does not answer as a Dask scheduler; waiting for it; 0:00:")
        file.write_text(json.dumps({"address": running.address}))
        assert done.result(timeout=60) == running.address
    assert said[0].endswith(" so far, 0:01:00 at most, cancel() gives up")


class CountWorkers(SchedulerPlugin):
    """Counts the Dask workers that a scheduler still has where it closes its connections."""

    name = "count-workers"
    count = -1

    async def start(self, scheduler: Any) -> None:
        """Learn of the scheduler."""
        self._scheduler = scheduler

    async def close(self) -> None:
        """Count."""
        CountWorkers.count = len(self._scheduler.workers)


@pytest.mark.ci
def test_dask_workers_end_before_their_scheduler(tmp_path: Path) -> None:
    """Else they log a CommClosedError, at the end of each run in a batch job."""
    with late_cluster() as cluster, Client(cluster.scheduler_address) as client:
        cluster.scale(2)
        dsinga.train(small_job(tmp_path), client, workers=2, progress=False)
        client.register_plugin(CountWorkers())
        client.shutdown()
        wait_until(lambda: CountWorkers.count >= 0)
        cluster.shutdown_scheduler = False  # the cluster would try for 30 s to end it once more
        assert CountWorkers.count == 0
