"""Every source of records trains in threads and processes, by each face, with the bits of numpy arrays in threads."""

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
from distributed import Client
from distributed.protocol import deserialize, serialize

import dsinga
from dsinga import nn
from dsinga.data import Column, RecordSource, connect_sources, open_records, write_store
from dsinga.job import Job
from tests.support.small_job import assert_same, linear, with_topology
from tests.support.user_column import UserColumn

ROWS = 16000  # of 80 bytes: more than a MiB, so that there are two blocks
BLOCK = (1 << 20) // 80
random = np.random.default_rng(5)
Y = random.integers(3, size=ROWS)
X = random.normal(Y[:, None], 1, (ROWS, 20)).astype(np.float32)


class Converts:
    """An array of another package, which numpy converts."""

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return X


class Batches:
    """A sequence of batches, as Keras's PyDataset."""

    def __len__(self) -> int:
        return -(-ROWS // BLOCK)

    def __getitem__(self, number: int) -> tuple[np.ndarray, np.ndarray]:
        rows = slice(number * BLOCK, (number + 1) * BLOCK)
        return X[rows], Y[rows]

    def on_epoch_end(self) -> None:
        """Do nothing, where Keras shuffles."""


def frame() -> pd.DataFrame:
    return pd.DataFrame(X).add_prefix("x").assign(y=Y)


def chunked(rows: Any) -> tuple[da.Array, da.Array]:
    return da.from_array(X, chunks=(rows, -1)), da.from_array(Y, chunks=rows)


def persisted(client: Client, *arrays: Any) -> tuple[Any, ...]:
    return tuple(client.persist(list(arrays)))


def dataset() -> xr.Dataset:
    return xr.Dataset({"x": (("n", "feature"), X), "y": ("n", Y)})


def group(folder: Path, chunks: int) -> str:
    written = zarr.open_group(folder / "group.zarr", mode="w")
    written.create_array("x", data=X, chunks=(chunks, 20))
    written.create_array("y", data=Y, chunks=(ROWS,))
    return str(folder / "group.zarr")


def xarray_zarr(folder: Path, rows: int, **options: Any) -> xr.Dataset:
    dataset().chunk(n=rows).to_zarr(folder / "xarray.zarr", zarr_format=2, consolidated=True)
    return xr.open_zarr(folder / "xarray.zarr", **options)


def arrays_in_zarr(folder: Path) -> tuple[str, str]:
    for name, array in (("x", X), ("y", Y)):
        zarr.create_array(folder / f"{name}.zarr", data=array, chunks=(3000, *array.shape[1:]))
    return str(folder / "x.zarr"), str(folder / "y.zarr")


def netcdf(folder: Path) -> xr.Dataset:
    dataset().to_netcdf(folder / "x.nc", engine="scipy")
    return xr.open_dataset(folder / "x.nc", engine="scipy")


def memmap(folder: Path) -> np.ndarray:
    np.save(folder / "x.npy", X)
    return np.load(folder / "x.npy", mmap_mode="r")


def store(folder: Path) -> str:
    write_store(folder / "store.zarr", [(X, Y)])
    return str(folder / "store.zarr")


Source = Callable[[Path, Client], Any]

# What dsinga.data.open_records takes. Chunks of 5,000 rows do not lie on the bounds of blocks, which have 13,107.
SOURCES: dict[str, Source] = {
    "numpy": lambda folder, client: (X, Y),
    "numpy in another order": lambda folder, client: (np.asfortranarray(X), Y[::-1][::-1]),
    "lists": lambda folder, client: (X.tolist(), Y.tolist()),
    "masked array": lambda folder, client: (np.ma.array(X), np.ma.array(Y)),
    "memmap": lambda folder, client: (memmap(folder), Y),
    "array of another package": lambda folder, client: (Converts(), Y),
    "zarr arrays": lambda folder, client: tuple(zarr.open(path) for path in arrays_in_zarr(folder)),
    "dask": lambda folder, client: chunked(BLOCK),
    "dask off bounds": lambda folder, client: chunked(5000),
    "dask computed": lambda folder, client: (chunked(5000)[0].astype("f8") * 1, chunked(5000)[1]),
    "dask in one chunk": lambda folder, client: chunked(-1),
    "dask persisted": lambda folder, client: persisted(client, *chunked(5000)),
    "dask of persisted": lambda folder, client: (persisted(client, chunked(5000)[0] * 2)[0] / 2, Y),
    "dask of zarr": lambda folder, client: tuple(da.from_zarr(path) for path in arrays_in_zarr(folder)),
    "dask of zarr computed": lambda folder, client: (da.from_zarr(arrays_in_zarr(folder)[0]) * 1, Y),
    "dask and numpy": lambda folder, client: (X, chunked(5000)[1]),
    "pandas": lambda folder, client: open_records(frame(), label="y"),
    "pandas frame and series": lambda folder, client: (frame().drop(columns="y"), frame().y),
    "dask frame": lambda folder, client: open_records(dd.from_pandas(frame(), npartitions=3), label="y"),
    "dask frame and series": lambda folder, client: (
        (lazy := dd.from_pandas(frame(), npartitions=3)).drop(columns="y"),
        lazy.y,
    ),
    "dask frame persisted": lambda folder, client: open_records(
        persisted(client, dd.from_pandas(frame(), npartitions=3))[0], label="y"
    ),
    "xarray": lambda folder, client: (dataset().x, dataset().y),
    "xarray dataset": lambda folder, client: dataset(),
    "xarray chunked": lambda folder, client: dataset().chunk(n=5000),
    "xarray persisted": lambda folder, client: dataset().chunk(n=5000).persist(),
    "xr.open_zarr": lambda folder, client: xarray_zarr(folder, 5000),
    "xr.open_zarr not chunked": lambda folder, client: xarray_zarr(folder, 5000, chunks=None),
    "xr.open_zarr rechunked": lambda folder, client: xarray_zarr(folder, 2000).chunk(n=7000),
    "netcdf": lambda folder, client: netcdf(folder),
    "zarr group": lambda folder, client: group(folder, BLOCK),
    "zarr group off bounds": lambda folder, client: group(folder, 5000),
    "paths of zarr arrays": lambda folder, client: arrays_in_zarr(folder),
    "path and array": lambda folder, client: (arrays_in_zarr(folder)[0], chunked(5000)[1]),
    "array and path": lambda folder, client: (chunked(5000)[0], Path(arrays_in_zarr(folder)[1])),
    "store": lambda folder, client: store(folder),
    "sequence of batches": lambda folder, client: Batches(),
    "a user's column": lambda folder, client: RecordSource("mine", UserColumn("x", X, BLOCK), UserColumn("y", Y, ROWS)),
}

# Which of these have columns of all classes.
SENT = "numpy|dask off bounds|dask persisted|dask of zarr|xr.open_zarr not chunked|netcdf|zarr group off bounds|store"
SENT = [*SENT.split("|"), "sequence of batches", "a user's column"]
# Others of which the processes of workers get something of their own.
OWN = "array of another package|dask in one chunk|dask of persisted|dask of zarr computed|dask frame persisted"
TRAINED = [*SENT, *OWN.split("|"), "xarray persisted", "paths of zarr arrays"]


@pytest.fixture(scope="module")
def job() -> Job:
    return with_topology(linear("batchsize=2000"), 2)


@pytest.fixture(scope="module")
def expected(job: Job, threads: Client) -> dict[str, np.ndarray]:
    """The params that numpy arrays give in threads."""
    return dsinga.train(job, threads, data=(X, Y), progress=False).params


def test_every_source_has_the_same_records(threads: Client, tmp_path: Path) -> None:
    for number, kind in enumerate(SOURCES):
        (folder := tmp_path / str(number)).mkdir()
        records, labels = open_records(SOURCES[kind](folder, threads)).read(range(ROWS))
        np.testing.assert_array_equal(records, X, kind)
        np.testing.assert_array_equal(labels, Y, kind)


# In threads nothing is sent.
@pytest.mark.parametrize(
    ("kind", "client"), [*((kind, "processes") for kind in TRAINED), ("dask persisted", "threads")], indirect=["client"]
)
def test_a_job_trains(job: Job, client: Client, tmp_path: Path, expected: Any, kind: str) -> None:
    source = open_records(SOURCES[kind](tmp_path, client))
    source.read(range(BLOCK - 10, BLOCK + 10))  # as a user looks at it first, which fills caches
    assert_same(dsinga.train(job, client, data=source, progress=False).params, expected)


def test_every_column_is_sent_after_use(processes: Client, tmp_path: Path) -> None:
    sent = set()
    for number, kind in enumerate(SENT):
        (folder := tmp_path / str(number)).mkdir()
        source = open_records(SOURCES[kind](folder, processes))
        records, labels = source.read(range(ROWS))
        for original in (source, source.without_labels(), source.allowing_nonfinite(), *source.columns):
            copy = deserialize(*serialize(original))
            if isinstance(copy, RecordSource):
                connect_sources([copy], lambda: processes)
                np.testing.assert_array_equal(copy.read(range(ROWS))[0], records)
                continue
            copy.connect(lambda: processes)
            rows = records if original is source.columns[0] else labels
            np.testing.assert_array_equal(copy.load(0, ROWS), rows)
            sent.add(type(original))
    assert {column for column in concrete_columns(Column) if column.__name__[0] != "_"} <= sent


def concrete_columns(base: type[Column]) -> set[type[Column]]:
    """Return the classes of dsinga's columns without those of add-ons and estimators, whose tests send them."""
    names = ((each, each.__module__.split(".")) for each in base.__subclasses__())
    classes = {each for each, name in names if name[0] == "dsinga" and name[1] not in ("addons", "estimators")}
    return classes.union(*map(concrete_columns, classes))


def model() -> nn.Model:
    layers = [nn.Input((20,)), nn.Dense(3)]
    built = nn.Sequential(layers)
    built.compile("sgd", loss="sparse_categorical_crossentropy", cluster=nn.Cluster(workers=2))
    return built


# Where nn.fit does not only pass on what it is given: it looks at arrays, at pairs, and at paths, which its job names.
FITTED = ["dask frame and series", "xr.open_zarr", "paths of zarr arrays"]


@pytest.fixture(scope="module")
def fitted(threads: Client) -> dict[str, Any]:
    """What numpy arrays give in threads: params and predictions."""
    return fit_model((X, Y), threads)


def fit_model(data: Any, client: Client) -> dict[str, Any]:
    built = model()
    built.fit(data, epochs=1, batch_size=2000, client=client, progress=False)
    records = data[0] if isinstance(data, tuple) else data
    return {**built.params, "predicted": np.asarray(built.predict(records, batch_size=2000, client=client))}


@pytest.mark.process
@pytest.mark.parametrize("kind", FITTED)
def test_a_model_is_fitted_on_processes(processes: Client, tmp_path: Path, fitted: Any, kind: str) -> None:
    assert_same(fit_model(SOURCES[kind](tmp_path, processes), processes), fitted)
