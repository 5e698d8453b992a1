"""Chunks that are read as files have the numbers that zarr reads, whatever their codec, chunks and format."""

import threading
import weakref
from functools import partial
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import xarray as xr
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st
from zarr.codecs import BloscCodec, BytesCodec, Crc32cCodec, GzipCodec, ShardingCodec, ZstdCodec
from zarr.storage import LocalStore

from dsinga.data.sources.xarray_files import reading_files
from dsinga.data.stores.chunk_files import RegionReader, has_plain_chunks, in_threads
from tests.support.refusals import refused

SHAPE, CHUNKS = (11, 6, 5), (4, 3, 5)
PLAIN: list[dict[str, Any]] = [
    {"zarr_format": 2, "compressors": numcodecs.Blosc("zstd", shuffle=numcodecs.Blosc.BITSHUFFLE)},
    {"zarr_format": 2, "compressors": numcodecs.LZ4()},
    {"zarr_format": 2, "compressors": None, "dtype": "int16", "chunks": (4, 6, 5)},
    {"zarr_format": 3, "compressors": BloscCodec(cname="lz4"), "chunks": (4, 6, 5)},
    {"zarr_format": 3, "compressors": ZstdCodec(checksum=True), "dtype": "float64"},
    {"zarr_format": 3, "compressors": GzipCodec(), "dtype": "uint8"},
    {"zarr_format": 3, "shards": (8, 6, 5)},
    {"zarr_format": 3, "shards": {"shape": (8, 6, 10), "index_location": "start"}, "compressors": BloscCodec()},
]
OTHERS: list[dict[str, Any]] = [
    {"zarr_format": 2, "order": "F"},
    {"zarr_format": 2, "dtype": ">f4"},
    {"zarr_format": 2, "filters": [numcodecs.Delta("<f4")]},
    {"zarr_format": 3, "compressors": [ZstdCodec(), Crc32cCodec()]},
    {"zarr_format": 3, "shards": (8, 6, 5), "compressors": None},
]


def stored(folder: Path, settings: dict[str, Any]) -> zarr.Array:
    """Return an array in a store whose chunk (2, 1, 0) is missing where chunks are the default ones."""
    settings = {"dtype": "float32", "chunks": CHUNKS, "fill_value": 7, **settings}
    group = zarr.open_group(folder, mode="w", zarr_format=settings.pop("zarr_format"))
    names = {} if group.metadata.zarr_format == 2 else {"dimension_names": ["t", "y", "x"]}
    array = group.create_array("f", shape=SHAPE, **settings, **names)
    array.attrs["_ARRAY_DIMENSIONS"] = ["t", "y", "x"]
    numbers = np.random.default_rng(0).integers(0, 200, SHAPE).astype(array.dtype)
    array[:8], array[8:, :3] = numbers[:8], numbers[8:, :3]
    return array


@pytest.mark.parametrize("number", range(len(PLAIN)))
def test_files_of_chunks_have_the_numbers_that_zarr_reads(tmp_path_factory, number):
    array = stored(tmp_path_factory.mktemp("plain"), PLAIN[number])
    assert has_plain_chunks(array)
    files = RegionReader(array)

    @settings(max_examples=15, deadline=None)
    @given(st.tuples(*(st.tuples(st.integers(0, size), st.integers(0, size)) for size in SHAPE)))
    def check(ends: Any) -> None:
        region = tuple(slice(*sorted(pair)) for pair in ends)
        expected = array[region]
        got = files.read(region)
        assert got.dtype == expected.dtype
        np.testing.assert_array_equal(got, expected)

    check()
    np.testing.assert_array_equal(files.read(tuple(slice(0, size) for size in SHAPE)), array[:])


@pytest.mark.parametrize("number", range(len(OTHERS)))
def test_zarr_itself_reads_all_other_arrays(tmp_path: Path, number: int) -> None:
    assert not has_plain_chunks(stored(tmp_path, OTHERS[number]))


def test_zarr_itself_reads_shards_whose_index_has_no_checksum(tmp_path: Path) -> None:
    def array(**settings: Any) -> zarr.Array:
        codecs = [ShardingCodec(chunk_shape=(4, 3, 5), codecs=[BytesCodec(), ZstdCodec()], **settings)]
        store = LocalStore(tmp_path)
        return zarr.create(SHAPE, chunks=(8, 6, 5), dtype="f4", store=store, overwrite=True, codecs=codecs)

    assert has_plain_chunks(array())
    assert not has_plain_chunks(array(index_codecs=[BytesCodec()]))


@pytest.mark.parametrize("where", ["start", "end"])
@pytest.mark.parametrize("damage", ["cut off", "swapped"])
def test_a_damaged_index_of_a_shard_is_an_error_that_names_the_chunk(tmp_path: Path, where: str, damage: str) -> None:
    """Each chunk can be decoded in place of another."""
    stored(tmp_path, {"zarr_format": 3, "shards": {"shape": (8, 6, 5), "index_location": where}})
    opened = reading_files(xr.open_zarr(tmp_path, chunks=None, consolidated=False)).f
    expected = zarr.open_array(tmp_path / "f")[4:8, 3:]
    np.testing.assert_array_equal(opened.variable[4:8, 3:].values, expected)
    file = tmp_path / "f/c/0/0/0"
    data = file.read_bytes()
    begin = 0 if where == "start" else len(data) - 4 - 16 * 4
    first, second, rest = data[begin : begin + 16], data[begin + 16 : begin + 32], data[begin + 32 :]
    file.write_bytes(data[:-16] if damage == "cut off" else data[:begin] + second + first + rest)
    refused(lambda: opened.variable[4:8, 3:].values, "variable .f.*chunk f/c/0/0/0 cannot be read")


@pytest.mark.parametrize("in_caller", [True, False])
def test_no_waiting_call_begins_after_one_has_failed(in_caller: bool) -> None:
    caller, both, forgotten, ran = threading.current_thread(), threading.Barrier(2), threading.Event(), list[int]()

    def fail_or_wait() -> None:
        both.wait(60)
        if (threading.current_thread() is caller) == in_caller:
            calls.clear()
            raise KeyboardInterrupt
        forgotten.wait(60)

    calls: list[Any] = [fail_or_wait, fail_or_wait, partial(ran.append, 1)]
    weakref.finalize(calls[-1], forgotten.set)
    with pytest.raises(KeyboardInterrupt):
        in_threads(calls, 2)
    assert not ran
