"""A source of the user's own is named in a job, with its settings, and in nn; all sources pass the contract."""

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr

import dsinga
from dsinga import nn
from dsinga.base.registry import register
from dsinga.data import DataSource, open_records, write_store
from dsinga.data.sources.arrays import Kind, array_records
from dsinga.job import Job, Phase, Settings, check, loads, required, setting
from dsinga.job.limits import Count
from dsinga.reading.batch_reader import BatchReader
from dsinga.reading.checked_job import CheckedJob
from dsinga.testing import SourceContract
from tests.support.refusals import refused, refused_with
from tests.support.registries import restored_registry
from tests.support.small_job import LINEAR, assert_same

X = np.arange(200, dtype=np.float32).reshape(50, 4)
Y = np.arange(50) % 3


@pytest.fixture(autouse=True)
def _registered(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.chdir(tmp_path)
    np.concatenate([Y[:, None], X / 200], axis=1).astype(np.float32).tofile("rows.raw")
    with restored_registry():

        @register("source", "Rows")
        class Rows(DataSource):
            """Rows of float32 numbers in a plain file, the label first."""

            class Conf(Settings):
                width: Count = required("the numbers of a row")
                classes: Count = setting(3, "the number of classes")

            def open(self) -> Any:
                rows = np.fromfile(self.path, np.float32).reshape(-1, self.settings.width)
                return rows[:, 1:], rows[:, 0].astype(int)

        @register("source", "Counted")
        class Counted(DataSource):
            needs_path = False

            def open(self) -> Any:
                return X / 200, Y

        @register("source", "Nothing")
        class Nothing(DataSource):
            def open(self) -> Any:
                return None

        @register("source", "Broken")
        class Broken(DataSource):
            def open(self) -> Any:
                raise ValueError("no row")

        register("source", "a function")(lambda path: X)
        yield


def job(store: str) -> Job:
    return loads(LINEAR.replace("batchsize: 20", f"\nbatchsize: 20\n{store}\n"), "own.conf")


ROWS = 'backend: "Rows" path: "rows.raw" rows_conf { width: 5 }'


@pytest.mark.parametrize("store", [ROWS, 'backend: "Counted"'])
def test_a_job_trains_from_it_as_from_its_arrays(store: str) -> None:
    result = dsinga.train(job(store), progress=False)
    arrays = dsinga.train(loads(LINEAR), data=(X / 200, Y), progress=False)
    assert_same(result.params, arrays.params)
    assert result.params.keys() == {"w", "b"}


@pytest.mark.parametrize(
    ("store", "message"),
    [
        ('backend: "Rows" path: "rows.raw"', "own.conf:7: layer 'data': backend 'Rows' needs rows_conf { ... }"),
        ('backend: "Rows" rows_conf { width: 5 }', "own.conf:5: layer 'data': store_conf needs a path"),
        (ROWS.replace("5", "0"), "own.conf:7: layer 'data': width must be at least 1, not 0"),
        (ROWS.replace('"Rows"', '"Row"'), "own.conf:7: layer 'data': no source is registered as 'Row'"),
        ('backend: "kvfiel" path: "x"', "own.conf:7: layer 'data': no source is registered as 'kvfiel'; did you"),
        ('backend: "Nothing" path: "rows.raw"', "own.conf:7: layer 'data': source Nothing: records cannot be"),
        ('backend: "a function" path: "x"', "must be registered with a subclass of dsinga.data.DataSource, not <"),
        ('backend: "Rows" path: "x.raw" rows_conf { width: 5 }', "x.raw was not found"),
    ],
)  # fmt: skip
def test_a_fault_is_refused_with_its_line(store: str, message: str) -> None:
    refused_with(lambda: checked_reader(store), message)


def checked_reader(store: str) -> BatchReader:
    check(opened := job(store))
    return CheckedJob(opened).reader(Phase.kTrain)


def test_an_exception_of_its_own_names_the_layer() -> None:
    with pytest.raises(ValueError, match="no row") as error:
        checked_reader('backend: "Broken" path: "rows.raw"')
    assert error.value.__notes__ == ["in the source Broken of layer 'data'"]


def test_nn_has_a_function_of_it() -> None:
    model = nn.Sequential([nn.Dense(3)])
    model.compile(loss="sparse_categorical_crossentropy")
    source = nn.Rows("rows.raw", width=5)
    own = model.job(source, train_steps=2)
    assert own.neuralnet.layer[0].store_conf.rows_conf.width == 5
    assert_same(
        dsinga.train(loads(str(own)), progress=False).params,
        dsinga.train(model.job(X / 200, Y, train_steps=2), progress=False).params,
    )
    model.fit(source, train_steps=2, progress=False)
    assert model.predict(source).shape == (50, 3)
    assert list(nn.Counted.__signature__.parameters) == ["path"]
    refused(lambda: nn.Rows("rows.raw"), r"Rows: missing a required argument: 'width'; it is called as Rows\(path, w")
    refused(lambda: nn.Rows("rows.raw", width=0), "Rows: width must be at least 1, not 0")


class TestOwn(SourceContract):
    def create(self) -> Any:
        return nn.Rows("rows.raw", width=5)


def _zarr() -> str:
    group = zarr.open_group("x.zarr", mode="w")
    group.create_array("x", data=X, chunks=(7, 4))
    group.create_array("y", data=Y, chunks=(50,))
    return "x.zarr"


def _store() -> str:
    write_store("store.zarr", [(X.astype(np.uint8), None)], overwrite=True)
    return "store.zarr"


def _dask() -> Any:
    import dask.array as da

    return da.from_array(X, chunks=(7, 4)) + 1, Y


def _frame() -> Any:
    import pandas as pd

    return pd.DataFrame(X).add_prefix("c"), Y


def _xarray() -> Any:
    import xarray as xr

    xr.Dataset({"x": (("n", "f"), X), "y": ("n", Y)}).to_zarr("xr.zarr", mode="w", consolidated=False)
    return xr.open_zarr("xr.zarr", chunks=None, consolidated=False)


class TestBuiltIn(SourceContract):
    @pytest.fixture(autouse=True, params=[_zarr, _store, _dask, _frame, _xarray, lambda: (X, Y)])
    def _kind(self, request: pytest.FixtureRequest) -> None:
        self.make: Callable[[], Any] = request.param

    def create(self) -> Any:
        return self.make()


class Table:
    """Rows of another library, of a kind that dsinga finds by the name of the class."""

    def __init__(self, rows: np.ndarray):
        self.rows = rows


def test_kinds_of_objects_and_of_files_are_found_by_name(tmp_path: Path) -> None:
    refused(lambda: open_records(Table(X)), "records cannot be read from a Table")
    with restored_registry():
        package = __name__.partition(".")[0]
        kind = Kind("a table", lambda x, y, options: array_records(x.rows, y, options))
        register("records", f"{package}.Table")(lambda table: kind)
        register("records", ".rows")(lambda path, **_: open_records((np.load(path), Y)))
        source = open_records((Table(X), Y))
        np.testing.assert_array_equal(source.read([49, 0])[0], X[[49, 0]])
        refused(lambda: open_records(Table(X), columns=["a"]), "open_records has", "it takes classes")
        with open(tmp_path / "x.rows", "wb") as file:
            np.save(file, X)
        assert open_records(tmp_path / "x.rows").read([7])[1].tolist() == [Y[7]]
