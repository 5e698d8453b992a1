"""Only regular files are read: pipes and devices are neither waited for nor read for ever."""

import errno
import os
import socket
from pathlib import Path

import pytest

from dsinga.base.regular_files import open_regular, read_regular, read_regular_text


def test_a_file_is_read(tmp_path: Path) -> None:
    path = tmp_path / "file"
    path.write_bytes("ä".encode())
    (tmp_path / "link").symlink_to("file")
    assert read_regular(path, 2) == "ä".encode()
    assert read_regular_text(tmp_path / "link") == "ä"
    with open_regular(os.fspath(path)) as file:
        assert file.read(1) == b"\xc3"


def test_what_is_no_file_is_refused_without_waiting(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)  # the path of a socket must be short
    os.mkfifo("pipe")
    with socket.socket(socket.AF_UNIX) as server:
        server.bind("socket")
        for path, kind in (("pipe", "a pipe"), ("/dev/zero", "a device"), ("socket", "a socket")):
            remedy = "; write it to a file first" if path == "pipe" else ""
            with pytest.raises(OSError, match=f"it is {kind}, not a file{remedy}: '{path}'"):
                open_regular(path)
    with pytest.raises(IsADirectoryError):
        open_regular(tmp_path)
    with pytest.raises(FileNotFoundError):
        open_regular(tmp_path / "nothing")


def test_a_pipe_that_takes_the_place_of_a_file_meanwhile(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "file"
    path.touch()
    status = os.stat(path)
    path.unlink()
    os.mkfifo(path)
    with monkeypatch.context() as patch:
        patch.setattr(os, "stat", lambda _: status)
        with pytest.raises(OSError, match="it is a pipe"):
            open_regular(path)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)  # a hole: takes no room on the disk
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and such a file at most 1,000") as caught:
        read_regular(path, 1000)
    assert caught.value.errno == errno.EFBIG
