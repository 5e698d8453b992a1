"""The notebook about retrieval, run as a person would: from a fresh kernel, beside the data sets."""

import ast
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "notebooks" / "retrieval.ipynb"


@pytest.fixture(scope="module")
def book():
    return nbformat.read(BOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(book, tmp_path_factory):
    """The notebook after a run in a folder that has the data sets beside it."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "datasets").symlink_to(ROOT / "datasets")
    (folder / "notebooks").mkdir()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("TMPDIR", str(folder))
        resources = {"metadata": {"path": str(folder / "notebooks")}}
        return nbclient.NotebookClient(nbformat.from_dict(book), timeout=90, resources=resources).execute()


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def value(book, name):
    """Return what the cell of this id displays as its result."""
    (result,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return ast.literal_eval(result.data["text/plain"])


def test_half_a_digit_is_enough_to_tell_most(executed):
    assert min(value(executed, "accuracy")) > 0.75


def test_codes_find_what_pixels_do_not(executed):
    found = value(executed, "map")
    assert min(found["upper look for lower"], found["lower look for upper"]) > 0.6
    assert max(found["pixels of upper look for lower"], found["chance"]) < 0.3


@pytest.mark.parametrize("name", ["job", "train"])
def test_objects_show_themselves(executed, name):
    assert [output.data["text/html"] for output in outputs(executed, name)][0]


@pytest.mark.parametrize("name", ["examples", "curve"])
def test_pictures_are_drawn(executed, name):
    assert [output.data["image/png"] for output in outputs(executed, name)][0]


def test_no_cell_complains(executed):
    for cell in executed.cells:
        assert not [output for output in cell.get("outputs", ()) if output.output_type == "stream"]


def test_the_repository_holds_no_outputs(book):
    for cell in book.cells:
        assert not cell.get("outputs"), cell.id
        assert cell.get("execution_count") is None, cell.id


def test_links_lead_somewhere(book):
    text = "".join(cell.source for cell in book.cells if cell.cell_type == "markdown")
    targets = re.findall(r"\]\((?!https?:)([^)#]+)", text)
    assert targets
    for target in targets:
        assert (BOOK.parent / target).exists(), target
