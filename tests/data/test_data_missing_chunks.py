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

from dsinga.data import open_store
from dsinga.errors import UserError

DATA = np.random.default_rng(5).normal(size=(90, 4)).astype(np.float32)


def write(path: Path, zarr_format: Any = 3, **options: Any) -> Path:
    """Write a group of records x, three chunks, and labels y, one chunk."""
    group = zarr.open_group(path, mode="w", zarr_format=zarr_format)
    group.create_array("x", data=DATA, chunks=(30, 4), **options)
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
