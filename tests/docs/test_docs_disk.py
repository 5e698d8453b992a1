"""The command of docs/howto/services.md that puts links in place of copies of oneDNN's library."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.executed_pages import ROOT, blocks

LIBRARY = "libdnnl.so.3"
LINKS = ("libdnnl.so", "libdnnl.so.3.2")


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder of libraries of an environment whose Python is the first on the path."""
    folder = tmp_path / "prefix" / "lib"
    folder.mkdir(parents=True)
    (folder / LIBRARY).write_bytes(b"a library")
    (tmp_path / "python").write_text(f"#!/bin/sh\necho {folder.parent}\n")
    (tmp_path / "python").chmod(0o755)
    return folder


def replace_copies(folder: Path) -> None:
    """Execute the command twice."""
    page = (ROOT / "docs" / "howto" / "services.md").read_text("utf-8")
    (block,) = (block for block in blocks(page) if block.language == "sh" and "libdnnl" in block.text)
    environment = {**os.environ, "PATH": f"{folder.parents[1]}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["sh", "-euc", block.text], env=environment, check=True, timeout=60)


def test_copies_become_links(folder: Path) -> None:
    for name in LINKS:
        (folder / name).write_bytes(b"a library")
    replace_copies(folder)
    assert [(folder / name).readlink() for name in LINKS] == [Path(LIBRARY)] * 2
    assert not (folder / LIBRARY).is_symlink()
    assert {path.read_bytes() for path in folder.iterdir()} == {b"a library"}


def test_links_and_libraries_of_another_version_stay(folder: Path) -> None:
    """As conda installs them: the other way round."""
    (folder / LIBRARY).rename(folder / LINKS[1])
    (folder / LIBRARY).symlink_to(LINKS[1])
    (folder / LINKS[0]).write_bytes(b"another library")
    replace_copies(folder)
    assert (folder / LIBRARY).readlink() == Path(LINKS[1])
    assert (folder / LINKS[1]).read_bytes() == b"a library"
    assert (folder / LINKS[0]).read_bytes() == b"another library"
