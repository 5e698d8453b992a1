"""Errors of a web server that pass are tried again; others, and those that stay, are one message."""

from __future__ import annotations

import collections
import logging
import socket
from pathlib import Path
from typing import ClassVar

import numpy as np
import pytest

from dsinga.data import open_store, reading_store, write_store
from dsinga.data import record_source as source_module
from dsinga.data.chunk_cache import ChunkCache
from dsinga.errors import UserError
from tests.support.web_server import QuietHandler, serve

DATA = np.random.default_rng(11).normal(size=(50, 3)).astype(np.float32)
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
    write_store(tmp_path / "x.zarr", [(DATA, np.arange(50))])
    return type("Failing", (FailingHandler,), {"requests": collections.Counter()})


@pytest.mark.parametrize("errors", [(503, 429), (RESET, RESET), (500, RESET, 504)])
def test_errors_that_pass(
    tmp_path: Path, failing: type[FailingHandler], errors: tuple[int, ...], caplog: pytest.LogCaptureFixture
) -> None:
    failing.errors = errors
    with serve(tmp_path, failing) as address, caplog.at_level(logging.INFO, "dsinga"):
        np.testing.assert_array_equal(open_store(f"http://{address}/x.zarr").read(range(50))[0], DATA)
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
