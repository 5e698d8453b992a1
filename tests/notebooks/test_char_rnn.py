"""The notebook in which a net learns to write, from a fresh kernel, with fewer steps than a person would take."""

from pathlib import Path

import nbclient
import nbformat
import pytest
from notebook_cells import outputs, value

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
