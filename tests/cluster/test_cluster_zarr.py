"""Training reads zarr arrays of one's own, and gives the same bits as from a record store with the same records."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest
import zarr
from distributed import Client

from dsinga.api import evaluate, train
from dsinga.data import open_store, write_store
from dsinga.errors import UserError
from dsinga.job import Job, JobError, loads
from tests.support.small_job import assert_same, with_topology

JOB = """
name: "own"
train_steps: 8
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.001 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "PATH" batchsize: 50 shape: 3 shape: 24 shape: 24 } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 4 }
    param { init { type: kUniformSqrtFanIn } } param { init { type: kConstant } } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""
ROWS = 400


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A record store and zarr groups with the same records in chunks of other shapes, which divide into five blocks."""
    folder = tmp_path_factory.mktemp("zarr")
    rng = np.random.default_rng(3)
    labels = rng.integers(0, 4, ROWS)
    images = (rng.normal(size=(ROWS, 3, 24, 24)) + labels[:, None, None, None]).astype(np.float32)
    write_store(folder / "store.zarr", [(images, labels)])
    for zarr_format, chunks in ((2, (60, 1, 24, 24)), (3, (ROWS, 3, 24, 12))):
        group = zarr.open_group(folder / f"own{zarr_format}.zarr", mode="w", zarr_format=zarr_format)
        group.create_array("train/pixels", data=images.astype(np.float64), chunks=chunks)
        group.create_array("train/kinds", data=labels.astype(np.uint8), chunks=(30,))
        group.create_array("train/short", data=labels[:9])
    return folder


def job(folder: Path, name: str, *names: str) -> Job:
    text = JOB.replace(
        '"PATH"',
        f'"{name}"' + "".join(f' {field}: "{array}"' for field, array in zip(("data", "label"), names, strict=False)),
    )
    return with_topology(loads(text, str(folder / "own.conf")), 2)


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_the_bits_are_those_of_a_record_store(client: Client, folder: Path, zarr_format: int) -> None:
    assert open_store(folder / "store.zarr").block < ROWS / 2
    stored = job(folder, "store.zarr")
    own = job(folder, f"own{zarr_format}.zarr", "train/pixels", "train/kinds")
    expected = train(stored, client, data_root=str(folder), progress=False)
    result = train(own, client, data_root=str(folder), progress=False)
    assert_same(result.params, expected.params)
    figures = [
        evaluate(each, result.params, client=client, data_root=str(folder), phase="train") for each in (own, stored)
    ]
    assert figures[0] == figures[1]


def test_arrays_that_do_not_fit_the_job_are_refused(folder: Path) -> None:
    path = "own3.zarr"
    with pytest.raises(UserError, match=f"{path} has {ROWS} records in 'train/pixels', but 9 labels in 'train/short'"):
        train(job(folder, path, "train/pixels", "train/short"), data_root=str(folder), progress=False)
    with pytest.raises(JobError, match="layer 'loss' takes labels from 'data', whose records have none"):
        train(job(folder, path, "train/pixels", ""), data_root=str(folder), progress=False)
    with pytest.raises(UserError, match="has no array 'pixels', which data: names; did you mean 'train/pixels'"):
        train(job(folder, path, "pixels"), data_root=str(folder), progress=False)
    wrong = job(folder, path, "train/kinds", "")
    with pytest.raises(
        JobError, match=r"own.conf:6: .*'data'.*the shape 3 x 24 x 24 .* has records of a single number"
    ):
        train(wrong, data_root=str(folder), progress=False)


REGRESSION = """
name: "targets"
train_steps: 12
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "PATH" batchsize: 20 } }
  layer { name: "out" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "target" type: kLabel srclayers: "data" }
  layer { name: "loss" type: kEuclideanLoss srclayers: "out" srclayers: "target" }
}
"""


def test_float_labels_of_a_record_store_and_of_a_group(threads: Client, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    data, targets = rng.normal(size=(70, 6)), rng.normal(size=(70, 3))
    write_store(tmp_path / "store", [(data, targets)])
    group = zarr.open_group(tmp_path / "own", mode="w", zarr_format=2)
    group.create_array("X", data=data, chunks=(9, 4))
    group.create_array("Y", data=targets, chunks=(70, 1))
    results = [
        train(loads(REGRESSION.replace("PATH", str(tmp_path / name))), threads, progress=False)
        for name in ("store", "own")
    ]
    assert_same(results[1].params, results[0].params)
    assert results[0].history[-1, "loss"] < 2 * (targets**2).sum(axis=1).mean()


def test_nan_ends_a_run_unless_bad_batches_are_skipped(threads: Client, tmp_path: Path) -> None:
    rng = np.random.default_rng(5)
    data, targets = rng.normal(size=(70, 6)), rng.normal(size=(70, 3))
    data[41, 5] = np.nan
    write_store(tmp_path / "store", [(data, targets)])
    job = loads(REGRESSION.replace("PATH", str(tmp_path / "store")))
    with pytest.raises(UserError, match=f"{tmp_path}/store: 'data' has NaN in record 41, column 5; leave such records"):
        train(job, threads, progress=False)
    result = train(job.replace(skip_bad_batches=True), threads, progress=False)
    assert all(np.isfinite(value).all() for value in result.params.values())
