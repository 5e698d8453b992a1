"""Saves that are cut off, and files that are no regular ones."""

import contextlib
import errno
import os
import socket
import subprocess
import sys
from pathlib import Path

import pytest

from dsinga.base.durable_files import SAVED, draft_folder, finish_save, holds_files, replace_file, replaced_files
from dsinga.base.regular_files import open_regular, read_regular, read_regular_text
from tests.support.refusals import refused


def test_drafts_that_a_process_has_left_are_removed_and_those_in_use_are_not(tmp_path: Path):
    (tmp_path / ".a.draft-left").mkdir()
    (tmp_path / ".a.draft-left" / "half").write_text("x")
    (tmp_path / ".b.draft-left").mkdir()  # of something else
    with draft_folder(tmp_path / "a") as first, draft_folder(tmp_path / "a") as second:
        assert first.is_dir()
        assert second.is_dir()
        assert sorted(os.listdir(tmp_path)) == sorted([first.name, second.name, ".b.draft-left"])
    assert os.listdir(tmp_path) == [".b.draft-left"]


def test_what_was_moved_aside_by_a_killed_process_is_moved_back_unless_something_new_is_there(tmp_path: Path):
    for draft, name in ((".a.draft-1", "a.old"), (".b.draft-1", "b.old")):
        (tmp_path / draft / name).mkdir(parents=True)
        (tmp_path / draft / name / "old").touch()
    (tmp_path / "b").mkdir()
    for name in ("a", "b"):
        with draft_folder(tmp_path / name):
            pass
    assert os.listdir(tmp_path / "a") == ["old"]
    assert os.listdir(tmp_path / "b") == []


def test_files_are_replaced_together_and_others_stay(tmp_path: Path):
    for name in ("one", "two", "mine"):
        (tmp_path / name).write_text("old")
    with replaced_files(tmp_path, ("one", "two", "three")) as files:
        (files / "one").write_text("new")
        (files / "three").write_text("new")
        assert (tmp_path / "one").read_text() == "old"
    assert {path.name: path.read_text() for path in tmp_path.iterdir()} == {"one": "new", "three": "new", "mine": "old"}
    with contextlib.suppress(OSError), replaced_files(tmp_path, ("one",)) as files:
        (files / "one").write_text("newer")
        raise OSError(28, "the disk is full")
    assert (tmp_path / "one").read_text() == "new"
    assert len(os.listdir(tmp_path)) == 3


def test_a_save_that_was_cut_off_is_finished_by_whoever_comes_next(tmp_path: Path):
    (tmp_path / "gone").write_text("old")
    (tmp_path / SAVED).mkdir()
    (tmp_path / SAVED / "kept").write_text("new")
    (tmp_path / SAVED / "gone").touch()
    finish_save(tmp_path, ["gone", "kept"])
    assert os.listdir(tmp_path) == ["kept"]
    (tmp_path / ".saved.draft-1").mkdir()
    assert holds_files(tmp_path, ["gone", "kept"])
    (tmp_path / "kept").unlink()
    assert not holds_files(tmp_path, ["gone", "kept"])


def test_a_folder_in_the_way_of_a_file_is_named(tmp_path: Path):
    (tmp_path / SAVED).mkdir()
    (tmp_path / SAVED / "kept").write_text("new")
    (tmp_path / "kept").mkdir()
    refused(lambda: finish_save(tmp_path, ["gone", "kept"]), "cannot be written", "name a folder")


WRITER = """
import sys
from pathlib import Path
from dsinga.base.durable_files import replace_file, replaced_files

for number in range(150):
    text = str(number) * 999
    replace_file(Path(sys.argv[1]) / "file", text)
    with replaced_files(Path(sys.argv[1]) / "folder", ("a", "b")) as files:
        for name in ("a", "b")[: 1 + number % 2]:
            (files / name).write_text(text)
"""


@pytest.mark.process
def test_processes_that_write_the_same_files_at_once_leave_whole_ones(tmp_path: Path):
    writers = [subprocess.Popen([sys.executable, "-c", WRITER, str(tmp_path)]) for _ in range(2)]
    assert [writer.wait(60) for writer in writers] == [0, 0]
    assert sorted(os.listdir(tmp_path)) == ["file", "folder"]
    assert (tmp_path / "file").read_text() == "149" * 999
    assert sorted(os.listdir(tmp_path / "folder")) == ["a", "b"]
    replace_file(tmp_path / "file", "last")
    assert (tmp_path / "file").read_text() == "last"


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
        refused(lambda: open_regular(path), "it is a pipe", error=OSError)


def test_a_file_that_is_too_large_is_refused_before_it_is_read(tmp_path: Path) -> None:
    path = tmp_path / "large"
    with path.open("wb") as file:
        os.truncate(file.fileno(), 1 << 40)  # a hole: takes no room on the disk
    with pytest.raises(OSError, match="it has 1,099,511,627,776 bytes, and such a file at most 1,000") as caught:
        read_regular(path, 1000)
    assert caught.value.errno == errno.EFBIG
