"""Records in numpy and dask arrays, and what is wrong with arrays that are refused."""

import gc
import pickle
import weakref
from pathlib import Path
from typing import Any

import dask
import dask.array as da
import numpy as np
import pytest
import scipy.sparse
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.data import open_records, write_store
from dsinga.data.sources.dask_arrays import DaskColumn
from tests.support.refusals import check_refusal, refusal, refused

X, Y = np.arange(60, dtype=np.float32).reshape(20, 3), np.arange(20) % 4


@settings(max_examples=40)
@given(
    length=st.integers(1, 40),
    cuts=st.lists(st.integers(0, 40), max_size=5),
    dtype=st.sampled_from(["uint8", "int8", "int32", "int64", "float16", "float32", "float64", "bool"]),
    seed=st.integers(0, 1 << 20),
)
def test_a_dask_array_has_the_rows_of_the_numpy_array(length: int, cuts: list[int], dtype: str, seed: int) -> None:
    rng = np.random.default_rng(seed)
    x = rng.integers(0, 2, (length, 2, 3)).astype(dtype)
    ends = sorted({min(cut, length) for cut in cuts} | {0, length})
    chunks = tuple(int(size) for size in np.diff(ends))
    source = open_records((da.from_array(x, chunks=(chunks, -1, -1)), rng.random((length, 2))))
    expected = open_records(x)
    rows = rng.integers(0, length, 2 * length)
    np.testing.assert_array_equal(source.read(rows)[0], x[rows])
    assert (source.dtype, source.block, source.label_dtype) == (expected.dtype, expected.block, np.float32)
    np.testing.assert_array_equal(pickle.loads(pickle.dumps(source)).read(rows)[0], expected.read(rows)[0])


def test_a_large_array_with_large_chunks_has_these_as_blocks() -> None:
    x = da.zeros((4000, 50_000), chunks=(200, -1), dtype=np.float32)  # 800 MB, of which a chunk is computed
    source = open_records(x)
    assert source.block == 200
    assert source.read([3999])[0].sum() == 0


def test_each_chunk_of_a_small_array_is_computed_once() -> None:
    computed = []

    def count(block: np.ndarray) -> np.ndarray:
        computed.append(len(block))
        return block

    x = da.from_array(np.zeros((3000, 3, 32, 32), np.uint8), chunks=(1000, -1, -1, -1)).map_blocks(count, dtype="u1")
    source = open_records(x)
    computed.clear()  # of what Dask computed to find the dtype
    for _ in range(2):
        source.read(np.random.default_rng(0).permutation(3000))
    assert computed == [1000, 1000, 1000]


class Recorded:
    """An array that records what is read of it."""

    def __init__(self, array: np.ndarray):
        self.array, self.shape, self.dtype, self.ndim = array, array.shape, array.dtype, array.ndim
        self.reads: list[Any] = []
        self.is_lost = False

    def __getitem__(self, index: Any) -> np.ndarray:
        self.reads.append(index)
        if self.is_lost:
            raise OSError("the disk is gone")
        return self.array[index]


def test_small_chunks_of_an_array_are_read_together() -> None:
    recorded = Recorded(np.arange(60_000, dtype=np.float32).reshape(20_000, 3))
    x = da.from_array(recorded, chunks=(64, -1))
    recorded.reads.clear()
    source = open_records(x)
    np.testing.assert_array_equal(source.read([7, 19_999])[0], recorded.array[[7, 19_999]])
    assert recorded.reads == [(slice(0, 20_000), slice(0, 3))]
    recorded.is_lost = True
    refused(lambda: open_records(x).read([8]), r"'x' cannot be read \(OSError: the disk is gone\); see")
    recorded.is_lost = False
    for more in (x[1:], x + 0, x[:, :2], x[::2], da.concatenate([x, x]), x[::-1]):  # which do more than cut the array
        np.testing.assert_array_equal(open_records(more).read([8])[0], more[8:9].compute())


def test_only_the_chunks_that_rows_need_are_computed() -> None:
    x = da.map_blocks(_fail_after_first, chunks=((10, 10), (3,)), dtype=np.float32, meta=np.empty((0, 3), np.float32))
    column = DaskColumn(x, "x")
    np.testing.assert_array_equal(column.load(0, 10), np.zeros((10, 3)))
    refused(lambda: column.load(5, 12), r"chunk 0 or 1 of 'x' cannot be computed \(ZeroDivisionError: no\); see")


def _fail_after_first(block_info: Any = None) -> np.ndarray:
    if block_info[None]["chunk-location"][0]:
        raise ZeroDivisionError("no")
    return np.zeros((10, 3), np.float32)


def test_rows_are_copies_and_the_array_stays_writable() -> None:
    x = X.copy()
    for source in (open_records(x), open_records(da.from_array(x, chunks=-1))):
        source.read([1])[0][:] = 7
        np.testing.assert_array_equal(source.read([1])[0], X[1:2])
    assert x.flags.writeable


def test_labels_keep_their_kind() -> None:
    for labels in (Y, Y.tolist(), Y.astype(np.uint8), da.from_array(Y, chunks=6), Y > 2):
        source = open_records((X, labels))
        read = source.read([19, 0])[1]
        assert read is not None
        assert read.dtype == np.int64
        np.testing.assert_array_equal(read, np.asarray(labels)[[19, 0]])
    targets = open_records((X, X.astype(np.float64)))
    assert (targets.label_shape, targets.label_dtype, targets.label_range()) == ((3,), np.float32, None)
    many = da.zeros((10, 40_000_000), chunks=(1, -1), dtype=np.float32)  # too many to compute at once
    assert open_records((X[:10], many)).label_shape == (40_000_000,)


def test_strings_are_coded_by_their_place_among_the_classes() -> None:
    names = np.array(["cat", "dog", "cow"])[Y[:12] % 3]
    for labels in (names, names.astype(object), list(names), da.from_array(names, chunks=5)):
        source = open_records((X[:12], labels), classes=["cow", "cat", "dog"])
        assert source.classes == ("cow", "cat", "dog")
        np.testing.assert_array_equal(source.read(range(3))[1], [1, 2, 0])


def filtered() -> da.Array:
    x = da.from_array(X, chunks=(5, -1))
    return x[x[:, 0] > 3]


def test_records_and_labels_may_be_paths_of_two_zarr_arrays(tmp_path: Path) -> None:
    paths = tmp_path / "x.zarr", tmp_path / "y.zarr"
    for path, array in zip(paths, (X, Y), strict=True):
        zarr.create_array(path, data=array, chunks=(7, *array.shape[1:]))
    for pair in (paths, (str(paths[0]), Y), (X, str(paths[1]))):
        source = open_records(pair)
        assert (source.dtype, source.label_dtype, source.label_range()) == (np.float32, np.int64, (0, 3))
        for read, array in zip(source.read([19, 3]), (X, Y), strict=True):
            np.testing.assert_array_equal(read, array[[19, 3]])
    assert open_records(("x.zarr", "y.zarr"), roots=[str(tmp_path)]).location == str(paths[0])
    refused(lambda: open_records((paths[0], Y[:19])), r"x.zarr has 20 records in 'x.zarr', but 19 labels in 'y'")
    write_store(tmp_path / "store.zarr", [(X, Y)])
    source = open_records((tmp_path / "store.zarr", 2 * Y))  # labels beside it take the place of a store's
    np.testing.assert_array_equal(source.read([19])[1], 2 * Y[[19]])
    refused(lambda: open_records((X, tmp_path / "store.zarr")), "zarr is a group", "store")
    np.testing.assert_array_equal(open_records((X, tmp_path / "store.zarr" / "labels")).read([19])[1], Y[[19]])


NAN = np.where(np.arange(60).reshape(20, 3) == 31, np.nan, X)


@pytest.mark.parametrize(
    ("source", "expected"),
    [
        (da.from_array(NAN, chunks=(7, -1)), "^dask array: 'x' has NaN in record 10, column 1; leave"),
        (da.from_array(np.full((2, 2), 1e300)), "'x': records have values beyond the range of float32; scale them"),
        (
            da.map_blocks(lambda x: x[1:], da.from_array(X, chunks=(10, -1)), dtype=X.dtype),
            r"dask array: chunk 0 of 'x' has the shape \(9, 3\), but the array says \(10, 3\)",
        ),
    ],
)
def test_what_is_wrong_with_numbers_is_said_when_they_are_read(source: Any, expected: str) -> None:
    records = open_records(source)
    refused(lambda: records.read(range(len(records))), expected)


def test_no_scheduler_of_dask_is_asked_for_rows() -> None:
    def scheduler(*args: Any, **kwargs: Any) -> None:
        raise AssertionError("a scheduler was asked")

    with dask.config.set(scheduler=scheduler):
        assert open_records(da.from_array(X, chunks=(5, -1)) + 1).read([6])[0].tolist() == [[19, 20, 21]]


def test_an_array_is_not_kept_in_memory_after_its_last_source() -> None:
    array = np.zeros((1000, 4), np.float32)
    alive = weakref.ref(array)
    source = open_records((array, np.zeros(1000)))
    again = source.without_labels()
    source.read([0, 999]), again.read([1])
    del array, source
    gc.collect()
    assert alive() is not None
    del again
    gc.collect()
    assert alive() is None


MISTAKES = [
    refusal(lambda: open_records(3.5), "records cannot be read", "give an array"),
    refusal(lambda: open_records(("x.zarr", [1, 2])), "zarr was not found", "make a store"),
    refusal(lambda: open_records((X, "y.csv")), "csv is a file", "as pandas"),
    refusal(lambda: open_records("zip://::x.zip"), "zip is a zip", "unpack it first"),
    refusal(lambda: open_records("a.npz"), "npz is a file", "data import npz"),
    refusal(lambda: open_records(("x.npy", "y.npy")), "npy is a file", "give the array"),
    refusal(lambda: open_records((scipy.sparse.eye(2).tocsr(), [1, 2])), "csr_matrix", "sparse matrices are"),
    refusal(lambda: open_records((X, Y, Y)), "2 parts", "y, not 3"),
    refusal(lambda: open_records(np.float32(3)), "'x' has the shape", "a row each; give [[number]]"),
    refusal(lambda: open_records([[1], [1, 2], [1]]), "'x', a list, does", "a numpy array"),
    refusal(lambda: open_records([X, Y]), "'x', a list, does", "give records and"),
    refusal(lambda: open_records(X[:0]), "numpy array has no", "'x' is empty"),
    refusal(lambda: open_records((X, Y[:19])), "20 records", "give one label"),
    refusal(lambda: open_records(da.from_array(X.astype("M8[D]"))), "'x': records must be", "give a number"),
    refusal(lambda: open_records((X, np.full(20, "a"))), "'y' has labels that", "name the classes"),
    refusal(lambda: open_records(np.ma.masked_less(X, 3)), "'x' has masked numbers", "fill them: x"),
    refusal(lambda: open_records(filtered()), "'x' has chunks of", "compute_chunk_sizes() first"),
    refusal(lambda: open_records(da.from_array(X, chunks=(20, 1))), "'x' has chunks of", "rechunk({0: 'auto', 1: -1}"),
    refusal(lambda: open_records(da.zeros((100, 10000000), chunks=(50, -1), dtype="f4")), "MiB", "chunk it finer"),
    refusal(lambda: open_records((X[:3], ["cat", "dig", "cat"]), classes=["cat", "dog"]), "'dig'", "among the classes"),
    refusal(lambda: open_records(X, dim="time"), "has no use for", "it takes classes"),
    refusal(lambda: open_records((X, Y), label="y"), "has no use for", "with an array"),
    refusal(lambda: open_records("x.zarr", columns=["a"]), "has no use for", "it takes data"),
]


@pytest.mark.parametrize(("call", "words", "error"), MISTAKES)
def test_a_mistake_is_named_with_its_remedy(call: Any, words: Any, error: Any, request: pytest.FixtureRequest) -> None:
    check_refusal(call, words, error, request)
