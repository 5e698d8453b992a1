"""Stores behind URLs: a web server, memory, a file system that refuses; errors that pass are tried again."""

import collections
import logging
import socket
from collections.abc import Iterator
from pathlib import Path
from typing import Any, ClassVar

import fsspec
import numpy as np
import pytest
import zarr

from dsinga.base.errors import UserError
from dsinga.data import describe, open_store, write_store
from dsinga.data import record_source as source_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.data.filesystem import zarr_store
from dsinga.data.stores import checked_files as reading_store
from tests.support.web_server import QuietHandler, serve

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


NUMBERS = np.random.default_rng(11).normal(size=(50, 3)).astype(np.float32)
RESET = 0  # in place of a status


class FailingHandler(QuietHandler):
    """Answers the first requests of each path with errors: statuses, or a connection that is closed."""

    errors: ClassVar[tuple[int, ...]] = ()
    failing: ClassVar[str] = ""  # the end of the paths of which requests fail
    requests: ClassVar[collections.Counter[str]] = collections.Counter()

    def do_GET(self) -> None:
        count = self.requests[self.path]
        self.requests[self.path] += 1
        if not self.path.endswith(self.failing) or count >= len(self.errors):
            super().do_GET()
        elif self.errors[count] == RESET:
            self.connection.shutdown(socket.SHUT_RDWR)
        else:
            self.send_error(self.errors[count])


@pytest.fixture
def failing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> type[FailingHandler]:
    monkeypatch.setattr(source_module, "_cache", ChunkCache())
    monkeypatch.setattr(reading_store, "DELAYS", (0.01,) * 6)
    write_store(tmp_path / "x.zarr", [(NUMBERS, np.arange(50))])
    return type("Failing", (FailingHandler,), {"requests": collections.Counter()})


@pytest.mark.parametrize("errors", [(503, 429), (RESET, RESET), (500, RESET, 504)])
def test_errors_that_pass(tmp_path, failing, errors, caplog):
    failing.errors = errors
    with serve(tmp_path, failing) as address, caplog.at_level(logging.INFO, "dsinga"):
        np.testing.assert_array_equal(open_store(f"http://{address}/x.zarr").read(range(50))[0], NUMBERS)
    assert failing.requests["/x.zarr/data/c/0/0"] == len(errors) + 1
    assert "x.zarr/data/c/0/0: " in caplog.text
    assert "trying again in 0.01 s" in caplog.text


@pytest.mark.parametrize(
    ("failed", "message"),
    [
        ("c/0/0", r"is damaged: chunk data/c/0/0 cannot be read or decoded \(ClientResponseError: 503"),
        ("x.zarr/zarr.json", r"x.zarr(/zarr.json)? cannot be reached: ClientResponseError: 503"),
        ("labels/zarr.json", r"labels/zarr.json cannot be read \(ClientResponseError: 503"),
    ],
)
def test_errors_that_stay(tmp_path: Path, failing: type[FailingHandler], failed: str, message: str) -> None:
    failing.errors, failing.failing = (503,) * 1000, failed
    with serve(tmp_path, failing) as address, pytest.raises(UserError, match=message):
        open_store(f"http://{address}/x.zarr").read([3])
    [requests] = [count for path, count in failing.requests.items() if path.endswith(failed)]
    assert requests == len(reading_store.DELAYS) + 1


def test_nothing_is_tried_again_after_a_long_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(reading_store, "LONGEST", -1.0)
    calls = []

    def time_out() -> None:
        calls.append(1)
        raise TimeoutError

    with pytest.raises(TimeoutError):
        reading_store.retry(time_out, "x")
    assert len(calls) == 1


@pytest.mark.parametrize("status", [403, 404, 501])
def test_a_refusal_is_not_tried_again(tmp_path: Path, failing: type[FailingHandler], status: int) -> None:
    failing.errors, failing.failing = (status,) * 1000, "/c/0/0"
    with serve(tmp_path, failing) as address, pytest.raises(UserError, match="chunk data/c/0/0 "):
        open_store(f"http://{address}/x.zarr").read([3])
    assert failing.requests["/x.zarr/data/c/0/0"] <= 2  # the chunk, and whether it exists


def test_a_server_that_is_gone(tmp_path: Path, failing: type[FailingHandler]) -> None:
    with serve(tmp_path, failing) as address:
        store = open_store(f"http://{address}/x.zarr")
    with pytest.raises(UserError, match="chunk data/c/0/0 cannot be read or decoded .ClientConnectorError"):
        store.read([3])


@pytest.mark.parametrize(
    ("error", "passes"),
    [
        (ConnectionResetError(), True),
        (TimeoutError(), True),
        (OSError(16, "Please reduce your request rate"), True),
        (FileNotFoundError(2, "x"), False),
        (PermissionError(13, "x"), False),
        (ValueError("x"), False),
    ],
)
def test_which_errors_pass(error: Exception, passes: bool) -> None:
    assert reading_store.is_transient(error) == passes
