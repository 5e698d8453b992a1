"""Every notebook in the repository has no outputs and no broken links."""

import re
from pathlib import Path

import nbformat
import pytest

BOOKS = sorted((Path(__file__).parents[2] / "notebooks").glob("*.ipynb"))


@pytest.fixture(params=BOOKS, ids=lambda path: path.stem)
def cells(request):
    return nbformat.read(request.param, as_version=4).cells


def test_the_repository_holds_no_outputs(cells):
    for cell in cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None, cell.id


def test_links_exist(cells):
    text = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (BOOKS[0].parent / target).exists(), target
