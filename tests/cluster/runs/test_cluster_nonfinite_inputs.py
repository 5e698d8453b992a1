"""NaN and infinity in what a run reads are called that, with their place, and not a learning rate that is too high."""

from pathlib import Path

import numpy as np
import pytest

from dsinga.api import train
from dsinga.base.errors import RunError, UserError
from dsinga.data import write_store
from dsinga.job import Job, LayerConf
from tests.support.small_job import linear


def job(folder: Path, *fields: str) -> Job:
    return linear(f"path={folder}/train.zarr", *fields)


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


@pytest.mark.parametrize("value", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("on_cluster", [False, True])
def test_a_bad_record_ends_no_run_that_skips_bad_batches(tmp_path, threads, value, on_cluster):
    """Also where the loss does not tell, because tanh makes 1 of infinity, and the gradient alone is NaN."""
    write_records(tmp_path, (7, 2), value)
    spoilt = job(tmp_path, "=skip_bad_batches=true", "batchsize=10")
    layers = spoilt.neuralnet.layer
    tanh = LayerConf(name="tanh", type="kActivation", srclayers=["ip"], activation_conf={"type": "TANH"})
    layers[2:] = [tanh, layers[2].replace(srclayers=["tanh", "data"])]
    result = train(spoilt, threads if on_cluster else None, progress=False)
    assert all(np.isfinite(array).all() for array in result.params.values())
    assert sum("loss" in row for row in result.history) == 4  # one of the two batches of each epoch


@pytest.mark.filterwarnings("ignore:overflow")
def test_a_record_that_overflows_when_it_is_normalised_is_named(tmp_path):
    write_records(tmp_path, (7, 2), 1e38)
    text = fault(job(tmp_path, "std_value=1e-10"), RunError)
    assert "the records of 'data' are not, once normalised, first in row" in text
    assert "at (2,); scale them otherwise" in text


def test_a_mean_image_that_is_not_finite_is_named(tmp_path):
    write_records(tmp_path, (7, 2), 0)
    np.save(tmp_path / "mean.npy", np.array([0, 1, np.nan, 2], np.float32))
    assert "mean.npy has NaN in column 2; make it again" in fault(job(tmp_path, f"mean_file={tmp_path}/mean.npy"))
    np.save(tmp_path / "mean.npy", np.array([0, 1e300, 0, 2]))
    assert "mean.npy has infinity in column 1" in fault(job(tmp_path, f"mean_file={tmp_path}/mean.npy"))


def test_initial_params_that_are_not_finite_are_named(tmp_path):
    write_records(tmp_path, (7, 2), 0)
    weight = np.zeros((3, 4), np.float32)
    weight[1, 3] = np.nan
    np.savez(tmp_path / "start.npz", w=weight)
    path = str(tmp_path / "start.npz")
    text = fault(job(tmp_path).replace(checkpoint_path=[path]))
    assert f"param 'w' has nan at index (1, 3) in {path}: training cannot begin from it" in text
    assert "the param 'w' has NaN at index (1, 3)" in fault(job(tmp_path), params={"w": weight})
