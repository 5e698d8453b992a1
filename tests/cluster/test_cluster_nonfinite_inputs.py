"""NaN and infinity in what a run reads are called that, with their place, and not a learning rate that is too high."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from dsinga.api import train
from dsinga.data import write_store
from dsinga.errors import RunError, UserError
from dsinga.job import Job, loads

JOB = """
name: "inputs" train_steps: 2
updater { type: kSGD learning_rate { type: kFixed base_lr: 0.01 } }
neuralnet {
  layer { name: "data" type: kRecordInput store_conf { path: "train.zarr" batchsize: 20 FIELDS } }
  layer { name: "ip" type: kInnerProduct srclayers: "data" innerproduct_conf { num_output: 3 } }
  layer { name: "loss" type: kSoftmaxLoss srclayers: "ip" srclayers: "data" }
}
"""


def job(folder: Path, fields: str = "") -> Job:
    return loads(JOB.replace("train.zarr", str(folder / "train.zarr")).replace("FIELDS", fields), "job.conf")


def write_records(folder: Path, index: tuple[int, int], value: float, dtype: str = "float32") -> None:
    rows = np.ones((20, 4), dtype)
    rows[index] = value
    write_store(str(folder / "train.zarr"), [(rows, np.arange(20) % 3)])


def fault(job: Job, error: type[Exception] = UserError, **more) -> str:
    with pytest.raises(error) as caught:
        train(job, workers=1, progress=False, **more)
    assert "learning rate" not in str(caught.value)
    return str(caught.value)


@pytest.mark.parametrize(("value", "word"), [(np.nan, "NaN"), (-np.inf, "infinity")])
def test_a_record_that_is_not_finite_is_named(tmp_path, value, word):
    write_records(tmp_path, (7, 2), value)
    assert f"has {word} in record 7, column 2; leave such records out" in fault(job(tmp_path))
    result = train(job(tmp_path).replace(skip_bad_batches=True), workers=1, progress=False)
    assert all(np.isfinite(array).all() for array in result.params.values())


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_record_that_overflows_when_it_is_normalised_is_named(tmp_path):
    write_records(tmp_path, (7, 2), 1e38)
    text = fault(job(tmp_path, "std_value: 1e-10 random_skip: 0"), RunError)
    assert "the records of 'data' are not, once normalised, first in row" in text
    assert "at (2,); scale them otherwise" in text


def test_a_mean_image_that_is_not_finite_is_named(tmp_path):
    write_records(tmp_path, (7, 2), 0)
    np.save(tmp_path / "mean.npy", np.array([0, 1, np.nan, 2], np.float32))
    assert "mean.npy has NaN in column 2; make it again" in fault(job(tmp_path, f'mean_file: "{tmp_path}/mean.npy"'))
    np.save(tmp_path / "mean.npy", np.array([0, 1e300, 0, 2]))
    assert "mean.npy has infinity in column 1" in fault(job(tmp_path, f'mean_file: "{tmp_path}/mean.npy"'))


def test_initial_params_that_are_not_finite_are_named(tmp_path):
    write_records(tmp_path, (7, 2), 0)
    weight = np.zeros((3, 4), np.float32)
    weight[1, 3] = np.nan
    np.savez(tmp_path / "start.npz", ip_weight=weight)
    path = str(tmp_path / "start.npz")
    text = fault(job(tmp_path).replace(checkpoint_path=[path]))
    assert f"param 'ip_weight' has nan at index (1, 3) in {path}: training cannot begin from it" in text
    assert "the param 'ip_weight' to start from has NaN" in fault(job(tmp_path), params={"ip_weight": weight})
