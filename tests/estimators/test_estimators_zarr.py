"""Estimators read zarr arrays by chunks, and say which chunks are not stored."""

from __future__ import annotations

import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask.array as da
import numpy as np
import pytest
import xarray as xr
import zarr

from dsinga.base.errors import UserError
from dsinga.data.sources import dask_arrays
from dsinga.estimators import Classifier, Regressor
from tests.support.stale_stores import make_stale

X = np.random.default_rng(0).normal(3, 1, (40, 3)).astype(np.float32)
Y = np.arange(40) % 2


def written(path: Path, missing: bool = False, fill: Any = 7.0) -> str:
    """A zarr array of X; its chunk of the rows 16 to 23 is missing."""
    array = zarr.create_array(path, shape=X.shape, chunks=(8, 3), dtype="f4", fill_value=fill, zarr_format=2)
    array[:] = X
    if missing:
        (path / "2.0").unlink()
    return str(path)


@pytest.mark.parametrize("face", ["fit", "predict"])
@pytest.mark.parametrize("given", ["zarr.Array", pytest.param("da.from_zarr", marks=pytest.mark.ci)])
def test_chunks_that_are_not_stored_are_said_or_refused(
    given: str, face: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.WARNING, "dsinga")

    def act(path: str) -> None:
        x = da.from_zarr(path) if given == "da.from_zarr" else zarr.open_array(path, mode="r")
        model = Classifier(epochs=1).fit(x if face == "fit" else X, Y)
        np.asarray(model.predict(x))

    act(written(tmp_path / "x.zarr"))
    assert not caplog.records
    act(written(tmp_path / "filled.zarr", missing=True))
    path = tmp_path / "filled.zarr"
    assert f"{path}: chunk 2.0 of 'filled.zarr' is not stored, so its numbers are the fill value 7.0" in caplog.text
    with pytest.raises(UserError, match=r"^[^ ]*none.zarr: chunk 2.0 of 'none.zarr' is missing; write the array again"):
        act(written(tmp_path / "none.zarr", missing=True, fill=None))


GIVEN: dict[str, Callable[[str], Any]] = {
    "zarr.Array": lambda path: zarr.open_group(path, mode="r")["x"],
    "da.from_zarr": lambda path: da.from_zarr(zarr.open_group(path, mode="r")["x"]),  # type: ignore[arg-type]
    "open_zarr": lambda path: xr.open_zarr(path).x,
    "lazy": lambda path: xr.open_zarr(path, chunks=None).x,
    "data": lambda path: xr.open_zarr(path).x.data,
}
ACTS: dict[str, Callable[[Any], Any]] = {
    "fit": lambda x: Classifier(epochs=1).fit(x, Y),
    "strong": lambda x: Classifier(epochs=1, preset="strong").fit(x, Y),
    "predict": lambda x: np.asarray(Classifier(epochs=1).fit(X, Y).predict(x)),
    "validation": lambda x: Classifier(epochs=1).fit(X, Y, validation_data=(x, Y)),
    "targets": lambda x: Regressor(epochs=1).fit(X, x),
}


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("act", ACTS)
@pytest.mark.parametrize("what", ["dtype", "chunks", pytest.param("gone", marks=pytest.mark.ci), "scale_factor"])
def test_metadata_older_than_arrays_are_refused(what: str, act: str, tmp_path: Path) -> None:
    path = str(tmp_path / "d.zarr")
    xr.Dataset({"x": (("row", "k"), X)}).to_zarr(path, zarr_format=2, encoding={"x": {"chunks": (8, 3)}})
    make_stale(path, "x", what)
    for given in GIVEN.values():
        with pytest.raises(UserError, match="consolidate them again: zarr.consolidate_metadata"):
            ACTS[act](given(path))


def test_estimators_read_large_arrays_by_chunks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array: Any = zarr.open_array(written(tmp_path / "x.zarr"), mode="r")
    target = X @ np.float32([1, 2, 3])
    for cls, y in ((Classifier, Y), (Regressor, target)):
        here = cls(epochs=2, batchsize=10, random_state=0).fit(X, y)
        with monkeypatch.context() as patched:
            patched.setattr(dask_arrays, "SMALL_BYTES", 100)
            np.testing.assert_array_equal(here.predict(array), here.predict(X))
            assert here.score(array, y) == here.score(X, y)
            lazy = cls(epochs=2, batchsize=10, random_state=0).fit(array, y)
        np.testing.assert_allclose(lazy.predict(X), here.predict(X), rtol=0.5)
