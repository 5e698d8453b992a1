"""A run waits for the Dask workers, and the scheduler, that it is to have, however late they come, and says so."""

from __future__ import annotations

import json
import socket
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
from distributed import Client, LocalCluster
from distributed.diagnostics.plugin import SchedulerPlugin
from safetensors.numpy import save_file

import dsinga
from dsinga import nn, rl
from dsinga.addons.planner.benchmark import measure
from dsinga.cluster import connect
from dsinga.cluster.connecting import embedded, expected_workers, scheduler_probe
from dsinga.cluster.dask import waiting
from dsinga.commands.cli import main
from dsinga.data import write_store
from dsinga.estimators import Classifier
from dsinga.job import Job
from dsinga.job.writer import to_text
from tests.support.polling import wait_until
from tests.support.rl_cases import actor_critic
from tests.support.small_job import LINEAR
from tests.support.tls import running_scheduler

X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
Y = np.arange(40) % 3


def late_cluster(threads: int = 1) -> LocalCluster:
    """Start an in-process cluster without workers."""
    return LocalCluster(
        n_workers=0, threads_per_worker=threads, processes=False, memory_limit=0, dashboard_address=":0",
        scheduler_kwargs={"dashboard": False},
    )  # fmt: skip


@pytest.fixture
def counts(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The numbers of Dask workers that waits have seen; none of them waits for workers that it need not have."""
    seen: list[int] = []

    def spy(client: Client) -> dict[str, Any]:
        workers = real(client)
        seen.append(len(workers))
        return workers

    real = expected_workers.available_workers
    monkeypatch.setattr(expected_workers, "available_workers", spy)
    monkeypatch.setattr(expected_workers, "ARRIVAL_SECONDS", 0.0)
    monkeypatch.setattr(expected_workers, "MOST_ARRIVAL_SECONDS", 0.0, raising=False)
    return seen


@pytest.fixture
def small(tmp_path: Path) -> Job:
    """A job of a linear net, with records in files."""
    write_store(tmp_path / "records.zarr", [(X, Y)])
    fields = {"store_conf.path": tmp_path / "records.zarr", "store_conf.shape": 2}
    return dsinga.loads(
        LINEAR, "linear.conf", [f"neuralnet.layer[data].{name}={value}" for name, value in fields.items()]
    )


def model() -> nn.Sequential:
    """Return a compiled model."""
    net = nn.Sequential([nn.Input((2,)), nn.Dense(3)])
    net.compile("sgd", "sparse_categorical_crossentropy")
    return net


def find_rate(job: Job, client: Client) -> object:
    """Search for a learning rate with two workers."""
    return dsinga.find_learning_rate(job, client, workers=2, steps=10, progress=False)


def learn(client: Client) -> rl.Agent:
    """Train an agent by one remote actor."""
    agent = rl.Agent(rl.A2C(actor_critic(), rl.Spaces(rl.box((4,)), rl.DiscreteSpace(2))))
    return rl.train(agent, "CartPole-v1", steps=80, actors=1, client=client, progress=False).agent


PARAMS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)}
TWO, BOTH = {"nworkers_per_group": 2}, {"nworkers_per_group": 2, "min_workers": 2}
CHUNKED = da.from_array(X, 20), da.from_array(Y, 20)
# What takes workers, and how many Dask workers it needs.
FACES: dict[str, tuple[int, Callable[[Job, Client], object]]] = {
    "train": (2, lambda job, client: dsinga.train(job, client, workers=2, progress=False)),
    "train by a job": (2, lambda job, client: dsinga.train(job.replace(cluster=TWO), client, progress=False)),
    "train, min_workers": (2, lambda job, client: dsinga.train(job.replace(cluster=BOTH), client, progress=False)),
    "train on all": (1, lambda job, client: dsinga.train(job, client, progress=False)),
    "submit": (2, lambda job, client: dsinga.submit(job, client, workers=2).result(60)),
    "fit": (2, lambda _, client: model().fit(X, Y, batch_size=20, client=client, workers=2, progress=False)),
    "find_learning_rate": (2, lambda job, client: find_rate(job, client)),
    "search": (2, lambda job, client: dsinga.search(job, {"seed": [1]}, client=client, workers=2, progress=False)),
    "bench": (2, lambda job, client: measure(job.replace(cluster=TWO), client, steps=2, synthetic=False)),
    "evaluate": (1, lambda job, client: dsinga.evaluate(job, PARAMS, "train", client)),
    "predict": (1, lambda job, client: dsinga.predict(job, PARAMS, "ip", "train", client)),
    "classifier": (1, lambda _, client: Classifier(epochs=1).fit(X, Y, client=client)),
    "classifier, dask": (1, lambda _, client: Classifier(epochs=1).fit(*CHUNKED, client=client)),
    "actors": (1, lambda _, client: learn(client)),
}


@pytest.mark.parametrize(("face", "age"), [*((face, "old") for face in FACES), ("train", "new")])
def test_whatever_takes_workers_waits_for_late_ones(face: str, age: str, small: Job, counts: list[int]) -> None:
    needed, call = FACES[face]
    threads = 2 if "min_workers" in face else 1
    with late_cluster(threads) as cluster, Client(cluster.scheduler_address) as client, ThreadPoolExecutor() as pool:
        if age == "old":
            cluster.scheduler.time_started -= 3600.0  # type: ignore[union-attr]
        done = pool.submit(call, small, client)
        for count in range(needed):  # in vain it asks twice for each
            wait_until(lambda count=count: done.done() or counts.count(count) > 1, 60)
            assert not done.done(), done.result()
            cluster.scale(count + 1)
        done.result(timeout=60)


COMMANDS = {
    "train": ("train", "--workspace", "work"),
    "test": ("test", "--phase", "train", "--checkpoint", "params.safetensors"),
    "predict": ("predict", "--phase=train", "--checkpoint", "params.safetensors", "--layer=ip", "--out=o.zarr"),
    "search": ("search", "--set", "seed=1,2"),
    "find-lr": ("find-lr",),
    "bench": ("bench",),
}


@pytest.mark.parametrize("command", COMMANDS)
def test_a_command_whose_cluster_does_not_come_ends_with_75(
    command: str, small: Job, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its scheduler has no workers, or has not written its file, or not to its end."""
    monkeypatch.chdir(tmp_path)
    Path("job.conf").write_text(to_text(small))
    Path("begun.json").write_text('{"type": "Scheduler", ')
    save_file(PARAMS, "params.safetensors")
    name, *options = COMMANDS[command]
    with running_scheduler("tcp://127.0.0.1") as running:
        for scheduler, words in {
            ("--scheduler", running.address): "workers; waited 0:00:00 for others, as cluster.patience says",
            ("--scheduler-file", "later.json"): "no Dask scheduler has written later.json; waited 0:00:00 for it, as",
            ("--scheduler-file", "begun.json"): "no Dask scheduler has written begun.json; waited 0:00:00 for it, as",
        }.items():
            patience = "--set", "cluster.patience=0.01", "--workers", "2"
            monkeypatch.setattr(sys, "argv", ["dsinga", name, "job.conf", *options, *scheduler, *patience])
            with pytest.raises(SystemExit) as ended:
                main()
            err = capsys.readouterr().err
            assert ended.value.code == 75, err
            assert words in err


def test_a_scheduler_that_comes_late_is_waited_for(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """First there is no file, then that of a scheduler which is gone, then one of a scheduler that is busy."""
    said: list[str] = []
    monkeypatch.setattr(embedded._log, "handle", lambda record: said.append(record.getMessage()))
    monkeypatch.setattr(waiting, "FIRST_ANNOUNCEMENT_SECONDS", 0.0)
    monkeypatch.setattr(waiting, "CHANGE_SECONDS", 0.0)
    file = tmp_path / "scheduler.json"

    def connect_late() -> str:
        with connect(scheduler_file=str(file), patience=60.0) as client:
            return client.scheduler.address

    def hears(text: str) -> None:
        wait_until(lambda: done.done() or any(text in sentence for sentence in said), 30)
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
def test_dask_workers_end_before_their_scheduler(small: Job) -> None:
    """Else they log a CommClosedError, at the end of each run in a batch job."""
    with late_cluster() as cluster, Client(cluster.scheduler_address) as client:
        cluster.scale(2)
        dsinga.train(small, client, workers=2, progress=False)
        client.register_plugin(CountWorkers())
        client.shutdown()
        wait_until(lambda: CountWorkers.count >= 0, 30)
        assert CountWorkers.count == 0
