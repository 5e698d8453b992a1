"""Chunks that are not stored, and metadata older than arrays, for every way to open a Dataset and all that reads it."""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import xarray as xr
import zarr

import dsinga
from dsinga import nn
from dsinga.base.errors import UserError
from dsinga.data import field_statistics, open_stores, verify_store, write_ome_zarr

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
    refs: dict[str, Any] = {}
    for file in (each for each in path.rglob("*") if each.is_file()):
        key = file.relative_to(path).as_posix()
        is_json = file.name[0] == "." or file.name == "zarr.json"
        refs[key] = file.read_text() if is_json else [f"{path.name}/{key}", 0, file.stat().st_size]
    (path.parent / "refs.json").write_text(json.dumps({"version": 1, "refs": refs}))
    return str(path.parent / "refs.json")


OPENINGS: dict[str, Callable[[Path], Any]] = {
    "path": str,
    "open_zarr": xr.open_zarr,
    "lazy": lambda path: xr.open_zarr(path, chunks=None),
    "open_stores": lambda path: open_stores([path], "member").isel(member=0),
    "references": references,
    "ome": str,
}
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
    "format 2 int": ("i4", 2, 0),
    "format 2 float": ("f4", 2, 0.0),
    "format 3 int": ("i4", 3, 0),
    "format 3 float": ("f4", 3, 0.0),
    "inner chunk": ("f4", 3, 0.0, (8, 4, 4)),
    "format 2 int, no fill value": ("i4", 2, None),
    "format 2 float, no fill value": ("f4", 2, None),
}


def product(forms: Sequence[str]) -> list[Any]:
    """Every opening with every form; by default each of both once or twice."""
    pairs = [
        (o, f, (number + place) % len(forms)) for number, o in enumerate(OPENINGS) for place, f in enumerate(forms)
    ]
    return [pytest.param(o, f, marks=pytest.mark.ci if other else []) for o, f, other in pairs]


def wrong_faces(opening: str, act: Callable[[Callable[[Any], Any]], bool]) -> list[str]:
    """Return the faces of which ``act`` says that they do what is wrong."""
    is_path = opening in ("path", "references", "ome")
    return [face for face, call in FACES.items() if (is_path or face != "verify") and not act(call)]


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


STALE = ["dtype", "shape", "chunks", "scale_factor", "_FillValue", "gone", "t"]


def stale(path: Path, what: str) -> Path:
    """Change an array of a group after its metadata were consolidated."""
    group = zarr.open_group(path, mode="a", use_consolidated=False)
    name = next(name for name in ("0", "image") if name in group)
    facts: dict[str, Any] = {"dtype": "f4", "shape": (8, 4, 4), "chunks": (2, 4, 4)}
    changes = {"dtype": "f8", "shape": (6, 4, 4), "chunks": (1, 4, 4)}
    if what in changes:
        again = group.create_array(
            name, overwrite=True, attributes=dict(group[name].attrs), **{**facts, what: changes[what]}
        )
        again[...] = 1
    elif what == "gone":
        del group[name]
    elif what == "t":
        group["t" if "t" in group else name].attrs["units"] = "days since 2000-01-01"
    else:
        group[name].attrs[what] = 2.0
    return path


@pytest.mark.filterwarnings("ignore:Consolidated metadata", "ignore:Object at .*is not recognized")
@pytest.mark.parametrize("zarr_format", [2, pytest.param(3, marks=pytest.mark.ci)])
@pytest.mark.parametrize(("opening", "what"), product(STALE))
def test_metadata_older_than_arrays_are_refused(opening: str, what: str, zarr_format: int, tmp_path: Path) -> None:
    path = stale(written(tmp_path / ("d.ome" if opening == "ome" else "d.zarr"), "f4", zarr_format, 0.0), what)

    def act(face: Callable[[Any], Any]) -> bool:
        try:
            face(OPENINGS[opening](path))
        except UserError as error:
            return "consolidate them again: zarr.consolidate_metadata(path)" in str(error)
        return False

    assert wrong_faces(opening, act) == []
