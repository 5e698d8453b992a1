"""A store returns the records that were written, on every file system, and names the fault if it cannot be read."""

import json
import pickle
import shutil
import threading
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.data import RecordStore, describe, write_store
from dsinga.data import record_source as source_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.stores.store_format import LABEL_ROWS, chunk_rows
from tests.support.old_stores import remove_checksums
from tests.support.refusals import refused

ROWS = 1000


def contents(
    rows: int = ROWS, shape: tuple[int, ...] = (3, 16, 16), dtype: str = "uint8"
) -> tuple[np.ndarray, np.ndarray]:
    rng = np.random.default_rng(rows)
    return rng.integers(0, 256, (rows, *shape)).astype(dtype), rng.integers(-5, 1 << 20, rows)


def in_batches(data: np.ndarray, labels: np.ndarray | None, size: int) -> Any:
    for start in range(0, len(data), size):
        yield data[start : start + size], None if labels is None else labels[start : start + size]


def sequences(rows: int = 70, steps: int = 5) -> tuple[np.ndarray, np.ndarray]:
    """Codes of sequences of different lengths, and a label for each step, -1 after the end."""
    rng = np.random.default_rng(rows)
    real = np.arange(steps) < rng.integers(1, steps + 1, rows)[:, None]
    codes = np.where(real, rng.integers(1, 90000, real.shape), 0).astype(np.int32)
    return codes, np.where(real, rng.integers(0, 7, real.shape), -1)


class TestStore:
    """The same on every file system."""

    @pytest.fixture(params=["{}/a/x.zarr", "file://{}/a b/x.zarr", "memory:/{}/x.zarr"])
    def location(self, request: pytest.FixtureRequest, tmp_path: Path) -> str:
        return str(request.param).format(tmp_path)

    @pytest.mark.parametrize("dtype", ["uint8", "float32"])
    @pytest.mark.parametrize("size", [1, 37, 341, 1000])
    def test_records_are_read_as_they_were_written(self, location: str, dtype: str, size: int) -> None:
        data, labels = contents(dtype=dtype)
        assert write_store(location, in_batches(data, labels, size), classes=["a", "b"]) == ROWS
        store = RecordStore(location)
        assert (len(store), store.shape, store.dtype, store.has_labels) == (ROWS, (3, 16, 16), np.dtype(dtype), True)
        assert store.chunk == chunk_rows(data[0].nbytes)
        assert store.classes == ("a", "b")
        records, labels_read = store.read(np.arange(ROWS))
        np.testing.assert_array_equal(records, data)
        np.testing.assert_array_equal(labels_read, labels)
        assert (records.dtype, labels_read.dtype) == (np.dtype(dtype), np.dtype("int64"))
        facts = describe(store)
        assert (facts["records"], facts["chunk_rows"]) == (ROWS, store.chunk)
        assert (facts["raw_bytes"], facts["stored_bytes"] > 0) == (data.nbytes + 4 * ROWS, True)

    def test_sequences_have_a_label_for_each_step(self, location: str) -> None:
        codes, labels = sequences()
        write_store(location, in_batches(codes, labels, 32), classes=["O"], vocabulary=["<unk>", "word"])
        store = RecordStore(location)
        assert (store.shape, store.label_shape, store.dtype) == ((5,), (5,), np.dtype("int32"))
        assert (store.classes, store.vocabulary) == (("O",), ("<unk>", "word"))
        order = np.random.default_rng(0).permutation(len(store))
        records, labels_read = store.read(order)
        np.testing.assert_array_equal(records, codes[order])
        np.testing.assert_array_equal(labels_read, labels[order])
        assert store.label_range() == (0, 6)
        histogram = describe(store)["labels"]
        assert histogram == {"O": int((labels == 0).sum())} | {str(k): int((labels == k).sum()) for k in range(1, 7)}

    @pytest.mark.parametrize("shape", [(), (1,), (3,)])
    def test_float_labels(self, location: str, shape: tuple[int, ...]) -> None:
        data, _ = contents(100, (4,))
        labels = np.random.default_rng(0).normal(size=(100, *shape))
        write_store(location, in_batches(data, labels, 32))
        store = RecordStore(location)
        assert (store.label_shape, store.label_dtype, store.label_range()) == (shape, np.float32, None)
        read = store.read([99, 0, 50])[1]
        assert read.dtype == np.float32
        np.testing.assert_array_equal(read, labels[[99, 0, 50]].astype(np.float32))

    def test_a_pickle_has_the_location_only(self, location: str) -> None:
        data, labels = contents()
        write_store(location, [(data, labels)])
        store = RecordStore(location)
        store.read([0])
        sent = pickle.dumps(store)
        assert len(sent) < 300
        np.testing.assert_array_equal(pickle.loads(sent).read([7])[0], data[[7]])

    def test_an_error_while_writing_leaves_no_store(self, location: str) -> None:
        def broken() -> Any:
            yield contents()
            raise ZeroDivisionError

        with pytest.raises(ZeroDivisionError):
            write_store(location, broken())
        refused(lambda: RecordStore(location), "no store at")

    def test_it_is_replaced_only_when_asked(self, location: str) -> None:
        write_store(location, [contents()])
        refused(lambda: write_store(location, [contents(10)]), "exists; --overwrite .* replaces it")
        assert len(RecordStore(location)) == ROWS
        old = RecordStore(location)
        old.read([0])
        write_store(location, [contents(10)], overwrite=True)
        np.testing.assert_array_equal(RecordStore(location).read(range(10))[0], contents(10)[0])


def test_a_relative_path_is_sent_as_an_absolute_one(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    write_store("x.zarr", [contents()])
    sent = pickle.dumps(RecordStore("x.zarr"))
    monkeypatch.chdir("/")
    assert len(pickle.loads(sent)) == ROWS


class TestRefusals:
    """Errors for folders that are not complete stores of this format."""

    @pytest.fixture
    def good(self, tmp_path: Path) -> Path:
        write_store(tmp_path / "x.zarr", [contents()])
        return tmp_path / "x.zarr"

    @pytest.mark.parametrize(
        ("attributes", "message"),
        [
            ({}, "not a record store .it lacks the attribute 'dsinga'"),
            ({"dsinga": 4, "complete": True}, "has version 4 of the store format, .* reads versions 1 to 3; import"),
            ({"dsinga": 1}, "is incomplete: its import was interrupted; import it again"),
            ({"dsinga": 1, "complete": False}, "is incomplete"),
        ],
    )
    def test_attributes(self, good: Path, attributes: dict[str, Any], message: str) -> None:
        metadata = json.loads((good / "zarr.json").read_text())
        metadata["attributes"] = attributes
        (good / "zarr.json").write_text(json.dumps(metadata))
        refused(lambda: RecordStore(good), f"{good}.*{message}")

    @pytest.mark.parametrize(
        ("array", "message"),
        [
            ({"chunks": (10, 4), "dtype": "float64"}, "data of dtype float64; a store has one of uint8, int32"),
            ({"chunks": (10, 2), "dtype": "uint8"}, "chunks of shape .10, 2.; chunk it along axis 0 only"),
        ],
    )
    def test_another_array(self, good: Path, array: dict[str, Any], message: str) -> None:
        zarr.open_group(good, mode="r+").create_array("data", shape=(ROWS, 4), overwrite=True, **array)
        refused(lambda: RecordStore(good), message)

    def test_other_files_and_folders(self, tmp_path: Path) -> None:
        (tmp_path / "file").write_text("x")
        (tmp_path / "folder").mkdir()
        (tmp_path / "garbled").mkdir()
        (tmp_path / "garbled" / "zarr.json").write_text("{nonsense")
        zarr.create_array(tmp_path / "array", shape=(3,), dtype="uint8")
        for name in ("file", "folder", "array"):
            with pytest.raises(UserError, match=f"{name} is not a zarr v3 group"):
                RecordStore(tmp_path / name)
        refused(lambda: RecordStore(tmp_path / "garbled"), "JSONDecodeError", "delete this store")
        refused(lambda: RecordStore(tmp_path / "nothing"), "no store at", "make one with")
        several = rf"SOURCE {tmp_path}/train_data.zarr \(for mnist, sentences and other kinds .* stores: {tmp_path}\)"
        refused(lambda: RecordStore(tmp_path / "train_data.zarr"), several)


class TestReading:
    """Only the chunks of the rows are decoded, each once."""

    @pytest.fixture
    def decoded(self, monkeypatch: pytest.MonkeyPatch) -> list[int]:
        """The chunks decoded during the test, beginning with an empty cache."""
        indices: list[int] = []
        load = RecordStore._load

        def recording_load(store: RecordStore, column: Any, index: int) -> np.ndarray:
            if column.name == "data":
                indices.append(index)
            return load(store, column, index)

        monkeypatch.setattr(RecordStore, "_load", recording_load)
        monkeypatch.setattr(source_module, "_cache", ChunkCache())
        return indices

    @pytest.fixture
    def store(self, tmp_path: Path) -> RecordStore:
        write_store(tmp_path / "x.zarr", [contents(1000, (1 << 14,))])
        store = RecordStore(tmp_path / "x.zarr")
        assert store.chunk == 64
        return store

    def test_only_the_chunks_of_the_rows(self, store: RecordStore, decoded: list[int]) -> None:
        store.read([130, 999, 128])
        assert decoded == [2, 15]
        store.read([129, 990])
        assert decoded == [2, 15]
        pickle.loads(pickle.dumps(store)).read([131])
        assert decoded == [2, 15]

    def test_each_chunk_once_for_many_threads(self, store: RecordStore, decoded: list[int]) -> None:
        barrier = threading.Barrier(8)

        def read(_: int) -> np.ndarray:
            barrier.wait(60)
            return store.read(np.arange(0, 1000, 7))[0]

        with ThreadPoolExecutor(8) as pool:
            results = list(pool.map(read, range(8), timeout=60))
        assert sorted(decoded) == list(range(16))
        for records in results:
            np.testing.assert_array_equal(records, contents(1000, (1 << 14,))[0][::7])

    def test_the_same_bytes_in_another_shape_are_not_the_same_records(self, tmp_path: Path) -> None:
        data = np.arange(6, dtype=np.uint8)
        for shape in ((2, 3), (3, 2), (6, 1)):
            write_store(tmp_path / f"{shape}.zarr", [(data.reshape(shape), None)])
            store = RecordStore(tmp_path / f"{shape}.zarr")
            np.testing.assert_array_equal(store.read(range(len(store)))[0], data.reshape(shape))


@given(record_bytes=st.integers(0, 1 << 30))
def test_chunks_are_neither_tiny_nor_huge(record_bytes: int) -> None:
    rows = chunk_rows(record_bytes)
    assert 1 <= rows <= LABEL_ROWS
    assert rows == 1 or rows * record_bytes <= 8 << 20
    assert rows == LABEL_ROWS or 2 * rows * record_bytes > 1 << 20


def test_the_label_range_is_that_of_all_labels(tmp_path):
    labels = np.full(100_000, 3)  # more than one chunk of labels
    labels[[5, 99_999]] = -1, 12
    write_store(tmp_path / "x.zarr", [(np.zeros((100_000, 1), np.uint8), labels)])
    assert RecordStore(tmp_path / "x.zarr").label_range() == (-1, 12)
    write_store(tmp_path / "y.zarr", [(np.zeros((3, 1), np.uint8), None)])
    assert RecordStore(tmp_path / "y.zarr").label_range() is None


def test_small_chunks_are_read_many_together(tmp_path: Path) -> None:
    """Chunks of 64 KiB, sixteen to a block, as other programs write them; the error names the missing chunk."""
    data = np.random.default_rng(0).integers(1, 256, (1000, 1 << 12)).astype(np.uint8)
    write_store(tmp_path / "x.zarr", [(data, None)])
    shutil.rmtree(tmp_path / "x.zarr" / "data")
    zarr.open_group(tmp_path / "x.zarr", mode="a").create_array("data", data=data, chunks=(16, 1 << 12))
    remove_checksums(tmp_path / "x.zarr")
    store = RecordStore(tmp_path / "x.zarr")
    assert (store.chunk, store.block) == (16, 256)
    rows = [999, 0, 255, 256, 17]
    np.testing.assert_array_equal(store.read(rows)[0], data[rows])
    (tmp_path / "x.zarr" / "data" / "c" / "40" / "0").unlink()
    refused(lambda: RecordStore(tmp_path / "x.zarr").read([650]), "chunk data/c/40/0 is missing")
