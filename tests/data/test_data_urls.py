"""Stores and zarr arrays behind URLs: a web server, memory, and a file system that refuses."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import fsspec
import numpy as np
import pytest
import zarr

from dsinga.data import describe, open_store, write_store
from dsinga.data.filesystem import zarr_store
from dsinga.errors import UserError
from tests.support.web_server import serve

DATA = np.random.default_rng(0).normal(size=(50, 3)).astype(np.float32)
LABELS = np.arange(50)


@pytest.fixture
def website(tmp_path: Path) -> Iterator[str]:
    """The address of a web server that has the files of ``tmp_path``."""
    with serve(tmp_path) as address:
        yield f"http://{address}"


def test_a_web_server(tmp_path: Path, website: str) -> None:
    write_store(tmp_path / "store.zarr", [(DATA, LABELS)])
    for zarr_format in (2, 3):
        group = zarr.open_group(tmp_path / f"own{zarr_format}", mode="w", zarr_format=zarr_format)
        group.create_array("a/x", data=DATA, chunks=(20, 3))
        group.create_array("a/y", data=LABELS)
    options: dict[str, Any] = {"data": "a/x", "label": "a/y"}
    for source in (
        open_store(f"{website}/store.zarr"),
        open_store(f"{website}/own2", **options),
        open_store(f"{website}/own3", **options),
        open_store(f"{website}/own3/a/", data="x", label="y"),
    ):
        data, labels = source.read([49, 0])
        np.testing.assert_array_equal(data, DATA[[49, 0]])
        np.testing.assert_array_equal(labels, LABELS[[49, 0]])
        assert describe(source)["outputs"] == 50
    np.testing.assert_array_equal(open_store(f"{website}/own3/a/x").read([7])[0], DATA[[7]])
    with pytest.raises(UserError, match=r"own3: no array has a usual name .*; it has no arrays that can be listed"):
        open_store(f"{website}/own3")
    with pytest.raises(UserError, match="nothing.zarr was not found"):
        open_store(f"{website}/nothing.zarr")


@pytest.mark.filterwarnings("ignore:Consolidated metadata")
@pytest.mark.parametrize("zarr_format", [2, 3])
def test_consolidated_metadata_list_the_arrays_of_a_web_server(tmp_path: Path, website: str, zarr_format: int) -> None:
    group = zarr.open_group(tmp_path / "own", mode="w", zarr_format=zarr_format)
    group.create_array("x", data=DATA)
    group.create_array("y", data=LABELS)
    zarr.consolidate_metadata(tmp_path / "own")
    np.testing.assert_array_equal(open_store(f"{website}/own").read([9])[1], [9])


def test_memory() -> None:
    group = zarr.open_group(zarr_store("memory://urls/own", read_only=False), mode="w", zarr_format=2)
    group.create_array("Images", data=DATA)
    group.create_array("Target", data=LABELS.astype(float))
    source = open_store("memory://urls/own")
    assert (source.label_dtype, source.read([3])[1].tolist()) == (np.float32, [3.0])


def test_a_refusal_is_named_without_the_password() -> None:
    class Refusing(fsspec.AbstractFileSystem):
        protocol = "refusing"

        def exists(self, path: str, **options: Any) -> bool:
            raise PermissionError("https://me:secret@host/x.zarr?signature=secret is forbidden")

    fsspec.register_implementation("refusing", Refusing, clobber=True)
    with pytest.raises(UserError) as refused:
        open_store("refusing://me:secret@host/x.zarr")
    shown = "refusing://***@host/x.zarr cannot be reached: PermissionError: https://***@host/x.zarr?*** is forbidden"
    assert str(refused.value) == shown
