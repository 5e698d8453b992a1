"""Variables of a zarr store are read as files of chunks are; what is damaged, or rounded, is told."""

import logging
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec

import dsinga
from dsinga.addons.fields.records.readers import VariableReader
from dsinga.data.sources.xarray_files import reading_files
from dsinga.data.stores.chunk_files import RegionReader
from tests.support.refusals import refused


def test_variables_of_xarray_are_read_as_files_and_damage_is_told(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    group = zarr.open_group(tmp_path, mode="w", zarr_format=3)
    names = ["t", "y", "x"]
    array = group.create_array(
        "f", shape=(11, 6, 5), chunks=(4, 6, 5), dtype="float32", compressors=BloscCodec(), dimension_names=names
    )
    array[:] = np.random.default_rng(0).integers(0, 200, array.shape)
    regions: list[Any] = []
    read = RegionReader.read
    monkeypatch.setattr(RegionReader, "read", lambda self, region: regions.append(region) or read(self, region))
    with xr.open_zarr(tmp_path, chunks=None, consolidated=False) as data:
        variable = VariableReader(reading_files(data.isel(t=slice(3, 11))).f.variable, "f")
        got = variable.read((slice(1, 6), slice(0, 6), slice(2, 5)))
        np.testing.assert_array_equal(got, array[4:9, :, 2:])
        assert regions == [(slice(4, 9), slice(0, 6), slice(2, 5))]
        chosen = VariableReader(reading_files(data.isel(t=[1, 5])).f.variable, "f").read((slice(0, 2),) * 3)
        np.testing.assert_array_equal(chosen, array.oindex[[1, 5], :2, :2])
        assert len(regions) == 1
        chunk = tmp_path / "f" / "c" / "1" / "0" / "0"
        chunk.write_bytes(chunk.read_bytes()[:-9])
        refused(lambda: variable.read((slice(1, 6), slice(0, 6), slice(2, 5))), "variable 'f'", "write the")


def test_a_variable_of_seconds_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.WARNING, "dsinga")
    seconds = np.stack([np.arange(100), 1_700_000_001 + np.arange(100) % 50], axis=1)
    windows = dsinga.windows(xr.Dataset({"t": (("n", "f"), seconds)}), input_dims={"n": 1, "f": -1})
    for _ in range(2):
        windows.read(range(100))
    (message,) = [record.getMessage() for record in caplog.records]
    assert message.startswith("variable 't' has integers beyond 2^24, such as 17000000")
