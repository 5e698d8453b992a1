"""Stores with a chunk or metadata other than were written are refused, and say which; so are missing chunks."""

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dsinga.base.errors import UserError
from dsinga.data import open_store, verify_store, write_store
from dsinga.data import record_source as source_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.sources.zarr_source import ZarrSource
from dsinga.data.stores.store_format import from_text, to_text
from tests.support.old_stores import remove_checksums
from tests.support.refusals import refused
from tests.support.texts import texts

RNG = np.random.default_rng(7)
DATA = RNG.integers(0, 256, (100, 60_000), dtype=np.uint8)  # three chunks of 32 or fewer rows and one of 4
LABELS = RNG.integers(0, 10, 100)


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """A store of four chunks; none is in the cache."""
    monkeypatch.setattr(source_module, "_cache", ChunkCache())
    write_store(tmp_path / "x.zarr", [(DATA, LABELS)], classes=["a", "b"])
    return tmp_path / "x.zarr"


def read_all(store: Path) -> None:
    records = open_store(store)
    data, labels = records.read(range(len(records)))
    np.testing.assert_array_equal(data, DATA)
    np.testing.assert_array_equal(labels, LABELS)


def swap(store: Path) -> None:
    first, second, other = store / "data/c/0/0", store / "data/c/1/0", store / "other"
    first.rename(other)
    second.rename(first)
    other.rename(second)


def replace_by_folder(file: Path) -> None:
    file.unlink()
    file.mkdir()


def flip_a_stored_byte(store: Path) -> None:
    """Change one record and write its chunk again, so that it decodes."""
    array: Any = zarr.open_array(store / "data", mode="r+")
    array[40, 1] ^= 4


def other_labels(store: Path) -> None:
    array: Any = zarr.open_array(store / "labels", mode="r+")
    array[5] += 1


def link_to_itself(store: Path) -> None:
    (store / "data/c/2/0").unlink()
    os.symlink("0", store / "data/c/2/0")


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (swap, "is damaged: chunk data/c/0/0 has other records than were written; import it again with overwrite=True"),
        (lambda store: replace_by_folder(store / "data/c/2/0"), "is damaged: chunk data/c/2/0 is missing"),
        (lambda store: (store / "data/c/3/0").unlink(), "is damaged: chunk data/c/3/0 is missing"),
        (lambda store: os.truncate(store / "data/c/1/0", 500), "is damaged: chunk data/c/1/0 "),
        (link_to_itself, "chunk data/c/2/0 cannot be read or decoded .OSError: .*Too many levels"),
        (flip_a_stored_byte, "is damaged: chunk data/c/1/0 has other records than were written"),
        (other_labels, "is damaged: chunk labels/c/0 has other records than were written"),
        (lambda store: shutil.copy(store / "data/c/0/0", store / "labels/c/0"), "chunk labels/c/0 "),
    ],
)
def test_a_damaged_chunk(store: Path, damage: Callable[[Path], Any], message: str) -> None:
    read_all(store)
    source_module._cache = ChunkCache()
    damage(store)
    refused(lambda: read_all(store), message)


def change(path: Path, **values: Any) -> None:
    metadata = json.loads(path.read_text())
    metadata.update(values)
    path.write_text(json.dumps(metadata))


def change_attributes(store: Path, **values: Any) -> None:
    attributes = json.loads((store / "zarr.json").read_text())["attributes"]
    change(store / "zarr.json", attributes={**attributes, **values})


@pytest.mark.parametrize(
    "damage",
    [
        lambda store: change(store / "labels/zarr.json", data_type="float32", fill_value=0.0),
        lambda store: [change(store / f"{name}/zarr.json", shape=[99, *end]) for name, end in
                       (("data", [60_000]), ("labels", []))],
        lambda store: shutil.rmtree(store / "labels"),
        lambda store: change_attributes(store, classes=["b", "a"]),
        lambda store: change_attributes(store, dsinga=1),
        lambda store: change_attributes(store, digest="0"),
    ],
)  # fmt: skip
def test_changed_metadata(store: Path, damage: Callable[[Path], Any]) -> None:
    damage(store)
    message = "is damaged: the shapes, dtypes or attributes in its zarr.json files are not those that were written"
    refused(lambda: open_store(store), message)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (lambda store: shutil.rmtree(store / "data"), "is damaged: it has no array 'data'"),
        (lambda store: zarr.open_array(store / "labels").resize((7,)), r"100 records but labels of shape \(7,\)"),
        (lambda store: change_attributes(store, checksums=None), "attribute 'checksums' is not as it was written"),
        (lambda store: change_attributes(store, classes=3), "attribute 'classes' is 3"),
        (lambda store: (store / "zarr.json").write_text("{"), "can be opened .JSONDecodeError"),
        (lambda store: (store / "zarr.json").write_bytes(b"\xff"), "can be opened .UnicodeDecodeError"),
        (lambda store: (store / "zarr.json").write_text("[" * 100_000), "can be opened .RecursionError"),
        (lambda store: (store / "data/zarr.json").write_text("3"), "data/zarr.json cannot be read .TypeError"),
        (lambda store: change(store / "labels/zarr.json", codecs=[{"name": "x"}]), "labels/zarr.json cannot be read"),
    ],
)
def test_unreadable_metadata(store: Path, damage: Callable[[Path], Any], message: str) -> None:
    damage(store)
    refused(lambda: open_store(store), message)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_earlier_version_is_read_and_said_to_have_no_checksums(store, version, caplog):
    remove_checksums(store, version)
    with caplog.at_level(logging.INFO, "dsinga"):
        read_all(store)
        read_all(store)
    assert len([record for record in caplog.records if "has no checksums" in record.message]) == 1
    (store / "data/c/3/0").rename(store / "data/c/4")
    refused(lambda: open_store(store), "is damaged: chunk data/c/3/0, the last one, is missing")


@given(checksums=st.lists(st.integers(0, (1 << 32) - 1)), junk=texts(max_size=3))
def test_checksums_as_text(checksums: list[int], junk: str) -> None:
    assert from_text(to_text(checksums)).tolist() == checksums
    if junk.strip():
        try:
            read = from_text(to_text(checksums) + junk)
        except ValueError:
            return
        assert read.tolist() != checksums


ROWS = np.random.default_rng(5).normal(size=(90, 4)).astype(np.float32)
CUT = "rows 30 to 59 of 'x' cannot be read .*50 bytes, but its header says"


def write(path: Path, zarr_format: Any = 3, **options: Any) -> Path:
    """Write a group of records x, three chunks, and labels y, one chunk."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    group.create_array("x", data=ROWS, **{"chunks": (30, 4), **options})
    group.create_array("y", data=np.arange(90) % 7)
    return path


def replace_folder_by_file(path: Path) -> None:
    shutil.rmtree(path)
    path.touch()


@pytest.mark.parametrize(
    ("zarr_format", "options", "damage", "message"),
    [
        (2, {"fill_value": None}, lambda g: (g / "x/1.0").unlink(), "g: chunk x/1.0 of 'x' is missing; write the arr"),
        (3, {}, lambda g: replace_by_folder(g / "x/c/1/0"), "g: chunk x/c/1/0 of 'x' is not a file"),
        (3, {}, lambda g: replace_folder_by_file(g / "x/c"), "rows 0 to 29 of 'x' .*Not a directory: '.*x/c/0/0'"),
        *(
            (zarr_format, {"compressors": codec}, lambda g, key=key: os.truncate(g / key, 50), CUT)
            for zarr_format, codec, key in ((2, numcodecs.Blosc(), "x/1.0"), (3, zarr.codecs.BloscCodec(), "x/c/1/0"))
        ),
    ],
)
def test_a_damaged_chunk_of_another_program(tmp_path, zarr_format, options, damage, message):
    path = write(tmp_path / "g", zarr_format, **options)
    damage(path)
    refused(lambda: open_store(path).read([0]), message)


@pytest.mark.parametrize("link", ["x/c/1/0", "x/c"])
def test_a_link_to_nothing(tmp_path: Path, link: str) -> None:
    """Clones by git-annex have links in place of the files that were not fetched."""
    path = write(tmp_path / "g")
    (path / link).rename(tmp_path / "elsewhere")
    (path / link).symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=rf"cannot be read .*it is a link to a file that is not there: '.*g/{link}'"):
        open_store(path).read([30])
    refused(lambda: verify_store(path), "it is a link to a file that is not there")
    (path / link).unlink()
    (path / link).symlink_to(tmp_path / "elsewhere")
    np.testing.assert_array_equal(open_store(path).read(range(90))[0], ROWS)


def test_a_chunk_that_may_have_the_fill_value(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = write(tmp_path / "g", fill_value=0.0)
    (path / "x/c/2/0").unlink()
    records = open_store(path)
    with caplog.at_level(logging.INFO, "dsinga"):
        np.testing.assert_array_equal(records.read(range(90))[0][60:], 0)
        records.read(range(90))
    text = "is not stored, so its numbers are the fill value"
    [record] = [record for record in caplog.records if text in record.message]
    assert record.levelno == logging.WARNING
    assert "chunk x/c/2/0 of 'x'" in record.message


def test_chunks_of_zeros_that_are_there(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    group = zarr.open_group(tmp_path / "g", mode="w")
    shards: Any = {"chunks": (5, 2, 2), "shards": (10, 2, 4)}
    group.create_array("x", data=np.zeros((23, 3, 5), np.uint8), config={"write_empty_chunks": True}, **shards)
    with caplog.at_level(logging.INFO, "dsinga"):
        assert not open_store(tmp_path / "g").read(range(23))[0].any()
    assert not caplog.records


@pytest.mark.parametrize(
    ("zarr_format", "options"),
    [
        (2, {}),
        (2, {"compressors": None}),
        (3, {}),
        (3, {"compressors": None}),
        (3, {"shards": (30, 4), "chunks": (10, 4)}),
    ],
)
def test_an_empty_chunk(tmp_path: Path, zarr_format: int, options: dict[str, Any]) -> None:
    """Zarr takes the file of a shard that has no bytes for one that was not written, and returns the fill value."""
    path = write(tmp_path / "g", zarr_format, **options)
    key = "x/1.0" if zarr_format == 2 else "x/c/1/0"
    os.truncate(path / key, 0)
    refused(lambda: open_store(path).read([0]), rf"g: rows 30 to 59 of 'x' cannot be read .*{key} has 0 bytes")
    refused(lambda: verify_store(path), rf"1 of 4 chunks are damaged(.|\n)*{key} has 0 bytes")


@pytest.mark.parametrize("location", ["start", "end"])
@pytest.mark.parametrize("has_checksums", [True, False])
def test_a_cut_shard(tmp_path: Path, location: Any, has_checksums: bool) -> None:
    """Zarr returns the fill value for a part of a shard that would lie behind the end of the file."""
    checks: list[Any] = [zarr.codecs.Crc32cCodec()] if has_checksums else []
    codecs: Any = [zarr.codecs.BytesCodec(), *checks]
    serializer: Any = zarr.codecs.ShardingCodec(
        chunk_shape=(10, 4), codecs=[zarr.codecs.BytesCodec()], index_codecs=codecs, index_location=location
    )
    path = write(tmp_path / "g", compressors=None, serializer=serializer)
    content = (path / "x/c/1/0").read_bytes()
    index_bytes = 3 * 16 + 4 * has_checksums
    for length in (1, 16, index_bytes - 1, index_bytes, index_bytes + 160, len(content) - 160, len(content) - 1):
        (path / "x/c/1/0").write_bytes(content[:length])
        array: Any = ZarrSource(path, "x", "y").data_array
        for start, stop in ((0, 90), (40, 50), (30, 60)):
            try:
                rows = array[start:stop]
            except Exception:  # of zarr and of the file system: any class, which a column explains
                continue
            np.testing.assert_array_equal(rows, ROWS[start:stop])
    refused(lambda: open_store(path).read([0]), "of 'x' cannot be read")
