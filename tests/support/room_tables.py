"""Writes the tables of rooms in CONTRIBUTING.md and docs/how-it-works.md, from ``.importlinter`` and docstrings.

``python -m tests.support.room_tables`` writes them anew; a test compares them with the pages.
"""

from __future__ import annotations

import ast
import configparser
import re
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = "importlinter:contract:rooms"
BEGIN, END = "<!-- rooms: written by python -m tests.support.room_tables -->", "<!-- end of rooms -->"


def floors() -> list[list[str]]:
    """Return the rooms of ``dsinga/``, from those that import others down to those that nothing is below."""
    config = configparser.ConfigParser()
    config.read(ROOT / ".importlinter", encoding="utf-8")
    return [line.split(" | ") for line in config[CONTRACT]["layers"].split("\n") if line]


def idea(room: str) -> str:
    """Return what a room is about: the first sentence of its docstring."""
    folder = ROOT / "dsinga" / room
    file = folder / "__init__.py" if folder.is_dir() else folder.with_suffix(".py")
    text = ast.get_docstring(ast.parse(file.read_text(encoding="utf-8"))) or ""
    return " ".join(text.split("\n\n")[0].split()).partition(". ")[0].rstrip(".").replace("``", "`")


def name(room: str) -> str:
    """Return a room as pages name it: a folder with its slash."""
    return f"`{room}/`" if (ROOT / "dsinga" / room).is_dir() else f"`{room}.py`"


def picture() -> str:
    """Return the rooms as lines of text, those above first, for CONTRIBUTING.md."""
    return "\n".join(["```text", *("  ".join(rooms) for rooms in floors()), "```"])


def table() -> str:
    """Return the rooms with what they are about, from the ground up, for docs/how-it-works.md."""
    rows = [f"| {name(room)} | {idea(room)} |" for rooms in reversed(floors()) for room in rooms]
    return "\n".join(["| room | what it is about |", "| --- | --- |", *rows])


PAGES = {"CONTRIBUTING.md": picture, "docs/how-it-works.md": table}


def page_with_rooms(page: str) -> str:
    """Return the text of a page with its table written anew."""
    text = (ROOT / page).read_text(encoding="utf-8")
    return re.sub(f"(?s)({BEGIN}\n\n).*?(\n\n{END})", lambda match: match[1] + PAGES[page]() + match[2], text)


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(page_with_rooms(page), encoding="utf-8")
