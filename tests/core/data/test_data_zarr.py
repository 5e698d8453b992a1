"""Any zarr array or group gives the records that are in it, as a record store with the same records would."""

import pickle
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given, settings
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.data import RecordStore, ZarrSource, open_records, open_store, write_store
from dsinga.data.sources.zarr_column import ZarrColumn
from dsinga.data.sources.zarr_source import open_zarr_records
from dsinga.data.stores.chunk_files import RegionReader
from dsinga.reading.sampler import Sampler


def write_group(path: Path, arrays: dict[str, Any], zarr_format: int = 3, **options: Any) -> Path:
    """Write a group with arrays as another program would."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    for name, array in arrays.items():
        group.create_array(name, data=np.asarray(array), **options.get(name, {}))
    return path


@st.composite
def chunked(draw: st.DrawFn) -> tuple[np.ndarray, tuple[int, ...]]:
    """Draw an array of records and the shape of its chunks."""
    shape = tuple(draw(st.lists(st.integers(1, 6), max_size=3)))
    length = draw(st.integers(1, 40))
    dtype = draw(st.sampled_from(["uint8", "bool", "int32", "int16", "int64", "float16", "float64", ">f4", ">i4"]))
    chunks = tuple(draw(st.integers(1, size + 2)) for size in (length, *shape))
    rng = np.random.default_rng(length)
    return (rng.random((length, *shape)) * 9).astype(dtype), chunks


@settings(max_examples=25)
@given(case=chunked(), zarr_format=st.sampled_from([2, 3]), seed=st.integers(0, 99))
def test_records_are_those_that_a_store_would_have(case, zarr_format, seed):
    data, chunks = case
    rng = np.random.default_rng(seed)
    labels = rng.integers(-3, 50, len(data))
    with tempfile.TemporaryDirectory() as folder:
        group = {"images": data, "labels": labels}
        write_group(Path(folder) / "own", group, zarr_format, images={"chunks": chunks}, labels={"chunks": (3,)})
        write_store(f"{folder}/store", [(data, labels)])
        own, store = open_store(f"{folder}/own"), open_store(f"{folder}/store")
        assert (type(own), type(store)) == (ZarrSource, RecordStore)
        facts = ("shape", "dtype", "block", "label_shape", "label_dtype", "record_bytes")
        assert [getattr(own, name) for name in facts] == [getattr(store, name) for name in facts]
        rows = rng.integers(0, len(data), 30)
        for read, expected in zip(own.read(rows), store.read(rows), strict=True):
            np.testing.assert_array_equal(read, expected)
            assert read.dtype == expected.dtype
        assert own.label_range() == store.label_range() == (labels.min(), labels.max())


ZEROS, LABELS = np.zeros((4, 2, 3), np.float32), np.arange(4)


@pytest.mark.parametrize("zarr_format", [2, 3])
@pytest.mark.parametrize(
    ("arrays", "names", "expected"),
    [
        ({"data": ZEROS, "labels": LABELS}, (), ("data", "labels")),
        ({"X": ZEROS, "Y": LABELS}, (), ("X", "Y")),
        ({"Images": ZEROS, "target": LABELS, "mean": ZEROS[0]}, (), ("Images", "target")),
        ({"spectra": ZEROS, "classes": LABELS}, (), ("spectra", "classes")),
        ({"spectra": ZEROS}, (), ("spectra", None)),
        ({"x": ZEROS, "y": LABELS}, (None, ""), ("x", None)),
        ({"x": ZEROS, "y": LABELS, "z": LABELS}, (None, "z"), ("x", "z")),
        ({"t/images": ZEROS, "t/labels": LABELS, "labels": LABELS[:3]}, ("t/images",), ("t/images", "t/labels")),
        ({"a/b": ZEROS, "c/d": LABELS}, ("a/b", "/c/d"), ("a/b", "c/d")),
    ],
)  # fmt: skip
def test_arrays_are_named_or_guessed(tmp_path, zarr_format, arrays, names, expected):
    source = ZarrSource(write_group(tmp_path / "g", arrays, zarr_format), *names)
    assert source.data_array.path == expected[0]
    assert (source.label_array.path if source.label_array else None) == expected[1]
    assert source.has_labels == (expected[1] is not None)


def test_coordinates_that_xarray_writes_are_no_records(tmp_path: Path) -> None:
    xarray = pytest.importorskip("xarray")
    values = np.random.default_rng(0).random((5, 4, 3), np.float32)
    coordinates = {"time": np.arange(5), "y": np.arange(4.0), "x": np.arange(3.0)}
    for zarr_format in (2, 3):
        array = xarray.DataArray(values, dims=("time", "y", "x"), coords=coordinates, name="temperature")
        array.to_dataset().to_zarr(tmp_path / f"{zarr_format}", zarr_format=zarr_format, consolidated=zarr_format == 2)
        source = open_records(tmp_path / f"{zarr_format}")
        np.testing.assert_array_equal(source.read([4, 1])[0], values[[4, 1]])
        assert not source.has_labels


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_one_array_is_read_by_itself_or_within_its_group(tmp_path: Path, zarr_format: int) -> None:
    write_group(tmp_path / "g", {"train/x": ZEROS + 1, "train/y": LABELS}, zarr_format)
    for source in (open_store(tmp_path / "g" / "train"), open_store(tmp_path / "g", data="train/x")):
        assert source.read([1])[1].tolist() == [1]
    alone = open_records(tmp_path / "g" / "train" / "x")
    assert not alone.has_labels
    np.testing.assert_array_equal(alone.read([3])[0], ZEROS[:1] + 1)


def test_a_record_store_stays_one(tmp_path: Path) -> None:
    write_store(tmp_path / "s.zarr", [(ZEROS, LABELS)], classes=["a", "b"])
    for label in (None, "labels"):
        assert isinstance(open_zarr_records(tmp_path / "s.zarr", label=label), RecordStore)
    for bare in (open_store(tmp_path / "s.zarr", label=""), open_store(tmp_path / "s.zarr", has_label=False)):
        assert (bare.has_labels, bare.label_dtype, bare.label_range(), bare.read([2])[1]) == (False, None, None, None)
        again = pickle.loads(pickle.dumps(bare.allowing_nonfinite()))
        assert (again.has_labels, again.allows_nonfinite, again.classes) == (False, True, ("a", "b"))


def test_a_pickle_has_names_only_and_shares_the_cache(tmp_path: Path) -> None:
    data = np.random.default_rng(0).random((50, 1000), np.float32)
    write_group(tmp_path / "g", {"x": data, "y": np.arange(50)}, x={"chunks": (50, 10)})
    source = open_store(tmp_path / "g")
    source.read([1])
    sent = pickle.dumps(source)
    assert len(sent) < 400
    copied = pickle.loads(sent)
    shutil.rmtree(tmp_path / "g" / "x")
    np.testing.assert_array_equal(copied.read([49])[0], data[[49]])


def test_chunks_that_no_block_consists_of_are_decoded_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = np.random.default_rng(0).integers(0, 255, (100, 1 << 16)).astype(np.uint8)
    for chunks in ((100, 1 << 14), (70, 1 << 16), (7, 1 << 16)):
        write_group(tmp_path / "g", {"x": data}, x={"chunks": chunks})
        source = open_store(tmp_path / "g")
        assert source.block == 32
        reads = []
        read = RegionReader.read
        with monkeypatch.context() as patch:
            patch.setattr(RegionReader, "read", lambda self, key: reads.append(key) or read(self, key))  # noqa: B023
            for rows in ([0, 99], range(100), [40, 33]):
                np.testing.assert_array_equal(source.read(rows)[0], data[np.asarray(rows)])
        assert reads == [(slice(0, 100),)]


def virtual(path: Path, shape: tuple[int, ...], chunks: tuple[int, ...], dtype: str = "float32") -> Path:
    """Make an array of which no chunk is written."""
    zarr.create_array(path, shape=shape, chunks=chunks, dtype=dtype, fill_value=1)
    return path


def test_large_sources_with_large_chunks_are_read_by_chunks(tmp_path: Path) -> None:
    source = open_store(virtual(tmp_path / "a", (100_000, 512), (5_000, 512)))
    assert source.block == 5_000
    assert source.read([99_999])[0].sum() == 512
    assert open_store(virtual(tmp_path / "b", (100_000, 512), (100, 512))).block == 512
    assert open_store(virtual(tmp_path / "c", (60_000, 512), (50_000, 512))).block == 512
    assert open_store(virtual(tmp_path / "d", (100_000, 512), (5_000, 8))).block == 5_000


def test_the_chunks_that_a_sampler_mixes_stay_in_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Eight chunks of 20 MiB, more than the cache has for small ones: an epoch decodes each chunk once."""
    loads: list[int] = []
    load = ZarrColumn.load
    monkeypatch.setattr(ZarrColumn, "load", lambda self, start, stop: loads.append(start) or load(self, start, stop))
    source = open_store(virtual(tmp_path / "a", (204_800, 1024), (20_480, 1024), "uint8"))
    assert source.block == 20_480
    sampler = Sampler(len(source), 2048, seed=1, chunk=source.block)
    for step in range(100):
        source.read(sampler.rows(step))
    assert sorted(loads) == list(range(0, 204_800, 20_480))


@pytest.mark.parametrize("chunks", [(200_000, 512), (200_000, 1)])
def test_blocks_that_need_too_much_memory_are_refused(tmp_path: Path, chunks: tuple[int, int]) -> None:
    path = virtual(tmp_path / "a", (1_000_000, 512), chunks)
    with pytest.raises(UserError) as refused:
        open_store(path)
    text = f"{path}: 'a' has chunks of shape {chunks}, so that 200000 rows are decoded together: 390 MiB, more than 256"
    assert text in str(refused.value)
    assert "rechunk it along the first axis, for instance in chunks of (512, 512)" in str(refused.value)
