"""Stores in object storage, on a real S3 server: a record store, and a zarr group of one's own."""

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from distributed import Client

from dsinga.api import train
from dsinga.base.errors import UserError
from dsinga.checkpoint import read_params
from dsinga.data import describe, open_store, write_store
from dsinga.data.filesystem import zarr_store
from dsinga.job import Job, loads
from tests.support.small_job import JOB, assert_same, with_topology

SECRET = "it-is-secret"


def environment(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": "somebody",
        "AWS_SECRET_ACCESS_KEY": SECRET,
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }


@pytest.fixture(scope="module")
def server() -> Iterator[str]:
    """The address of an S3 server, which runs in threads of this process; its buckets are ``bucket``."""
    pytest.importorskip("s3fs")
    moto = pytest.importorskip("moto.server")
    running = moto.ThreadedMotoServer(ip_address="127.0.0.1", port=0, verbose=False)
    running.start()
    host, port = running.get_host_and_port()
    yield f"http://{host}:{port}"
    running.stop()


@pytest.fixture
def bucket(server: str, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    """The URL of an empty bucket; the credentials are in the environment."""
    import s3fs

    for name, value in environment(server).items():
        monkeypatch.setenv(name, value)
    filesystem = s3fs.S3FileSystem()
    filesystem.mkdir("bucket")
    yield "s3://bucket/folder"
    filesystem.rm("bucket", recursive=True)


@pytest.fixture
def workers(server: str, processes: Client) -> Iterator[Client]:
    """Worker processes that have the credentials."""
    names = environment(server)
    processes.run(set_environment, names)
    yield processes
    processes.run(set_environment, dict.fromkeys(names))


def set_environment(values: dict[str, Any]) -> None:
    for name, value in values.items():
        if value is None:
            os.environ.pop(name, None)
        else:
            os.environ[name] = value


def job(path: str, *names: str) -> Job:
    """Return the small job with the records of ``path`` for training."""
    fields = f'path: "{path}"' + "".join(f" {name}" for name in names)
    return with_topology(loads(JOB.replace('path: "train.zarr"', fields), "small.conf"), 2).replace(train_steps=5)


@pytest.mark.ci
def test_training_reads_a_bucket(stores: Path, bucket: str, workers: Client) -> None:
    store = open_store(stores / "train.zarr")
    data, labels = store.read(range(len(store)))
    write_store(f"{bucket}/train.zarr", [(data, labels)])
    group = zarr.open_group(zarr_store(f"{bucket}/own.zarr", read_only=False), mode="w", zarr_format=2)
    group.create_array("digits/pixels", data=data, chunks=(300, 1, 4, 8))
    group.create_array("digits/kinds", data=labels, chunks=(1000,))
    assert describe(open_store(f"{bucket}/train.zarr"))["stored_bytes"] > 0
    expected = train(job("train.zarr"), workers, data_root=str(stores), progress=False)
    remote = train(job(f"{bucket}/train.zarr"), workers, progress=False)
    own = train(job(f"{bucket}/own.zarr", 'data: "digits/pixels"', 'label: "digits/kinds"'), workers, progress=False)
    assert_same(remote.params, expected.params)
    assert_same(own.params, expected.params)


def test_faults_name_the_url_and_no_secret(bucket: str) -> None:
    write_store(f"{bucket}/x.zarr", [(np.zeros((3, 2)), None)])
    faults = {
        f"{bucket}/nothing.zarr": "bucket/folder/nothing.zarr was not found",
        "s3://nowhere/x.zarr": "s3://nowhere/x.zarr was not found",
        f"{bucket}": "no zarr array or group that can be opened",
    }
    for url, message in faults.items():
        with pytest.raises(UserError, match=message) as refused:
            open_store(url)
        assert SECRET not in str(refused.value)


def test_references_lead_to_a_bucket(bucket: str, tmp_path: Path) -> None:
    data = np.arange(12, dtype=np.float32).reshape(6, 2)
    group = zarr.open_group(zarr_store(f"{bucket}/own.zarr", read_only=False), mode="w", zarr_format=2)
    array = group.create_array("x", data=data, chunks=(3, 2))
    refs: dict[str, Any] = {f"x/{chunk}.0": [f"{{{{u}}}}/x/{chunk}.0"] for chunk in range(2)}
    refs |= {".zgroup": {"zarr_format": 2}, "x/.zarray": {**array.metadata.to_dict(), "attributes": {}}}
    (tmp_path / "refs.json").write_text(
        json.dumps({"version": 1, "refs": refs, "templates": {"u": f"{bucket}/own.zarr"}})
    )
    np.testing.assert_array_equal(open_store(tmp_path / "refs.json").read(range(6))[0], data)


@pytest.mark.ci
def test_a_workspace_in_object_storage_is_resumed(job: Job, bucket: str, threads: Client) -> None:
    short = job.replace(train_steps=20, checkpoint_freq=10)
    train(short.replace(train_steps=10), threads, workspace=f"{bucket}/run", progress=False)
    resumed = train(short, threads, workspace=f"{bucket}/run", resume=True, progress=False)
    assert not resumed.unsaved
    assert_same(resumed.params, train(short, threads, progress=False).params)
    assert_same(read_params(f"{bucket}/run/checkpoint/step20"), resumed.params)
    with pytest.raises(UserError, match="there is no checkpoint at s3://bucket/folder/other"):
        read_params(f"{bucket}/other")
