"""A workspace at a URL has the same files as a local one, is resumed, and belongs to one run."""

import json
from collections.abc import Iterator

import fsspec
import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import UserError
from dsinga.api import train
from dsinga.checkpoint import read_params
from dsinga.extensions import KeepBest
from dsinga.job import Job
from tests.support.refusals import refused
from tests.support.small_job import assert_same

URL = "memory://bucket/run"


@pytest.fixture
def files() -> Iterator[fsspec.AbstractFileSystem]:
    """The file system in memory of this process, empty at first."""
    memory = fsspec.filesystem("memory")
    memory.store.clear()
    memory.pseudo_dirs[:] = [""]
    yield memory
    memory.store.clear()


@pytest.fixture
def short(job: Job) -> Job:
    return job.replace(train_steps=20, checkpoint_freq=10, checkpoint_keep=2)


def names(files: fsspec.AbstractFileSystem) -> set[str]:
    return {path.removeprefix("/bucket/run/") for path in files.find("/bucket/run")}


def test_a_run_is_resumed_there_and_earlier_ones_are_kept(files, short: Job, threads: Client) -> None:
    train(short, threads, workspace=URL, progress=False, extensions=[KeepBest("train/loss")])
    assert {"metrics.jsonl", "best.safetensors", "checkpoint/step10/checkpoint.json"} < names(files)
    assert "running.json" not in names(files)
    longer = short.replace(train_steps=30)
    resumed = train(longer, threads, workspace=URL, resume="auto", progress=False)
    whole = train(longer, threads, progress=False)
    assert_same(resumed.params, whole.params)
    assert resumed.workspace == URL
    assert resumed.history[:, "step"] == [10, 20, 30]
    steps = {name.split("/")[1] for name in names(files) if name.startswith("checkpoint/")}
    assert steps == {"step20", "step30"}
    assert_same(read_params(URL), whole.params)
    assert_same(read_params(f"{URL}/checkpoint/step30/params.safetensors"), whole.params)
    train(short.replace(checkpoint_path=[f"{URL}/checkpoint/step20"]), threads, workspace=URL, progress=False)
    assert {"run-1/metrics.jsonl", "run-1/checkpoint/step30/checkpoint.json"} < names(files)
    assert dsinga.evaluate(short, URL, "test", threads)["loss"] > 0


def test_a_folder_without_its_last_file_is_no_checkpoint(files, short: Job, threads: Client) -> None:
    train(short, threads, workspace=URL, progress=False)
    files.rm("/bucket/run/checkpoint/step20/checkpoint.json")
    resumed = train(short, threads, workspace=URL, resume=True, progress=False)
    assert_same(resumed.params, train(short, threads, progress=False).params)
    for step in (10, 20):
        files.rm(f"/bucket/run/checkpoint/step{step}/checkpoint.json")
    refused(lambda: train(short, threads, workspace=URL, resume=True, progress=False), "from in memory://bucket/run;")
    refused(lambda: read_params(URL), "there is no checkpoint at memory://bucket/run")


def test_a_damaged_file_is_named_by_its_url(files, short: Job, threads: Client) -> None:
    train(short, threads, workspace=URL, progress=False)
    for step in (10, 20):
        files.pipe_file(f"/bucket/run/checkpoint/step{step}/params.safetensors", b"x")
    fault = rf"{URL}/checkpoint/step20/params.safetensors is damaged"
    refused(lambda: train(short, threads, workspace=URL, resume=True, progress=False), fault)
    refused(lambda: read_params(URL), fault)


def test_a_run_that_writes_there_is_named(files, short: Job, threads: Client) -> None:
    files.pipe_file("/bucket/run/running.json", json.dumps({"host": "far", "pid": 7, "since": 0}).encode())
    with pytest.raises(UserError, match=rf"process 7 on far, since .*delete {URL}/running.json"):
        train(short, threads, workspace=URL, progress=False)
    assert names(files) == {"running.json"}


def test_a_url_that_cannot_be_written_is_refused_before_training(short: Job, threads: Client, monkeypatch) -> None:
    refused(lambda: train(short, threads, workspace="nosuch://x", progress=False), "nosuch://x cannot be opened")


def test_uploads_that_fail_do_not_end_training(files, short: Job, threads: Client, monkeypatch) -> None:
    put = type(files).put_file

    def fail(self, local: str, remote: str, **options: object) -> None:
        if "step" in remote:
            raise ConnectionError("the bucket is gone")
        put(self, local, remote, **options)

    monkeypatch.setattr(type(files), "put_file", fail)
    result = train(short, threads, workspace=URL, progress=False)
    assert result.step == 20
    assert f"{URL} cannot be written: ConnectionError: the bucket is gone" in result.unsaved
    assert all(np.isfinite(value).all() for value in result.params.values())
