"""The files that pages name exist, and the tables of rooms and of cuts are fresh."""

import re
from pathlib import Path

import pytest

from tests.support import cut_table, room_tables

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsinga"


def is_there(name: str, folder: Path) -> bool:
    """Whether ``name``, a path or a pattern, is in ``folder`` of the package."""
    return any(folder.glob(name.rstrip("/")))


@pytest.mark.parametrize("page", ["docs/design/architecture.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8")
    names = re.findall(r"`([\w./*]+\.py)`", text)
    assert names, "the page names no files"
    missing = [name for name in names if not is_there(name, PACKAGE) and not is_there(name, ROOT)]
    assert not missing


def test_files_in_the_picture_of_processes_exist():
    picture = (ROOT / "docs" / "images" / "processes.svg").read_text(encoding="utf-8")
    names = re.findall(r"\b[\w/]+\.py\b|\b[a-z_/]+/(?=[\s<])", picture)
    assert len(names) > 10
    assert not [name for name in names if not is_there(name, PACKAGE)]


@pytest.mark.parametrize("page", room_tables.PAGES)
def test_the_tables_of_rooms_are_those_of_importlinter(page):
    assert room_tables.page_with_rooms(page) == (ROOT / page).read_text(encoding="utf-8"), (
        "write them again: python -m tests.support.room_tables"
    )


def test_the_table_of_cuts_agrees_with_the_classes():
    shown = cut_table.PATH.read_text(encoding="utf-8")
    assert shown == cut_table.page(), "write it again: python -m tests.support.cut_table"
