"""Rows are gathered from the blocks of columns and cached, in the dtypes of records; what is not finite is named."""

import threading
from typing import Any

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import RunError, UserError
from dsinga.data import Column, RecordSource, open_records
from dsinga.data import chunk_cache as cache_module
from dsinga.data.chunk_cache import MIXED_BLOCKS, ChunkCache
from dsinga.data.conversion import as_labels, as_records
from dsinga.data.sources import arrays
from dsinga.data.stores.store_format import SMALL_BYTES, block_rows, chunk_rows, shared_block_rows
from tests.support.programs import python
from tests.support.refusals import refused


class ArrayColumn(Column):
    """A column that is an array in memory."""

    def __init__(self, array: np.ndarray, block: int, dtype: Any = None, name: str = "data"):
        super().__init__(name, len(array), array.shape[1:], dtype or array.dtype, block)
        self.array = array

    def load(self, start: int, stop: int) -> np.ndarray:
        assert stop - start <= self.block
        return self.array[start:stop].copy()


def whole_column(array: np.ndarray, block: int, name: str = "data", labels: bool = False) -> Column:
    column = arrays.ArrayColumn(array, name, labels)
    column.block = block
    return column


@given(length=st.integers(1, 50), block=st.integers(1, 60), seed=st.integers(0, 1 << 20))
def test_rows_come_in_any_order_from_blocks_of_any_size(length: int, block: int, seed: int) -> None:
    rng = np.random.default_rng(seed)
    data, labels = rng.random((length, 2, 3), np.float32), rng.integers(-9, 9, length).astype(np.int32)
    source = RecordSource("x", ArrayColumn(data, block), ArrayColumn(labels, 7, np.int64, "labels"))
    rows = rng.integers(0, length, rng.integers(0, 2 * length))
    in_memory = RecordSource("x", whole_column(data.astype(float), block), whole_column(labels, 7, labels=True))
    for each in (source, in_memory, in_memory):  # at first by blocks, then from the array as a whole
        records, read = each.read(rows)
        np.testing.assert_array_equal(records, data[rows])
        np.testing.assert_array_equal(read, labels[rows])
        assert (records.dtype, read.dtype) == (np.float32, np.int64)
        each.read(range(length))
    assert source.label_range() == (labels.min(), labels.max())
    for outside in ([-1], [length], [0, 5000]):
        with pytest.raises(IndexError, match=f"are not all in the {length} records of x"):
            source.read(outside)


@pytest.mark.parametrize("layout", ["unaligned", "strided"])
def test_a_block_is_laid_out_for_gathering_once(layout: str) -> None:
    data = np.arange(40.0).reshape(20, 2)
    if layout == "unaligned":  # as Dask sends an array to another process
        array = np.frombuffer(b"1234" + data.tobytes(), np.uint8)[4:].view(np.float64).reshape(data.shape)
        assert not array.flags.aligned
    else:
        array = np.asfortranarray(data)
    source = open_records((array, array[:, 0]))
    for column in source.columns:
        block = source._read_block(column, 0)
        assert block.flags.aligned
        assert block.flags.c_contiguous
    np.testing.assert_array_equal(source.read([3, 1])[0], data[[3, 1]])


@pytest.mark.parametrize(
    ("shape", "index", "place"),
    [((), (), ""), ((4,), (2,), ", column 2"), ((2, 3, 4), (1, 0, 3), r", index \(1, 0, 3\)")],
)
@pytest.mark.parametrize(("value", "text"), [(np.nan, "NaN"), (np.inf, "infinity"), (-np.inf, "infinity")])
def test_a_number_that_is_not_finite_is_named(shape, index, place, value, text):
    data = np.zeros((20, *shape), np.float32)
    data[(13, *index)] = value
    for column in (ArrayColumn(data, 8), whole_column(data, 8)):
        source = RecordSource("here", column, ArrayColumn(np.zeros(20, np.int32), 8))
        source.read([0, 7, 19])
        with pytest.raises(UserError, match=f"^here: 'data' has {text} in record 13{place}; leave"):
            source.read([8])
    labels = RecordSource("here", ArrayColumn(np.zeros(20, np.uint8), 8), ArrayColumn(data, 8, name="y"))
    if len(shape) > 1 and np.isnan(value):  # a masked point of a field, which losses refuse or leave out
        np.testing.assert_array_equal(labels.read_labels([13]), data[[13]])
        return
    refused(lambda: labels.read_labels([8]), f"^here: 'y' has {text} in record 13{place}; leave")


def test_a_job_that_leaves_bad_batches_out_gets_them() -> None:
    data = np.array([[0], [np.nan], [np.inf]], np.float32)
    source = RecordSource("here", ArrayColumn(data, 2))
    for _ in range(2):  # what is in the cache for one is not taken for the other
        np.testing.assert_array_equal(source.allowing_nonfinite().read([2, 1])[0], data[[2, 1]])
        refused(lambda: source.read([1]), "has NaN in record 1")


def test_large_finite_numbers_are_read() -> None:
    data = np.full((9, 3), np.finfo(np.float32).max, np.float32)
    np.testing.assert_array_equal(RecordSource("x", ArrayColumn(data, 4)).read(range(9))[0], data)


@given(length=st.integers(1, 1 << 24), record_bytes=st.integers(1, 1 << 24), chunk=st.integers(1, 1 << 24))
def test_blocks_are_those_of_a_record_store_unless_chunks_are_larger(length, record_bytes, chunk):
    stored = shared_block_rows(length, record_bytes, chunk_rows(record_bytes))
    assert block_rows(length, record_bytes) == stored
    large = chunk > stored and length * record_bytes > SMALL_BYTES
    assert block_rows(length, record_bytes, chunk) == (chunk if large else stored)


def test_the_cache_holds_the_large_blocks_of_a_source_in_use() -> None:
    cache, source = ChunkCache(100), open
    cache.reserve(source, 5)
    assert cache.limit == 100
    user = ArrayColumn(np.zeros(1), 1)
    cache.reserve(user, 50)
    assert cache.limit == MIXED_BLOCKS * 50
    del user
    assert cache.limit == 100


def test_open_records_takes_sources_and_names_what_it_cannot_read() -> None:
    source = RecordSource("x", ArrayColumn(np.zeros((3, 2), np.uint8), 8))
    assert open_records(source) is source
    refused(lambda: open_records(object()), "records cannot be read from a object; give an array")


@pytest.mark.parametrize(
    ("dtype", "record", "label"),
    [
        ("bool", "uint8", "int64"),
        ("uint8", "uint8", "int64"),
        ("int8", "float32", "int64"),
        (">i4", "int32", "int64"),
        ("int64", "float32", "int64"),
        ("uint64", "float32", "int64"),
        ("float16", "float32", "float32"),
        (">f4", "float32", "float32"),
        ("float64", "float32", "float32"),
    ],
)
def test_numbers(dtype: str, record: str, label: str) -> None:
    array = np.array([[0, 1], [1, 0]], dtype)
    for converted, expected in ((as_records(array), record), (as_labels(array), label)):
        assert converted.dtype == np.dtype(expected)
        assert converted.dtype.isnative
        np.testing.assert_array_equal(converted, array)


def kilobyte(value: int) -> np.ndarray:
    return np.full(1024, value, np.uint8)


def test_it_keeps_the_most_recently_used_chunks() -> None:
    cache = ChunkCache(limit=3 << 10)
    loads: list[int] = []

    def get(key: int) -> np.ndarray:
        return cache.get(key, lambda: loads.append(key) or kilobyte(key))

    for key in (0, 1, 2, 0, 3):  # 3 evicts 1, since 0 was used again
        assert (get(key) == key).all()
    assert loads == [0, 1, 2, 3]
    get(0), get(2), get(1)
    assert loads == [0, 1, 2, 3, 1]


def test_chunks_are_dropped_with_the_last_source_that_has_their_contents() -> None:
    class Source:
        pass

    cache = ChunkCache()
    loads: list[tuple[str, int]] = []
    sources = [Source(), Source(), Source()]
    for source, contents in zip(sources, ["mine", "mine", "other"], strict=True):
        cache.forget_after(source, [contents])
    del source

    def get(*key: object) -> None:
        cache.get(key, lambda: loads.append(key) or kilobyte(1))  # type: ignore[func-returns-value]

    def read_all() -> list[tuple[object, ...]]:
        loads.clear()
        for key in (("mine", 0), ("mine", 1), ("other", 0), ("stays", 0)):
            get(*key)
        return [*loads]

    read_all()
    sources.pop(0)
    assert read_all() == []
    sources.pop(0)
    assert read_all() == [("mine", 0), ("mine", 1)]
    sources.pop(0)
    assert read_all() == [("other", 0)]
    assert cache._bytes == 4 * 1024


def test_a_chunk_larger_than_the_limit_is_returned_but_not_kept() -> None:
    cache = ChunkCache(limit=1000)
    loads: list[int] = []
    for _ in range(2):
        assert (cache.get("x", lambda: loads.append(1) or kilobyte(1)) == 1).all()
    assert loads == [1, 1]


def test_chunks_are_read_only() -> None:
    chunk = ChunkCache().get("x", lambda: kilobyte(1))
    with pytest.raises(ValueError, match="read-only"):
        chunk[0] = 2


def test_an_error_is_raised_in_all_waiting_threads_and_not_kept() -> None:
    cache = ChunkCache()
    started, unblocked = threading.Event(), threading.Event()
    errors: list[BaseException] = []

    def fail() -> np.ndarray:
        started.set()
        assert unblocked.wait(60)
        raise OSError("disk")

    def get() -> None:
        try:
            cache.get("x", fail)
        except OSError as error:
            errors.append(error)

    threads = [threading.Thread(target=get) for _ in range(3)]
    threads[0].start()
    assert started.wait(60)
    for thread in threads[1:]:
        thread.start()
    unblocked.set()
    for thread in threads:
        thread.join(60)
    assert len(errors) == 3
    assert (cache.get("x", lambda: kilobyte(5)) == 5).all()


def test_waiting_for_another_thread_has_an_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cache_module, "TIMEOUT_SECONDS", 0.05)
    cache = ChunkCache()
    started, unblocked = threading.Event(), threading.Event()

    def slow() -> np.ndarray:
        started.set()
        assert unblocked.wait(60)
        return kilobyte(1)

    thread = threading.Thread(target=lambda: cache.get("x", slow), daemon=True)
    thread.start()
    assert started.wait(60)
    refused(lambda: cache.get("x", slow), "waited 0 s for another thread to read chunk x", error=RunError)
    unblocked.set()
    thread.join(60)


FORKS = """
import os, signal, threading
import numpy as np
from dsinga.data.chunk_cache import ChunkCache

cache, started, ended = ChunkCache(), threading.Event(), threading.Event()

def slow():
    started.set()
    return np.full(9, ended.wait())

def read(load):
    with cache.lock_of("run"):
        return cache.get(("mine", 0), load).sum()

reader = threading.Thread(target=read, args=[slow], daemon=True)
reader.start()
started.wait()
child = os.fork()
if not child:
    signal.alarm(30)
    os._exit(int(read(lambda: np.ones(5))) - 5)
assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
ended.set()
reader.join()
assert read(None) == 9
"""


def test_a_process_forked_while_a_thread_reads_a_chunk_reads_it_itself() -> None:
    python("-W", "ignore", "-c", FORKS)


def test_a_cleared_cache_loads_its_chunks_again() -> None:
    cache, loads = ChunkCache(), list[int]()
    for _ in range(2):
        cache.get(("mine", 0), lambda: loads.append(1) or np.ones(1024, np.uint8))  # type: ignore[func-returns-value]
        cache.clear()
    assert len(loads) == 2
