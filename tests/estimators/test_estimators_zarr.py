"""Estimators read zarr arrays by chunks, and say which chunks are not stored."""

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
from tests.core.data.test_zarr_objects import GIVEN as ARRAYS
from tests.core.data.test_zarr_objects import X, Y, check_missing_chunks, written
from tests.support.stale_stores import make_stale


@pytest.mark.parametrize("face", ["fit", "predict"])
@pytest.mark.parametrize("given", ["zarr.Array", pytest.param("da.from_zarr", marks=pytest.mark.ci)])
def test_chunks_that_are_not_stored_are_said_or_refused(
    given: str, face: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def act(path: str) -> None:
        x = ARRAYS[given](path)
        np.asarray(Classifier(epochs=1).fit(x if face == "fit" else X, Y).predict(x))

    check_missing_chunks(act, tmp_path, caplog)


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
