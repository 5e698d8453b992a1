"""The notebook in which a net learns to write, from a fresh kernel, with fewer steps than a person would take."""

import ast
import re
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "notebooks" / "char-rnn.ipynb"


@pytest.fixture(scope="module")
def book():
    return nbformat.read(BOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(book, tmp_path_factory):
    """The notebook after a short run."""
    folder, short = tmp_path_factory.mktemp("checkout"), nbformat.from_dict(book)
    (cell,) = [cell for cell in short.cells if cell.id == "stages"]
    cell.source = "stages = 2, 10, 30"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("TMPDIR", str(folder))
        resources = {"metadata": {"path": str(folder)}}
        return nbclient.NotebookClient(short, timeout=90, resources=resources).execute()


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def value(book, name):
    """Return what the cell of this id displays as its result."""
    (result,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return ast.literal_eval(result.data["text/plain"])


def test_no_cell_complains(executed):
    said = [output for cell in executed.cells for output in cell.get("outputs", ()) if output.output_type == "stream"]
    assert said == []


def test_it_has_learned_which_characters_are_frequent(executed):
    alike, learned = value(executed, "last")
    assert learned < alike - 1


@pytest.mark.parametrize(("name", "count"), [("learn", 3), ("heat", 4)])
def test_samples_are_shown(executed, name, count):
    (table,) = outputs(executed, name)
    assert table.data["text/html"].count("<pre>") == count


def test_the_net_and_the_curve_are_drawn(executed):
    assert outputs(executed, "job")[0].data["text/html"]
    assert outputs(executed, "bits")[0].data["image/png"]


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
