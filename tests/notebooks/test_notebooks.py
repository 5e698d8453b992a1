"""Notebooks in the repository have no broken links, and no outputs, but for those that are read without being run."""

import re
from pathlib import Path

import nbformat
import pytest

BOOKS = sorted((Path(__file__).parents[2] / "notebooks").rglob("*.ipynb"))


@pytest.fixture(params=BOOKS, ids=lambda path: path.stem)
def path(request):
    return request.param


@pytest.fixture
def cells(path):
    return nbformat.read(path, as_version=4).cells


SAVED = {"fields"}  # with outputs, whose nets take minutes


def test_the_repository_holds_no_outputs_but_those_of_long_runs(path, cells):
    if path.stem in SAVED:
        counts = [cell.execution_count for cell in cells if cell.cell_type == "code"]
        assert counts == list(range(1, len(counts) + 1)), "run in order, in a new kernel"
        return
    for cell in cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None, cell.id


def test_links_exist(path, cells):
    text = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (path.parent / target).exists(), target
