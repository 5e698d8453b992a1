"""The notebook about named entities, run as a person would, on the sentences that it makes."""

import ast
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "notebooks" / "entities.ipynb"


@pytest.fixture(scope="module")
def executed(tmp_path_factory):
    """The notebook after a run in a folder of its own."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        resources = {"metadata": {"path": str(tmp_path_factory.mktemp("notebooks"))}}
        book = nbformat.read(BOOK, as_version=4)
        return nbclient.NotebookClient(book, timeout=120, resources=resources).execute()


def result(book, name):
    """Return the data of what the cell of this id displays as its result."""
    (cell,) = [cell for cell in book.cells if cell.id == name]
    (output,) = [output for output in cell.outputs if output.output_type == "execute_result"]
    return output.data


def test_entities_are_found_as_training_goes_on(executed):
    first, *_, last = ast.literal_eval(result(executed, "train")["text/plain"])
    assert first < 0.3
    assert last > 0.8


def test_sentences_are_shown_with_their_entities(executed):
    gold, found = (result(executed, name)["text/html"] for name in ("look", "found"))
    assert gold.count("<br>") == found.count("<br>") == 9
    assert gold.count("background:") > 8 + 2


def test_the_random_field_has_learned_what_follows_what(executed):
    assert ast.literal_eval(result(executed, "transitions")["text/plain"])["I-person"][2:] == "person"
