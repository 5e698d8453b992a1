"""The command of docs/howto/services.md that puts links in place of copies of oneDNN's library."""

import os
import subprocess
from pathlib import Path

import pytest

from tests.support.executed_pages import ROOT, blocks

LIBRARY = "libdnnl.so.3"
LINKS = ("libdnnl.so", "libdnnl.so.3.2")


@pytest.mark.parametrize("of_conda", [False, True])  # whose link is the other way round, beside another library
def test_copies_become_links_and_links_and_other_libraries_stay(tmp_path: Path, of_conda: bool) -> None:
    folder = tmp_path / "prefix" / "lib"  # of the environment whose Python is the first on the path
    folder.mkdir(parents=True)
    (tmp_path / "python").write_text(f"#!/bin/sh\necho {folder.parent}\n")
    (tmp_path / "python").chmod(0o755)
    for name in (LIBRARY, *LINKS):
        (folder / name).write_bytes(b"another" if of_conda and name == LINKS[0] else b"a library")
    if of_conda:
        (folder / LIBRARY).unlink()
        (folder / LIBRARY).symlink_to(LINKS[1])
    page = (ROOT / "docs" / "howto" / "services.md").read_text("utf-8")
    (block,) = (block for block in blocks(page) if block.language == "sh" and "libdnnl" in block.text)
    environment = {**os.environ, "PATH": f"{tmp_path}:{os.environ['PATH']}"}
    for _ in range(2):
        subprocess.run(["sh", "-euc", block.text], env=environment, check=True, timeout=60)
    links = {path.name: path.readlink() for path in folder.iterdir() if path.is_symlink()}
    assert links == ({LIBRARY: Path(LINKS[1])} if of_conda else dict.fromkeys(LINKS, Path(LIBRARY)))
    texts = {path.name: path.read_bytes() for path in folder.iterdir()}
    assert texts == dict.fromkeys((LIBRARY, *LINKS), b"a library") | ({LINKS[0]: b"another"} if of_conda else {})
