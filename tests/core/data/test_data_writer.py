"""Writing stores and CSV files, and integers that float32 rounds."""

import logging
import re
import threading
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import dask.array as da
import dask.dataframe as dd
import numpy as np
import pandas as pd
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga import nn
from dsinga.base.arrays import EXACT, warn_of_rounding
from dsinga.base.errors import UserError
from dsinga.data import RecordStore, open_records, write_csv, write_store
from dsinga.data.stores.staged_stores import StagedStores
from tests.support.refusals import refused

ONES = np.ones((4, 2), np.float32)


@settings(max_examples=15)  # of up to 16 MiB each
@given(sizes=st.lists(st.integers(0, 90), min_size=1, max_size=4), width=st.integers(1, 3))
def test_batches_of_any_sizes_give_the_same_store(tmp_path_factory, sizes, width):
    # Records of 16 to 48 KiB, 65 to 21 per chunk: batches end before, at and after the ends of chunks.
    total = sum(sizes)
    data = np.arange(total, dtype=np.uint32).view(np.uint8).reshape(total, 4, 1, 1)
    data = np.broadcast_to(data, (total, 4, 4096, width))
    ends = np.cumsum([0, *sizes])
    batches = [(data[a:b], np.arange(a, b)) for a, b in zip(ends, ends[1:], strict=False)]
    path = tmp_path_factory.mktemp("sizes") / "x.zarr"
    if not total:
        refused(lambda: write_store(path, batches), "there are no records to write")
        return
    assert write_store(path, batches) == total
    store = RecordStore(path)
    records, labels = store.read(range(total))
    np.testing.assert_array_equal(records, data)
    np.testing.assert_array_equal(labels, np.arange(total))
    assert len(list((path / "data" / "c").iterdir())) == -(-total // store.chunk)


@pytest.mark.parametrize(
    ("batches", "message"),
    [
        ([(ONES, None), (ONES[:, :1], None)], r"record 4: float32 \(1,\) where the records before are float32 \(2,\)"),
        ([(ONES, None), (ONES.astype(np.uint8), None)], "record 4: uint8"),
        ([(ONES, None), (ONES, [1, 2, 3, 4])], "record 4: some records have a label and some have none"),
        ([(ONES, [1, 2, 3])], r"labels must be one number per record, or .*, not int64 \(3,\) for 4 records"),
        ([(ONES, np.zeros((4, 2, 2), int))], r"must be one number per record, or .*, not int64 \(4, 2, 2\) for 4"),
        ([(ONES, np.zeros((4, 2), int)), (ONES, np.zeros((4, 3), int))], r"4: int32 \(3,\) where the records bef"),
        ([(ONES, ["a"] * 4)], "labels must be one number per record, or .*, not <U1"),
        ([(ONES, [1, 2, 3, 4]), (ONES, [0.5] * 4)], r"record 4: float32 \(\) where the records before are int32"),
        ([(ONES, [0.5] * 4), (ONES, [0, np.nan, 1, 2])], "record 5: its label is NaN or infinite; leave such records"),
        ([(ONES, [1, -(2**40), 3, 4])], "label 1099511627776 does not fit|label -1099511627776 does not fit"),
    ],
)
def test_batches_that_do_not_fit_are_refused(tmp_path: Path, batches: list[Any], message: str) -> None:
    refused(lambda: write_store(tmp_path / "x.zarr", batches), message)
    assert not list(tmp_path.iterdir())


class TestDestination:
    def test_a_folder_or_file_that_is_not_a_store_is_never_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "precious").write_text("data")
        for destination in (tmp_path, tmp_path / "precious"):
            with pytest.raises(UserError, match="exists and is not a record store; choose another destination"):
                write_store(destination, [(ONES, None)], overwrite=True)
        assert (tmp_path / "precious").read_text() == "data"

    def test_a_destination_in_a_file_is_named_and_no_folder_is_left(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        with pytest.raises(UserError, match=r"x.zarr cannot be written: .*Not a directory"):
            write_store(tmp_path / "file" / "in" / "x.zarr", [(ONES, None)])
        assert [path.name for path in tmp_path.iterdir()] == ["file"]

    def test_an_empty_folder_is_replaced(self, tmp_path: Path) -> None:
        (tmp_path / "x.zarr").mkdir()
        write_store(tmp_path / "x.zarr", [(ONES, None)])
        assert len(RecordStore(tmp_path / "x.zarr")) == 4

    @pytest.mark.parametrize("overwrite", [False, True])
    def test_concurrent_writers_leave_the_store_of_one(self, tmp_path: Path, overwrite: bool) -> None:
        if overwrite:
            write_store(tmp_path / "x.zarr", [(ONES, None)])
        barrier = threading.Barrier(6)

        def batches(value: int) -> Iterator[tuple[np.ndarray, None]]:
            barrier.wait(60)  # all have checked that the destination does not exist
            yield np.full((3, 2), value, np.uint8), None

        def write(value: int) -> str:
            try:
                write_store(tmp_path / "x.zarr", batches(value), overwrite=overwrite)
            except UserError as error:
                return str(error)
            return f"wrote {value}"

        with ThreadPoolExecutor(6) as pool:
            outcomes = list(pool.map(write, range(6), timeout=60))
        wrote = [outcome for outcome in outcomes if outcome.startswith("wrote")]
        assert len(wrote) == (6 if overwrite else 1)
        refusals = sum("exists; --overwrite (overwrite=True in Python) replaces it" in outcome for outcome in outcomes)
        assert refusals == 6 - len(wrote)
        records = RecordStore(tmp_path / "x.zarr").read([0, 1, 2])[0]
        assert len(np.unique(records)) == 1
        assert f"wrote {records[0, 0]}" in wrote
        assert [path.name for path in tmp_path.iterdir()] == ["x.zarr"]

    def test_a_store_that_others_replace_meanwhile_is_no_other_kind_of_folder(self, tmp_path: Path) -> None:
        folders = [tmp_path / "x.zarr", tmp_path / "y.zarr", tmp_path / "z.zarr"]
        for folder in folders[:2]:
            write_store(folder, [(ONES, None)])
        stopped = threading.Event()

        def replace() -> None:
            present, absent, free = folders
            while not stopped.is_set():
                present.rename(free)
                absent.rename(present)
                absent, free = free, absent

        thread = threading.Thread(target=replace)
        thread.start()
        try:
            for _ in range(300):
                StagedStores(overwrite=True).check(str(folders[0]))
        finally:
            stopped.set()
            thread.join(30)


def test_each_row_is_a_line_that_reads_back_exactly(tmp_path: Path) -> None:
    rows = np.random.default_rng(0).normal(size=(5, 2, 3)).astype(np.float32)
    write_csv(tmp_path / "new" / "o.csv", [rows[:3], rows[3:]])
    text = (tmp_path / "new" / "o.csv").read_text()
    assert text.count("\n") == 5
    np.testing.assert_array_equal(np.loadtxt(text.splitlines(), delimiter=",", dtype=np.float32), rows.reshape(5, 6))


def test_integers_are_written_as_integers_with_the_given_separator(tmp_path: Path) -> None:
    write_csv(tmp_path / "o.csv", [np.arange(4).reshape(2, 2)], separator=" ")
    assert (tmp_path / "o.csv").read_text() == "0 1\n2 3\n"


def test_an_error_leaves_the_file_that_was_there(tmp_path: Path) -> None:
    def failing():
        yield np.zeros((1, 1))
        raise ZeroDivisionError

    (tmp_path / "o.csv").write_text("before")
    with pytest.raises(ZeroDivisionError):
        write_csv(tmp_path / "o.csv", failing())
    assert [(file.name, file.read_text()) for file in tmp_path.iterdir()] == [("o.csv", "before")]


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
    "frame of Dask": (lambda folder: dd.from_pandas(frame_of("two"), npartitions=3), "column 'two' of the data frame"),
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
