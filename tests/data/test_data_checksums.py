"""A record store with a chunk or metadata other than were written is refused, and says which."""

from __future__ import annotations

import json
import logging
import os
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import zarr
from hypothesis import given
from hypothesis import strategies as st

from dsinga.data import open_store, write_store
from dsinga.data import record_source as source_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.store_format import from_text, to_text
from dsinga.errors import UserError
from tests.support.old_stores import remove_checksums

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


def replace_by_folder(store: Path) -> None:
    (store / "data/c/2/0").unlink()
    (store / "data/c/2/0").mkdir()


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
        (replace_by_folder, "is damaged: chunk data/c/2/0 is missing"),
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
    with pytest.raises(UserError, match=message):
        read_all(store)


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
    with pytest.raises(UserError, match=message):
        open_store(store)


@pytest.mark.parametrize(
    ("damage", "message"),
    [
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
    with pytest.raises(UserError, match=message):
        open_store(store)


@pytest.mark.parametrize("version", [1, 2])
def test_a_store_of_an_earlier_version_is_read_and_said_to_have_no_checksums(
    store: Path, version: int, caplog: pytest.LogCaptureFixture
) -> None:
    remove_checksums(store, version)
    with caplog.at_level(logging.INFO, "dsinga"):
        read_all(store)
        read_all(store)
    assert len([record for record in caplog.records if "has no checksums" in record.message]) == 1
    (store / "data/c/3/0").rename(store / "data/c/4")
    with pytest.raises(UserError, match="is damaged: chunk data/c/3/0, the last one, is missing"):
        open_store(store)


@given(checksums=st.lists(st.integers(0, (1 << 32) - 1)), junk=st.text(max_size=3))
def test_checksums_as_text(checksums: list[int], junk: str) -> None:
    assert from_text(to_text(checksums)).tolist() == checksums
    if junk.strip():
        try:
            read = from_text(to_text(checksums) + junk)
        except ValueError:
            return
        assert read.tolist() != checksums
