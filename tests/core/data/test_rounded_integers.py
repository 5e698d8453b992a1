"""Integers beyond 2^24, which float32 rounds, are told once, by the name of their column."""

import logging
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr

from dsinga import nn
from dsinga.base.arrays import EXACT, warn_of_rounding
from dsinga.data import open_records

EPOCH = 1_700_000_001 + np.arange(100) % 50
X = np.stack([np.arange(100), EPOCH], axis=1)


def zarr_of(folder: Path) -> Path:
    zarr.create_array(folder / "x.zarr", data=X, chunks=(30, 2))
    return folder / "x.zarr"


def frame_of(name: str) -> pd.DataFrame:
    return pd.DataFrame({"a": X[:, 0], name: pd.array(X[:, 1], "Int64")})


SOURCES: dict[str, tuple[Callable[[Path], Any], str]] = {
    "numpy": (lambda folder: X, "'x', column 1, has integers"),
    "zarr": (zarr_of, "'x.zarr', column 1, has integers"),
    "dask": (lambda folder: da.from_array(X, chunks=(10, 2)), "'x', column 1, has integers"),
    "xarray": (lambda folder: xr.DataArray(X, name="t"), "'t', column 1, has integers"),
    "frame": (lambda folder: frame_of("one"), "column 'one' of the data frame has integers"),
    "frame of Dask": (
        lambda folder: dd.from_pandas(frame_of("two"), npartitions=3),
        "column 'two' of the data frame has",
    ),
}


@pytest.mark.parametrize("kind", SOURCES)
def test_a_column_of_seconds_is_told_once(tmp_path: Path, kind: str, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    make, expected = SOURCES[kind]
    source = open_records(make(tmp_path))
    for _ in range(2):
        source.read(range(100))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith(f"{expected}")
    assert re.search(r"beyond 2\^24, such as 17000000\d\d, which float32 rounds: different ones become equal", message)


def test_targets_are_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    model = nn.Sequential([nn.Dense(1)])
    model.compile(optimizer=nn.SGD(0.0), loss="mse")
    model.fit(np.zeros((100, 2), np.float32), EPOCH[:, None], epochs=2, batch_size=50, progress=False)
    assert caplog.text.count("as targets, has integers beyond 2^24") == 1


def test_exact_integers_are_not_told(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    for numbers in (
        np.array([EXACT, -EXACT]),
        np.array([EXACT * 8]),
        np.array([1 << 40], np.uint64),
        np.arange(3, dtype="u1"),
    ):
        warn_of_rounding(numbers, object(), str)
    assert not caplog.records
