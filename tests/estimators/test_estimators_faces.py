"""Every face trains by the one loop: an extension stops it, and it goes on without a lost worker."""

import logging
import os
import signal
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.base.registry import register
from dsinga.cluster import available_workers
from dsinga.commands.cli import main
from dsinga.data import write_store
from dsinga.estimators import Classifier, Transformer
from dsinga.extensions import EverySteps, Extension
from dsinga.job import ClusterConf, Job, loads, to_text
from dsinga.monitor import read_metrics
from tests.support.forked_cluster import ForkedCluster, forked_cluster

X = np.random.default_rng(3).normal(size=(48, 6)).astype(np.float32)
Y = (X.sum(axis=1) > 0).astype(np.int64)
STEPS = 60
LIMIT = 60.0

Rows = list[dict[str, Any]]
Face = Callable[..., Rows]


def job_of(folder: Path, workers: int, extension: str = "") -> Job:
    """Return a job for the records in ``folder``, which has an epoch of three steps."""
    job = dsinga.models.mlp([8], inputs=6, classes=2, batchsize=16, train_steps=STEPS)
    layers = [layer for layer in job.net.layer if not layer.include or "kTrain" in str(layer.include)]
    for layer in layers:
        if layer.store_conf:
            layer.store_conf.path = str(folder / "train.zarr")
    conf = ClusterConf(nworkers_per_group=workers)
    extensions = loads(f"train_steps: 1 {extension}").extension
    net = job.net.replace(layer=layers)
    return job.replace(cluster=conf, disp_freq=3, test_freq=0, neuralnet=net, extension=extensions)


def by_train(job: Job, client: Client, folder: Path) -> Rows:
    return list(dsinga.train(job, client, workspace=folder / "work", progress=False).history)


def by_submit(job: Job, client: Client, folder: Path) -> Rows:
    return list(dsinga.submit(job, client, workspace=folder / "work").result(LIMIT).history)


def by_command(job: Job, client: Client, folder: Path) -> Rows:
    (folder / "job.conf").write_text(to_text(job))
    command = ["dsinga", "train", str(folder / "job.conf"), "--scheduler", client.scheduler.address]
    command += ["--workspace", str(folder / "work")]
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sys, "argv", command)
        with pytest.raises(SystemExit) as ended:
            main()
    assert not ended.value.code
    return list(read_metrics(folder / "work" / "metrics.jsonl"))


def by_fit(job: Job, client: Client, folder: Path) -> Rows:
    model = nn.Sequential([nn.Input((6,)), nn.Dense(8, activation="tanh"), nn.Dense(2, activation="softmax")])
    model.compile("sgd", "sparse_categorical_crossentropy")
    fields = {"cluster": job.cluster, "disp_freq": 3, "extension": job.extension}
    model.fit(X, Y, train_steps=job.train_steps, batch_size=16, client=client, progress=False, **fields)
    return list(model.result.history)


def by_estimator(job: Job, client: Client, folder: Path) -> Rows:
    fitted = Classifier(job, epochs=job.train_steps // 3).fit(X, Y, client=client)
    return [{"phase": "train", **row} for row in fitted.history_]


FACES: dict[str, Face] = {
    "train": by_train, "submit": by_submit, "command": by_command, "nn": by_fit, "estimator": by_estimator,
}  # fmt: skip


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    write_store(tmp_path / "train.zarr", [(X, Y)])
    return tmp_path


@pytest.fixture(scope="module")
def forks() -> Iterator[ForkedCluster]:
    """A cluster with a worker to lose for each of three faces, and another one."""
    with forked_cluster(4) as cluster:
        yield cluster


@register("extension", "Kills")
class Kills(Extension):
    """Kills the Dask worker of ``pids`` once, in the middle of a run."""

    pids: list[int] = []

    def __init__(self, conf: Any):
        self.trigger = EverySteps(3, 6)

    def run(self, loop: Any) -> None:
        while self.pids:
            os.kill(self.pids.pop(), signal.SIGKILL)


@pytest.mark.parametrize("face", FACES)
def test_an_extension_stops_it(face: str, forks: ForkedCluster, folder: Path) -> None:
    rule = "extension { type: kEarlyStopping monitor: 'train/loss' patience: 1 min_delta: 1e9 }"
    rows = FACES[face](job_of(folder, 2, rule), forks.client, folder)
    assert [row["step"] for row in rows if row["phase"] == "train"] == [3, 6]


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.parametrize(  # tests/cluster/runs has the others
    "face", ["nn", "command", "estimator"]
)
def test_it_goes_on_without_a_lost_worker(
    face: str, forks: ForkedCluster, folder: Path, caplog: pytest.LogCaptureFixture
) -> None:
    alive = sorted(available_workers(forks.client))
    Kills.pids[:] = [forks.pids[alive[0]]]
    job = job_of(folder, len(alive), "extension { user_type: 'Kills' }")
    with caplog.at_level(logging.WARNING):  # Dask has set the level higher
        rows = FACES[face](job, forks.client, folder)
    assert not Kills.pids
    assert caplog.text.count("was lost; the run starts again from step") == 1
    assert [row["step"] for row in rows if row["phase"] == "train"][-1] == STEPS


@pytest.mark.parametrize("output", ["pandas", "polars"])
def test_set_output_keeps_the_index_of_a_dask_frame(output):
    pytest.importorskip(output)
    pandas, dd = pytest.importorskip("pandas"), pytest.importorskip("dask.dataframe")
    frame = pandas.DataFrame(np.random.default_rng(0).normal(size=(20, 3)), index=range(100, 120), columns=list("abc"))
    lazy = dd.from_pandas(frame, npartitions=2)
    made = Transformer(n_components=2, epochs=1, random_state=0).fit(frame).set_output(transform=output)
    expected = made.transform(frame)
    for data in (lazy, lazy.to_dask_array(lengths=True)):
        found = made.transform(data)
        np.testing.assert_allclose(found.to_numpy(), expected.to_numpy(), atol=1e-6)
        assert list(found.columns) == list(expected.columns)
    if output == "pandas":
        assert made.transform(lazy).index.equals(frame.index)
        assert made.fit_transform(lazy).index.equals(frame.index)
