"""However a run ends, none of its partitions, shards and threads stays on the cluster."""

import logging
import re
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from distributed import Client

from dsinga import UserError, cluster
from dsinga.api import train
from dsinga.base.registry import register
from dsinga.cluster.on_workers import worker_actor
from dsinga.cluster.transport.endpoints import endpoint_names
from dsinga.job import AlgConf, Job
from dsinga.job.reader import with_fields
from dsinga.loop import training_loop
from dsinga.training.bp import bp
from tests.support.observers import AtRow, Silent, train_observed
from tests.support.polling import wait_until
from tests.support.refusals import refused
from tests.support.small_disk import files_of_at_most
from tests.support.small_job import assert_same, with_topology


@pytest.fixture
def client() -> Iterator[Client]:
    """A client of an in-process cluster of two Dask workers with one thread each."""
    with cluster.connect(workers=2) as client:
        yield client


def left_by_runs() -> list[Any]:
    """Return the partitions, shards and threads that runs have in this process."""
    threads = [thread for thread in threading.enumerate() if thread.name.startswith("dsinga")]
    return [*worker_actor.WORKERS, *endpoint_names(), *threads]


@pytest.fixture
def before() -> list[Any]:
    """What runs of other tests have left in this process before a test."""
    return left_by_runs()


def wait_until_cleaned_up(before: list[Any]) -> None:
    """Wait until no run has more in this process than ``before``."""
    wait_until(lambda: all(item in before for item in left_by_runs()))


def test_a_run_whose_client_closes_is_cleaned_up(job: Job, client: Client, before: list[Any]) -> None:
    """To the scheduler, a client that closes is the same as one whose process was killed."""
    driver = Client(client.cluster, set_as_default=False)
    endless = with_topology(job, 2, 2).replace(train_steps=1_000_000)
    refused(lambda: train_observed(endless, driver, AtRow(10, driver.close)), "(?i)client is closed", error=Exception)
    wait_until_cleaned_up(before)
    assert train(with_topology(job, 2), client, progress=False).step == 50, "the workers are free for the next run"


def test_a_long_run_keeps_the_timings_of_its_last_steps(job: Job, client: Client, monkeypatch) -> None:
    monkeypatch.setattr(training_loop, "TIMINGS_KEPT", 20)
    outcome = train_observed(with_topology(job, 1), client, Silent())
    assert len(outcome.timings) == 20


class Unpicklable(Exception):
    def __init__(self, message: str, lock: Any):
        super().__init__(message)
        self.lock = lock


@pytest.mark.parametrize("dim", [0, 1])
def test_a_fault_in_one_partition_ends_the_others(job: Job, client: Client, before: list[Any], dim: int) -> None:
    """They wait for a server, or for the features of the partition."""

    @register("algorithm", "FailsOnce")
    def fails_once(net, values, records, ctx, push):
        if ctx.step == 5 and ctx.rows.start > 0:
            raise Unpicklable("a fault of the second partition", threading.Lock())
        return bp(net, values, records, ctx, push)

    job = with_fields(with_topology(job, 2, 2), {"neuralnet.layer[ip].partition_dim": dim})
    job = job.replace(train_one_batch=AlgConf(user_alg="FailsOnce"))
    refused(lambda: train(job, client, progress=False), "a fault of the second", "partition", error=Exception)
    wait_until_cleaned_up(before)  # the others' calls would wait for five minutes, longer than a test may take


def test_an_interrupted_run_says_how_to_go_on_in_python(job: Job, client: Client, tmp_path: Path, before: list[Any]):
    def interrupt(step: int, metrics: dict[str, float]) -> None:
        if step == 10:
            raise KeyboardInterrupt

    job = with_topology(job, 2).replace(checkpoint_freq=4)
    with pytest.raises(KeyboardInterrupt, match=r"steps were done; go on from \S+/step8 with resume=True$"):
        train(job, client, workspace=tmp_path, progress=False, extensions=[interrupt])
    wait_until_cleaned_up(before)
    assert train(job.replace(train_steps=12), client, workspace=tmp_path, progress=False, resume=True).step == 12


def test_a_run_in_a_program_that_exits_says_how_to_go_on(
    job: Job, threads: Client, tmp_path: Path, caplog, before: list[Any]
):
    """dask_jobqueue lets Ctrl-C exit the program."""

    def leave(step: int, metrics: dict[str, float]) -> None:
        if step == 10:
            sys.exit()

    short = job.replace(checkpoint_freq=4)
    with caplog.at_level(logging.WARNING), pytest.raises(SystemExit):  # Dask has set the level higher
        train(short, threads, workers=1, workspace=tmp_path, progress=False, extensions=[leave])
    assert re.search(r"ended: \d+ steps were done; go on from \S+/step8 with resume=True$", caplog.text, re.MULTILINE)
    wait_until_cleaned_up(before)


def test_resuming_names_the_earlier_run_that_is_kept(job: Job, client: Client, tmp_path: Path):
    short = with_topology(job, 1).replace(train_steps=1)
    for _ in range(2):
        train(short, client, workspace=tmp_path, progress=False)
    (tmp_path / "checkpoint").rename(tmp_path / "elsewhere")
    with pytest.raises(
        UserError, match=rf"no checkpoint to resume from in {tmp_path}; resume the earlier run that"
    ) as error:
        train(short, client, workspace=tmp_path, progress=False, resume=True)
    assert str(error.value).endswith(f"with workspace={tmp_path}/run-1")


def test_a_full_disk_does_not_end_training(job: Job, client: Client, tmp_path: Path, caplog) -> None:
    job = job.replace(train_steps=30, checkpoint_freq=10)
    whole = train(job, client, progress=False)
    with files_of_at_most(1000), caplog.at_level(logging.WARNING):  # Dask has set the level higher
        result = train(job, client, workspace=tmp_path, progress=False)
    assert_same(result.params, whole.params)
    assert result.step == 30
    assert "step30 cannot be written" in result.unsaved
    assert "no checkpoint was written" in result.unsaved
    assert caplog.text.count("training goes on") >= 3
    resumed = train(job.replace(train_steps=40), client, workspace=tmp_path, resume="auto", progress=False)
    assert not resumed.unsaved
    assert sorted(path.name for path in (tmp_path / "checkpoint").iterdir()) == ["step10", "step20", "step30", "step40"]
