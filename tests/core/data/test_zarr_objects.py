"""Zarr arrays that are given as objects, against their path: by chunks, and with chunks that are not stored."""

import logging
import pickle
from collections.abc import Callable
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import zarr
from zarr.storage import MemoryStore, ZipStore

from dsinga import nn
from dsinga.data import open_records
from dsinga.data.missing_values import with_nan
from dsinga.data.sources import dask_arrays
from dsinga.data.sources.dask_arrays import in_chunks
from tests.support.refusals import refused
from tests.support.small_job import assert_same

ROWS, CHUNK = 40, 8
X = np.random.default_rng(0).normal(3, 1, (ROWS, 3)).astype(np.float32)
Y = np.arange(ROWS) % 2


def written(path: Path, missing: bool = False, fill: Any = 7.0, zarr_format: Any = 2) -> str:
    """A zarr array of X; its chunk of the rows 16 to 23 is missing."""
    array = zarr.create_array(
        path, shape=X.shape, chunks=(CHUNK, 3), dtype="f4", fill_value=fill, zarr_format=zarr_format
    )
    array[:] = X
    if missing:
        (path / ("2.0" if zarr_format == 2 else "c/2/0")).unlink()
    return str(path)


def model() -> nn.Sequential:
    net = nn.Sequential([nn.Input(3), nn.Dense(2, name="out")])
    net.compile(nn.SGD(0.01), "sparse_categorical_crossentropy")
    return net


def trained() -> nn.Sequential:
    net = model()
    net.fit(X, Y, progress=False)
    return net


GIVEN: dict[str, Callable[[str], Any]] = {
    "path": str,
    "zarr.Array": lambda path: zarr.open_array(path, mode="r"),
    "da.from_zarr": da.from_zarr,
    "computed": lambda path: da.from_zarr(path) / 255,
    "a column": lambda path: da.from_zarr(path)[::-1][:, [0, 2, 1]],
}
FACES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda x: model().fit(x, Y, progress=False),
    "evaluate": lambda x: trained().evaluate(x, Y),
    "predict": lambda x: trained().predict(x),
}


def check_missing_chunks(act: Callable[[str], Any], folder: Path, caplog: pytest.LogCaptureFixture) -> None:
    """Check that ``act``, which reads an array at a path, says or refuses a chunk that is not stored."""
    caplog.set_level(logging.WARNING, "dsinga")
    act(written(folder / "x.zarr"))
    assert not caplog.records
    act(written(path := folder / "filled.zarr", missing=True))
    assert f"{path}: chunk 2.0 of 'filled.zarr' is not stored, so its numbers are the fill value 7.0" in caplog.text
    refused(lambda: act(written(folder / "none.zarr", missing=True, fill=None)), "zarr' is missing", "write the array")


@pytest.mark.parametrize(
    ("given", "face"),
    [
        pytest.param(given, face, marks=[] if face == "fit" or given == "zarr.Array" else pytest.mark.ci)
        for given in GIVEN
        for face in FACES
    ],
)
def test_chunks_that_are_not_stored_are_said_or_refused_as_of_a_path(given, face, tmp_path, caplog):
    check_missing_chunks(lambda path: FACES[face](GIVEN[given](path)), tmp_path, caplog)


def test_missing_chunks_of_labels_are_no_warning(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "dsinga")
    zarr.create_array(tmp_path / "y.zarr", shape=(ROWS,), chunks=(CHUNK,), dtype="i4")
    for y in (zarr.open_array(tmp_path / "y.zarr"), da.from_zarr(str(tmp_path / "y.zarr"))):
        caplog.clear()
        open_records((X, y)).read(range(ROWS))
        assert [record.levelno for record in caplog.records if "not stored" in record.message] == [logging.INFO]


@pytest.mark.parametrize("store", ["folder", "group", "zip", "memory", "url"])
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_an_array_is_read_as_its_numbers_by_chunks(store: str, zarr_format: Any, tmp_path: Path) -> None:
    stores: dict[str, Any] = {"zip": lambda: ZipStore(tmp_path / "x.zip", mode="w"), "memory": MemoryStore}
    place = stores[store]() if store in stores else f"memory://{tmp_path}" if store == "url" else tmp_path / "x.zarr"
    name = "a/x" if store == "group" else None
    array: Any = zarr.create_array(place, name=name, data=X, chunks=(CHUNK, 2), zarr_format=zarr_format)
    if store == "zip":
        place.close()
        array = zarr.open_array(ZipStore(tmp_path / "x.zip", mode="r"), mode="r")
    source = open_records((array, zarr.create_array(MemoryStore(), data=Y)))
    assert type(source.columns[0]).__name__ == "ZarrColumn"
    for each in (source, pickle.loads(pickle.dumps(source))):
        np.testing.assert_array_equal(each.read([39, 0, 17])[0], X[[39, 0, 17]])
        np.testing.assert_array_equal(each.read([39, 0, 17])[1], Y[[39, 0, 17]])
    net, of_numbers = model(), trained()
    net.fit(array, Y, progress=False)
    assert_same(net.params, of_numbers.params)
    np.testing.assert_allclose(net.predict(array), of_numbers.predict(X), rtol=1e-6)


def test_an_array_that_is_larger_than_memory_is_read_by_chunks(tmp_path: Path) -> None:
    big = zarr.create_array(tmp_path / "x.zarr", shape=(1 << 30, 300), chunks=(1000, 300), dtype="f4", fill_value=1)
    assert big.nbytes > 1 << 40
    assert open_records(big).read([5, 1 << 29])[0].tolist() == [[1.0] * 300] * 2


def test_large_arrays_are_split_for_validation(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    array: Any = zarr.open_array(written(tmp_path / "x.zarr"), mode="r")
    histories = []
    for limit in (1 << 20, 100):
        monkeypatch.setattr(dask_arrays, "SMALL_BYTES", limit)
        assert isinstance(in_chunks(array), da.Array) == (limit == 100)
        histories.append(model().fit(array, Y, validation_split=0.25, progress=False))
    assert histories[0].history == histories[1].history


@pytest.mark.parametrize(
    "index",
    [slice(3, 9), (slice(None, None, -3), 1), (slice(30, 2, -7), slice(1, None)), (-1,), ([5, 2, 30], slice(None)),
     (slice(5, 5),), (slice(None), [2, 0])],
)  # fmt: skip
def test_a_graph_of_dask_indexes_an_array_as_numpy_does(index: Any, tmp_path: Path) -> None:
    lazy = with_nan(da.from_zarr(written(tmp_path / "x.zarr")), "x")
    np.testing.assert_array_equal(lazy[index].compute(), X[index])
    np.testing.assert_array_equal(dask.optimize(lazy[index])[0].compute(), X[index])


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
def test_an_array_of_older_consolidated_metadata_is_refused(tmp_path: Path) -> None:
    group = zarr.open_group(tmp_path / "g.zarr", mode="w")
    group.create_array("x", data=X)
    zarr.consolidate_metadata(tmp_path / "g.zarr")
    older = zarr.open_group(tmp_path / "g.zarr", mode="r")["x"]
    group.create_array("x", data=X.astype("f8"), overwrite=True)
    refused(lambda: open_records(older), "float32 by", "float64 by its")
