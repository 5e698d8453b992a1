"""Whatever takes workers waits for those that come late, and a command whose cluster does not come ends with 75."""

import re
import sys
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client, LocalCluster, Worker
from safetensors.numpy import save_file

import dsinga
from dsinga.cluster.connecting import expected_workers
from dsinga.commands.cli import main
from dsinga.data import write_store
from dsinga.job import Job
from dsinga.job.writer import to_text
from tests.support.polling import wait_until
from tests.support.small_job import LINEAR
from tests.support.tls import running_scheduler

X = np.random.default_rng(0).normal(size=(40, 2)).astype(np.float32)
Y = np.arange(40) % 3
PARAMS = {"w": np.zeros((3, 2), np.float32), "b": np.zeros(3, np.float32)}
TWO = {"nworkers_per_group": 2}


def late_cluster(threads: int = 1, worker_class: type[Worker] = Worker) -> LocalCluster:
    """Start an in-process cluster without workers."""
    return LocalCluster(
        n_workers=0, threads_per_worker=threads, processes=False, memory_limit=0, dashboard_address=":0",
        scheduler_kwargs={"dashboard": False}, worker_class=worker_class,
    )  # fmt: skip


def small_job(folder: Path) -> Job:
    """Return a job of a linear net, with records in files."""
    write_store(folder / "records.zarr", [(X, Y)])
    fields = {"store_conf.path": folder / "records.zarr", "store_conf.shape": 2}
    return dsinga.loads(
        LINEAR, "linear.conf", [f"neuralnet.layer[data].{name}={value}" for name, value in fields.items()]
    )


def counts_of_waits(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """Return the numbers of Dask workers that waits see; none of them waits for workers that it need not have."""
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


def check_wait(
    needed: int,
    call: Callable[[Job, Client], object],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    *,
    threads: int = 1,
    is_old: bool = True,
) -> None:
    """Assert that a call waits until there are as many Dask workers as it needs, which come one after another."""
    counts, small = counts_of_waits(monkeypatch), small_job(folder)
    with late_cluster(threads) as cluster, Client(cluster.scheduler_address) as client, ThreadPoolExecutor() as pool:
        if is_old:
            cluster.scheduler.time_started -= 3600.0  # type: ignore[union-attr]
        done = pool.submit(call, small, client)
        for count in range(needed):  # in vain it asks twice for each
            wait_until(lambda count=count: done.done() or counts.count(count) > 1, 60)
            assert not done.done(), done.result()
            cluster.scale(count + 1)
        done.result(timeout=60)


def check_status(
    name: str,
    options: tuple[str, ...],
    folder: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """Assert that a command ends with 75 where its scheduler has no workers, or has not written its whole file."""
    monkeypatch.chdir(folder)
    Path("job.conf").write_text(to_text(small_job(folder)))
    Path("begun.json").write_text('{"type": "Scheduler", ')
    save_file(PARAMS, "params.safetensors")
    with running_scheduler("tcp://127.0.0.1") as running:
        for scheduler, words in {
            ("--scheduler", running.address): r"workers; waited 0:00:\d\d for others, as cluster\.patience says",
            ("--scheduler-file", "later.json"): r"no Dask scheduler has written later\.json; waited 0:00:\d\d for it",
            ("--scheduler-file", "begun.json"): r"no Dask scheduler has written begun\.json; waited 0:00:\d\d for it",
        }.items():
            patience = "--set", "cluster.patience=0.01", "--workers", "2"
            monkeypatch.setattr(sys, "argv", ["dsinga", name, "job.conf", *options, *scheduler, *patience])
            with pytest.raises(SystemExit) as ended:
                main()
            err = capsys.readouterr().err
            assert ended.value.code == 75, err
            assert re.search(words, err), err
