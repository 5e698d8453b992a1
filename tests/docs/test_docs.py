"""What the documentation shows is executed: each page of docs/ and the README, in a folder of its own.

:mod:`tests.support.executed_pages` says which blocks. A picture of docs/images that the page's blocks draw too, under
the same name, must be what they draw.
"""

import os
import re
import shutil
from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import dask.config
import pytest

from tests.support.command_server import command_server
from tests.support.executed_pages import ROOT, blocks, command_environment, execute
from tests.support.registries import restored_registry

PAGES = sorted(
    page for page in (ROOT / "docs").rglob("*.md") if not {"dev", "reference"} & set(page.relative_to(ROOT).parts)
)
README = ROOT / "README.md"
# On the last line of a page that takes more than a second of a processor. Like the Book's, such pages are executed in
# CI's part "marked" alone.
LONG = "<!-- executed in CI -->"


@pytest.fixture(scope="session")
def cache(tmp_path_factory) -> Path:
    """Rates of layers, measured once for all pages, also by the other processes of pytest-xdist."""
    base = tmp_path_factory.getbasetemp()
    folder = (base.parent if "PYTEST_XDIST_WORKER" in os.environ else base) / "rates"
    folder.mkdir(exist_ok=True)
    return folder


@pytest.fixture(scope="session")
def commands(cache, tmp_path_factory) -> dict[str, str]:
    """An environment whose commands are started as users start them."""
    return command_environment(tmp_path_factory.mktemp("commands"), cache)


@pytest.fixture(scope="session")
def forked_commands(commands, cache, tmp_path_factory) -> Iterator[dict[str, str]]:
    """An environment whose commands are forked from a process that has imported what they need."""
    with command_server(tmp_path_factory.mktemp("server"), commands) as words:
        yield command_environment(tmp_path_factory.mktemp("commands"), cache, words)


@pytest.fixture
def folder(tmp_path, cache, forked, monkeypatch) -> Path:
    """A fresh working directory. Dask workers that a page starts are forked from a process that has imported much."""
    folder = tmp_path / "work"
    folder.mkdir()
    monkeypatch.chdir(folder)
    monkeypatch.setitem(dask.config.config, "dsinga", {"cache": str(cache)})
    return folder


def page_id(page: Path) -> str:
    """Return the path of a page below docs/, without its ending."""
    return page.relative_to(ROOT / "docs").with_suffix("").as_posix()


def marks(page: Path) -> list[pytest.MarkDecorator]:
    """Return the mark of a page that the default run leaves out."""
    is_long = page.parent.name == "book" or page.read_text(encoding="utf-8").rstrip().endswith(LONG)
    return [pytest.mark.ci] if is_long else []


@pytest.mark.parametrize("page", [pytest.param(page, id=page_id(page), marks=marks(page)) for page in PAGES])
def test_page(page, folder, forked_commands):
    if page.stem == "security" and not shutil.which("openssl"):
        pytest.skip("the page makes certificates by openssl")
    with restored_registry(without_users=True):
        execute(page, folder, forked_commands)
    for picture in re.findall(r"\]\((?:\.\./)*images/([^)]+)\)", page.read_text(encoding="utf-8")):
        drawn, kept = folder / picture, ROOT / "docs" / "images" / picture
        assert not drawn.exists() or is_same_picture(drawn, kept), f"out of date: cp {drawn} {kept}"


def is_same_picture(drawn: Path, kept: Path) -> bool:
    """Whether two files have the same text or, of PNG, which releases of Pillow compress otherwise, the same pixels."""
    if drawn.suffix != ".png":
        return drawn.read_text() == kept.read_text()
    image = pytest.importorskip("PIL.Image")
    with image.open(drawn) as first, image.open(kept) as second:
        return first.size == second.size and first.tobytes() == second.tobytes()


@pytest.mark.slow
@pytest.mark.timeout(400)
def test_the_readme_runs_as_it_stands_in_any_folder(folder, forked_commands):
    """In CI its blocks are executed with what its own commands install (.ci/run)."""
    execute(README, folder, forked_commands)


def test_only_the_installing_blocks_of_the_readme_are_not_executed():
    shown = [block for block in blocks(README.read_text(encoding="utf-8")) if block.language == "sh"]
    assert len(shown) == 2
    assert all("venv" in block.text for block in shown)


@pytest.mark.parametrize(
    "page",
    sorted([*(ROOT / "docs").rglob("*.md"), ROOT / "README.md", ROOT / "CONTRIBUTING.md"]),
    ids=lambda page: page.relative_to(ROOT).as_posix(),
)
def test_links_between_pages_lead_somewhere(page):
    for target, anchor in re.findall(r"\]\((?!https?:)([^)#]*)#?([^)]*)\)", page.read_text(encoding="utf-8")):
        path = page.parent / target if target else page
        assert path.exists(), f"{page.name} links to {target}"
        assert not anchor or anchor in anchors(path), f"{page.name} links to {target}#{anchor}"


def anchors(page: Path) -> set[str]:
    """Return the anchors that GitHub gives the headings of a page."""
    headings = re.findall(r"^#+ (.*)$", page.read_text(encoding="utf-8"), re.MULTILINE)
    return {re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-") for heading in headings}


def broken_tables(text: str) -> list[str]:
    """Return the lines of a page by which Markdown ends a table early, or shows too few or too many cells."""
    faults, columns, is_code = [], 0, False
    for line, following in pairwise([*text.splitlines(), "", ""]):
        is_code ^= line.lstrip().startswith("```")
        is_row = line.startswith("|") and not is_code
        cells = len(re.findall(r"(?<!\\)\|", line)) if is_row else 0
        begins = not columns and re.fullmatch(r"\|[\s|:-]+\|", following)
        if is_row and not (columns == cells or begins):
            faults.append(line)
        columns = cells if is_row else 0
    return faults


def test_no_table_is_broken():
    assert broken_tables("| a | b |\n|---|---|\n| 1 | 2 |\n\n| 3 | 4 |\n| 5 |") == ["| 3 | 4 |", "| 5 |"]
    pages = [README, *ROOT.glob("docs/**/*.md")]
    assert not {str(page): faults for page in pages if (faults := broken_tables(page.read_text("utf-8")))}
