"""Records that cannot be sent to processes are refused in one sentence that names them; nothing is logged."""

import logging
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any, BinaryIO

import dask
import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
from distributed import Client

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import Column, RecordSource
from dsinga.job import Job

X, Y = np.zeros((400, 4), np.float32), np.arange(400) % 2
LOCK = "TypeError: cannot pickle '_thread.lock' object"
# Python 3.12 has other words.
READER = "'BufferedReader' instances" if sys.version_info >= (3, 12) else "'_io.BufferedReader' object"
FILE = f"TypeError: cannot pickle {READER}"
lock = threading.Lock()


def locked(array: np.ndarray) -> da.Array:
    """Return an array with a lock in its graph."""

    def add(block: np.ndarray) -> np.ndarray:
        with lock:
            return block + 1

    return da.from_array(array, chunks=(100, *array.shape[1:])).map_blocks(add, dtype=array.dtype)


def locked_frame() -> Any:
    columns = list("abcd")
    parts = [dask.delayed(lambda: (lock, pd.DataFrame(X, columns=columns))[1])()]
    return dd.from_delayed(parts, meta=dict.fromkeys(columns, "f4"))


class FileArray:
    """An array that is read from an open file."""

    shape, ndim, dtype = X.shape, X.ndim, X.dtype

    def __init__(self, file: BinaryIO):
        self.file = file

    def __getitem__(self, index: Any) -> np.ndarray:
        return X[index]


class LockedColumn(Column):
    """A user's column that has a lock."""

    def __init__(self) -> None:
        super().__init__("x", len(X), X.shape[1:], X.dtype, len(X))
        self.lock = lock

    def load(self, start: int, stop: int) -> np.ndarray:
        return X[start:stop]


def model() -> nn.Model:
    built = nn.Sequential([nn.Input((4,)), nn.Dense(2, name="ip")])
    built.compile("sgd", loss="sparse_categorical_crossentropy")
    return built


def job() -> Job:
    return model().job((X, Y), train_steps=2)


PARAMS = {"ip_weight": np.zeros((2, 4), np.float32), "ip_bias": np.zeros(2, np.float32)}

# What is called with a client and an open netCDF file, and the beginning of the message.
CALLS: dict[str, tuple[Callable[[Client, BinaryIO], Any], str]] = {
    "train": (
        lambda client, file: dsinga.train(job(), client, data=(locked(X), Y), progress=False),
        f"dask array: 'x' cannot be sent to Dask workers (its task 'array-add': {LOCK}); open files",
    ),
    "predict: a user's column": (
        lambda client, file: dsinga.predict(
            job(), PARAMS, "ip", client=client, data=RecordSource("mine", LockedColumn())
        ),
        f"mine: 'x' cannot be sent to Dask workers ({LOCK})",
    ),
    "fit: file": (
        lambda client, file: model().fit(da.from_array(FileArray(file), chunks=(100, -1)), Y, client=client),
        f"dask array: 'x' cannot be sent to Dask workers (its chunks are of a FileArray: {FILE})",
    ),
    "fit: frame": (
        lambda client, file: model().fit(locked_frame(), Y, client=client),
        "dask data frame: 'x' cannot be sent to Dask workers (its task",
    ),
    "fit: netcdf": (
        lambda client, file: model().fit(xr.open_dataset(file, engine="scipy").x, Y, client=client),
        f"xarray DataArray: 'x' cannot be sent to Dask workers ({FILE})",
    ),
}


@pytest.mark.process
@pytest.mark.parametrize("call", CALLS)
def test_what_cannot_be_sent_is_named(
    processes: Client, tmp_path: Path, caplog: pytest.LogCaptureFixture, call: str
) -> None:
    function, message = CALLS[call]
    xr.Dataset({"x": (("n", "feature"), X)}).to_netcdf(tmp_path / "x.nc", engine="scipy")
    with open(tmp_path / "x.nc", "rb") as file:
        check_refusal(lambda: function(processes, file), message, processes, caplog)


def check_refusal(call: Callable[[], Any], message: str, processes: Client, caplog: pytest.LogCaptureFixture) -> None:
    """Assert that a call is refused in one short sentence, and that nothing is logged."""
    with processes.as_current(), caplog.at_level(logging.INFO, "distributed"), pytest.raises(UserError) as raised:
        call()
    assert str(raised.value).startswith(message)
    assert len(str(raised.value)) < 300
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_threads_train_on_what_cannot_be_sent(threads: Client) -> None:
    expected = dsinga.train(job(), threads, data=(X + 1, Y), progress=False)
    result = dsinga.train(job(), threads, data=(locked(X), Y), progress=False)
    np.testing.assert_array_equal(result.params["ip_weight"], expected.params["ip_weight"])
