"""Chunks that foreign zarr lacks are refused where they must be there, and logged where the fill value may be meant."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import numcodecs
import numpy as np
import pytest
import zarr

from dsinga.data import open_store, verify_store
from dsinga.data.sources.zarr_source import ZarrSource
from dsinga.errors import UserError

DATA = np.random.default_rng(5).normal(size=(90, 4)).astype(np.float32)


def write(path: Path, zarr_format: Any = 3, **options: Any) -> Path:
    """Write a group of records x, three chunks, and labels y, one chunk."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    group.create_array("x", data=DATA, **{"chunks": (30, 4), **options})
    group.create_array("y", data=np.arange(90) % 7)
    return path


def test_no_fill_value(tmp_path: Path) -> None:
    path = write(tmp_path / "g", 2, fill_value=None)
    (path / "x/1.0").unlink()
    with pytest.raises(UserError, match=r"g: chunk x/1.0 of 'x' is missing; write the array again"):
        open_store(path).read([0])


def test_a_folder_in_place_of_a_chunk(tmp_path: Path) -> None:
    path = write(tmp_path / "g")
    (path / "x/c/1/0").unlink()
    (path / "x/c/1/0").mkdir()
    with pytest.raises(UserError, match="g: chunk x/c/1/0 of 'x' is not a file"):
        open_store(path).read([0])


@pytest.mark.parametrize("link", ["x/c/1/0", "x/c"])
def test_a_link_to_nothing(tmp_path: Path, link: str) -> None:
    """Clones by git-annex have links in place of the files that were not fetched."""
    path = write(tmp_path / "g")
    (path / link).rename(tmp_path / "elsewhere")
    (path / link).symlink_to(tmp_path / "nowhere")
    with pytest.raises(UserError, match=rf"cannot be read .*it is a link to a file that is not there: '.*g/{link}'"):
        open_store(path).read([30])
    with pytest.raises(UserError, match="it is a link to a file that is not there"):
        verify_store(path)
    (path / link).unlink()
    (path / link).symlink_to(tmp_path / "elsewhere")
    np.testing.assert_array_equal(open_store(path).read(range(90))[0], DATA)


def test_a_file_in_place_of_the_folder_of_chunks(tmp_path: Path) -> None:
    path = write(tmp_path / "g")
    (path / "x/c").rename(tmp_path / "elsewhere")
    (path / "x/c").touch()
    with pytest.raises(UserError, match="rows 0 to 29 of 'x' cannot be read .*Not a directory: '.*x/c/0/0'"):
        open_store(path).read([0])


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


@pytest.mark.parametrize("zarr_format", [2, 3])
def test_a_cut_chunk(tmp_path: Path, zarr_format: int) -> None:
    codec: Any = numcodecs.Blosc() if zarr_format == 2 else zarr.codecs.BloscCodec()
    path = write(tmp_path / "g", zarr_format, compressors=codec)
    os.truncate(path / ("x/1.0" if zarr_format == 2 else "x/c/1/0"), 50)
    with pytest.raises(UserError, match="rows 30 to 59 of 'x' cannot be read .*50 bytes, but its header says"):
        open_store(path).read([0])


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
    with pytest.raises(UserError, match=rf"g: rows 30 to 59 of 'x' cannot be read .*{key} has 0 bytes"):
        open_store(path).read([0])
    with pytest.raises(UserError, match=rf"1 of 4 chunks are damaged(.|\n)*{key} has 0 bytes"):
        verify_store(path)


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
            np.testing.assert_array_equal(rows, DATA[start:stop])
    with pytest.raises(UserError, match="of 'x' cannot be read"):
        open_store(path).read([0])
