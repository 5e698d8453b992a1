"""Writes the tables of rooms and add-ons in CONTRIBUTING.md and docs/reference/rooms.md.

The order of rooms is that of ``.importlinter``, what they are about comes from their docstrings.

``python -m tests.support.room_tables`` writes them anew; a test compares them with the pages.
"""

import ast
import configparser
from pathlib import Path

ROOT = Path(__file__).parents[2]
CONTRACT = "importlinter:contract:rooms"
FACES = ("rl", "estimators", "models", "convert", "testing")


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
    """Return the rooms with what they are about, from the ground up, for docs/reference/rooms.md."""
    rows = [f"| {name(room)} | {idea(room)} |" for rooms in reversed(floors()) for room in rooms]
    return "\n".join(["| room | what it is about |", "| --- | --- |", *rows])


def add_ons() -> str:
    """Return the add-ons with what they are about, for docs/reference/rooms.md."""
    folders = sorted(path.parent.name for path in (ROOT / "dsinga" / "addons").glob("*/__init__.py"))
    rows = [f"| {name(room)} | {idea(room)} |" for room in (*(f"addons/{folder}" for folder in folders), *FACES)]
    return "\n".join(["| add-on | what it is about |", "| --- | --- |", *rows])


# By page, what stands between its marks of each kind.
PAGES = {"CONTRIBUTING.md": {"rooms": picture}, "docs/reference/rooms.md": {"add-ons": add_ons, "rooms": table}}


def page_with_rooms(page: str) -> str:
    """Return the text of a page with its table written anew."""
    text = (ROOT / page).read_text(encoding="utf-8")
    for kind, written in PAGES[page].items():
        begin, end = (
            f"<!-- {kind}: written by python -m tests.support.room_tables -->\n\n",
            f"\n\n<!-- end of {kind} -->",
        )
        before, _, rest = text.partition(begin)
        text = before + begin + written() + end + rest.partition(end)[2]
    return text


if __name__ == "__main__":
    for page in PAGES:
        (ROOT / page).write_text(page_with_rooms(page), encoding="utf-8")
