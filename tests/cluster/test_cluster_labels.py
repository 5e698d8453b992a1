"""Float labels, matrices of labels and sample weights: however the net is cut, a cluster trains as one worker."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
from distributed import Client

import dsinga
from dsinga.api import Result, predict_with_labels
from dsinga.data import RecordStore, write_store
from dsinga.job import ClusterConf, Job
from tests.support.small_job import assert_close, assert_same
from tests.support.train_in_threads import train_in_threads

RECORDS, BATCH = 36, 12
JOB = """
train_steps: 8 test_freq: 8 disp_freq: 1
updater {{ type: kSGD momentum: 0.5 learning_rate {{ type: kFixed base_lr: 0.05 }} }}
neuralnet {{
  layer {{ name: "data" type: kRecordInput store_conf {{ path: "{folder}/{labels}.zarr" batchsize: 12 }} }}
  layer {{ name: "weights" type: kRecordInput store_conf {{ path: "{folder}/weights.zarr" batchsize: 12 }} }}
  layer {{ name: "hidden" type: kInnerProduct srclayers: "data" innerproduct_conf {{ num_output: 6 }} {hidden} }}
  layer {{ name: "tanh" type: kSTanh srclayers: "hidden" {hidden} }}
  layer {{ name: "out" type: kInnerProduct srclayers: "tanh" innerproduct_conf {{ num_output: {outputs} }} }}
  layer {{ name: "target" type: kLabel srclayers: "data" {target} }}
  layer {{ name: "loss" type: {loss} srclayers: ["out", "target", "weights"] {top} }}
}}
"""
CUTS = {
    "rows": {},
    "features": {"hidden": "partition_dim: 1"},
    "layers": {"hidden": "location: 1", "target": "location: 0", "top": "location: 1"},
    "a mixture": {"hidden": "partition_dim: 1", "target": "partition_dim: -1", "top": "partition_dim: 0"},
}
LABELS = {
    "numbers": ((), np.float32, "kEuclideanLoss"),
    "several": ((3,), np.float32, "kEuclideanLoss"),
    "topics": ((3,), np.int64, "kSigmoidCrossEntropyLoss"),
}


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store for each kind of labels, and one of weights."""
    folder, rng = tmp_path_factory.mktemp("labels"), np.random.default_rng(0)
    x = rng.normal(size=(RECORDS, 5)).astype(np.float32)
    write_store(folder / "weights.zarr", [(rng.uniform(0, 2, RECORDS).astype(np.float32), None)])
    for name, (shape, dtype, _) in LABELS.items():
        y = (x[:, : shape[0] if shape else 1].reshape(RECORDS, *shape) + rng.normal(size=(RECORDS, *shape))) / 2
        write_store(folder / f"{name}.zarr", [(x, (y > 0).astype(int) if dtype is np.int64 else y.astype(dtype))])
    return folder


def job_of(folder: Path, labels: str, cut: str) -> Job:
    shape, _, loss = LABELS[labels]
    texts = {"hidden": "", "target": "", "top": "", **CUTS[cut]}
    return dsinga.loads(JOB.format(folder=folder, labels=labels, outputs=shape[0] if shape else 1, loss=loss, **texts))


def last_rows(result: Result) -> list[dict[str, float]]:
    """Return the last metrics of training and of the test, without times."""
    rows = [result.history.phase(phase)[-1] for phase in ("train", "test")]
    return [{name: value for name, value in row.items() if name not in ("time", "phase")} for row in rows]


@pytest.mark.parametrize("labels", LABELS)
def test_a_cluster_trains_as_one_worker(folder: Path, threads: Client, labels: str) -> None:
    whole = dsinga.train(job_of(folder, labels, "rows"), threads, workers=1, progress=False)
    assert last_rows(whole)[0]["loss"] < whole.history.phase("train")[0]["loss"]
    for cut in CUTS:
        run = dsinga.train(job_of(folder, labels, cut), threads, workers=2, progress=False)
        assert_close(run.params, whole.params, 1e-5)
        for row, expected in zip(last_rows(run), last_rows(whole), strict=True):
            assert row == pytest.approx(expected, rel=1e-4), cut


@pytest.mark.parametrize("labels", ["several", "topics"])
def test_processes_and_threads_give_the_same_bits(folder: Path, processes: Client, labels: str) -> None:
    job = job_of(folder, labels, "layers").replace(cluster=ClusterConf(nworkers_per_group=2))
    assert_same(train_in_threads(job, []).params, dsinga.train(job, processes, progress=False).params)


@pytest.mark.parametrize("labels", LABELS)
def test_predictions_keep_the_labels(folder: Path, threads: Client, tmp_path: Path, labels: str) -> None:
    job = job_of(folder, labels, "rows")
    params = dsinga.train(job.replace(train_steps=1, test_freq=0), threads, workers=1, progress=False).params
    write_store(tmp_path / "out.zarr", predict_with_labels(job, params, "out", client=threads))
    predicted, records = RecordStore(tmp_path / "out.zarr"), RecordStore(folder / f"{labels}.zarr")
    assert predicted.label_dtype == LABELS[labels][1]
    assert np.array_equal(predicted.read_labels(range(RECORDS)), records.read_labels(range(RECORDS)))
