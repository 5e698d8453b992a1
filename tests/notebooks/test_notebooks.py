"""Notebooks in the repository have no broken links, and the outputs of a whole run."""

import base64
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


LARGEST = 60_000  # bytes of a picture


def test_the_repository_holds_the_outputs_of_a_whole_run(path, cells):
    """Readers on the web see them, so they name no folder of the machine, and pictures are small."""
    code = [cell for cell in cells if cell.cell_type == "code"]
    assert [cell.execution_count for cell in code] == list(range(1, len(code) + 1)), "run in order, in a new kernel"
    outputs = [output for cell in code for output in cell.outputs]
    assert outputs
    assert "error" not in {output.output_type for output in outputs}
    assert not re.search(r"/(tmp|home|work|root)/\w", str(outputs))
    pictures = [output.data["image/png"] for output in outputs if "image/png" in output.get("data", {})]
    assert all(len(base64.b64decode(picture)) <= LARGEST for picture in pictures)


def test_links_exist(path, cells):
    text = "".join(cell.source for cell in cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (path.parent / target).exists(), target
