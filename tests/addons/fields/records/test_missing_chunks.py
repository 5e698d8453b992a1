"""Chunks that are not stored, and metadata older than arrays, for every way to open a Dataset and all that reads it."""

import json
import logging
import re
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import xarray as xr
import zarr
from zarr.codecs import BloscCodec

import dsinga
from dsinga import nn
from dsinga.addons.fields.records.readers import VariableReader
from dsinga.base.errors import UserError
from dsinga.data import describe_dataset, field_statistics, open_records, open_stores, verify_store, write_ome_zarr
from dsinga.data.sources.xarray_files import reading_files
from dsinga.data.stores.chunk_files import RegionReader
from tests.addons.fields.records.test_references import references_to
from tests.support.refusals import refused
from tests.support.stale_stores import STALE, make_stale

DIMS = ("t", "y", "x")
NUMBERS = np.random.default_rng(0).integers(1, 100, (8, 4, 4))


def written(path: Path, dtype: str, zarr_format: Any, fill: Any, shards: Any = None) -> Path:
    """Write a group whose array "image" has four chunks along t; the chunk or inner chunk of t = 4, 5 is not stored."""
    dataset = xr.Dataset({"image": (DIMS, NUMBERS.astype(dtype))})
    if path.name.endswith("ome"):
        write_ome_zarr(dataset, path, version="0.4" if zarr_format == 2 else "0.5")
        name = next(iter(zarr.open_group(path, mode="r").array_keys()))
    else:
        coordinates = {dim: np.arange(len(NUMBERS) if dim == "t" else 4) for dim in DIMS}
        dataset.drop_vars("image").assign_coords(coordinates).to_zarr(path, zarr_format=zarr_format, consolidated=False)
        name = "image"
    group = zarr.open_group(path, mode="a", use_consolidated=False)
    more: dict[str, Any] = (
        {"dimension_names": DIMS} if zarr_format == 3 else {"attributes": {"_ARRAY_DIMENSIONS": DIMS}}
    )
    array: Any = group.create_array(
        name, shape=NUMBERS.shape, chunks=(2, 4, 4), dtype=dtype, fill_value=fill, overwrite=True, shards=shards, **more
    )
    array[:4], array[6:] = NUMBERS[:4], NUMBERS[6:]
    zarr.consolidate_metadata(path, zarr_format=zarr_format)
    return path


def references(path: Path) -> str:
    """Write references to the files of a group, beside it."""
    (path.parent / "refs.json").write_text(json.dumps({"version": 1, "refs": references_to(path)}))
    return str(path.parent / "refs.json")


def at_url(path: Path) -> str:
    """Return the URL of a new copy of a group."""
    memory = fsspec.filesystem("memory")
    if memory.exists(str(path)):
        memory.rm(str(path), recursive=True)
    memory.put(str(path), str(path), recursive=True)
    return f"memory://{path}"


OPENINGS: dict[str, Callable[[Path], Any]] = {
    "path": str, "open_zarr": xr.open_zarr, "lazy": lambda path: xr.open_zarr(path, chunks=None),
    "open_stores": lambda path: open_stores([path], "member").isel(member=0), "references": references, "ome": str,
    "url": at_url,
}  # fmt: skip
WINDOWS: Any = {"inputs": "image", "targets": "image", "input_dims": {"t": 1, "y": 4, "x": 4}}


def model() -> nn.Model:
    net = nn.Sequential([nn.Input((1, 4, 4)), nn.Conv2D(1, 1)])
    net.compile(nn.SGD(1e-6), "mse")
    return net


def trained() -> nn.Model:
    net = model()
    given = xr.Dataset({"image": (DIMS, NUMBERS.astype("f4"))})
    net.fit(dsinga.windows(given, **WINDOWS), progress=False)
    return net


FACES: dict[str, Callable[[Any], Any]] = {
    "fit": lambda opened: model().fit(dsinga.windows(opened, **WINDOWS), progress=False),
    "evaluate": lambda opened: trained().evaluate(dsinga.windows(opened, **WINDOWS)),
    "predict": lambda opened: trained().predict(opened).compute(),
    "statistics": field_statistics,
    "verify": verify_store,
}
FORMS = {
    "format 2 int": ("i4", 2, 0), "format 2 float": ("f4", 2, 0.0), "format 3 int": ("i4", 3, 0),
    "format 3 float": ("f4", 3, 0.0), "inner chunk": ("f4", 3, 0.0, (8, 4, 4)),
    "format 2 int, no fill value": ("i4", 2, None), "format 2 float, no fill value": ("f4", 2, None),
}  # fmt: skip


def product(forms: Sequence[str]) -> list[Any]:
    """Every opening with every form; by default those of a path, and else each of both once or twice."""
    pairs = [(o, f, (n + place) % len(forms)) for n, o in enumerate(OPENINGS) for place, f in enumerate(forms)]
    return [pytest.param(o, f, marks=pytest.mark.ci if other and o != "path" else []) for o, f, other in pairs]


def wrong_faces(opening: str, act: Callable[[Callable[[Any], Any]], bool], **named: Any) -> list[str]:
    """Return the faces of which ``act`` says that they do what is wrong."""
    is_path = opening in ("path", "url", "references", "ome")
    faces = {**FACES, **named}
    return [face for face, call in faces.items() if (is_path or face != "verify") and not act(call)]


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Object at .*is not recognized")
@pytest.mark.parametrize(("opening", "form"), product([*FORMS]))
def test_chunks_that_are_not_stored_are_said_or_refused(
    opening: str, form: str, tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = written(tmp_path / ("d.ome" if opening == "ome" else "d.zarr"), *FORMS[form])
    said, refused = "is not stored, so its numbers are the fill value 0", " is missing"

    def act(face: Callable[[Any], Any]) -> bool:
        caplog.clear()
        error = ""
        try:
            face(OPENINGS[opening](path))
        except UserError as raised:  # also of what xarray takes for NaN
            error = str(raised)
        texts = [record.getMessage() for record in caplog.records]
        return refused in error if "no fill" in form else any(said in text for text in texts)

    with caplog.at_level(logging.WARNING, "dsinga"):
        assert wrong_faces(opening, act) == []


# Those that name the arrays of a group, which a path or a URL has.
NAMED: dict[str, Callable[[Any], Any]] = {
    "records": lambda path: open_records(path, data="image"),
    "labels": lambda path: open_records(path, data="t", label="image"),
    "verify by name": lambda path: verify_store(path, data="image"),
    "info": describe_dataset,
}


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Object at .*is not recognized")
@pytest.mark.parametrize("zarr_format", [2, pytest.param(3, marks=pytest.mark.ci)])
@pytest.mark.parametrize(("opening", "what"), product([*STALE, "t"]))
def test_metadata_older_than_arrays_are_refused(opening: str, what: str, zarr_format: int, tmp_path: Path) -> None:
    path = written(tmp_path / ("d.ome" if opening == "ome" else "d.zarr"), "f4", zarr_format, 0.0)
    named = NAMED if opening in ("path", "url") and what != "t" else {}
    for face in named.values():
        face(OPENINGS[opening](path))
    name = "0" if opening == "ome" else "t" if what == "t" else "image"
    make_stale(path, name, "units" if what == "t" else what)

    def act(face: Callable[[Any], Any]) -> bool:
        try:
            face(OPENINGS[opening](path))
        except UserError as error:
            return bool(re.search(rf"{name}.*consolidated metadata.*; consolidate them again: zarr.consol", str(error)))
        return False

    assert wrong_faces(opening, act, **named) == []


# Variables of a zarr store are read as files of chunks are; what is damaged, or rounded, is told.
def test_variables_of_xarray_are_read_as_files_and_damage_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch):
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
