"""The files that docs/how-it-works.md and CONTRIBUTING.md name are there, and the page names every room."""

import re
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
PACKAGE = ROOT / "dsinga"
PAGE = (ROOT / "docs" / "how-it-works.md").read_text(encoding="utf-8")
ROOMS = PAGE.split("## The rooms")[1]


def table() -> list[tuple[str, str]]:
    """Return (room, file) for each file in the table of rooms; a row without a room continues the one above."""
    files, room = [], ""
    for row in re.findall(r"^\|.*\|$", ROOMS, re.MULTILINE):
        _, first, names, *_ = row.split("|")
        room = first.strip(" `") or room
        files += [(room, name) for name in re.findall(r"`(.+?)`", names)]
    return files


def is_there(name: str, folder: Path) -> bool:
    """Whether ``name``, a path or a pattern, is in ``folder`` of the package."""
    return any(folder.glob(name.rstrip("/")))


@pytest.mark.parametrize("page", ["docs/how-it-works.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_exist(page):
    text = (ROOT / page).read_text(encoding="utf-8").replace(ROOMS, "")
    names = re.findall(r"`([\w./*]+\.py)`", text)
    assert names, "the page names no files"
    missing = [name for name in names if not is_there(name, PACKAGE) and not is_there(name, ROOT)]
    assert not missing


def test_files_in_the_picture_of_processes_exist():
    picture = (ROOT / "docs" / "images" / "processes.svg").read_text(encoding="utf-8")
    names = re.findall(r"\b[\w/]+\.py\b|\b[a-z]+/(?=[ <])", picture)
    assert len(names) > 10
    assert not [name for name in names if not is_there(name, PACKAGE)]


def test_files_in_the_table_of_rooms_exist():
    files = table()
    assert len(files) > 100
    assert not [f"{room}{name}" for room, name in files if not is_there(name, PACKAGE / room)]


def test_every_room_is_in_the_table():
    rooms = {folder.name for folder in PACKAGE.iterdir() if (folder / "__init__.py").exists()}
    named = {room.strip("./") for room, _ in table()} | {"models", "transport", "commands"}
    assert rooms <= named


def test_every_file_is_in_the_table_of_rooms():
    named = {PACKAGE / room / path.name for room, name in table() for path in (PACKAGE / room).glob(name.rstrip("/"))}
    rooms = {PACKAGE / room for room, _ in table() if room not in ("layers/", "models/")}  # "all other files"
    files = {file for room in rooms for file in room.glob("*.py") if file.name != "__init__.py"}
    assert len(files) > 100
    assert not sorted(str(file.relative_to(PACKAGE)) for file in files - named)
