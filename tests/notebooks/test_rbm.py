"""The notebook about restricted Boltzmann machines, run in a short form: from a fresh kernel, beside the data sets."""

import re
from pathlib import Path

import nbclient
import nbformat
import pytest
from notebook_cells import outputs, value

ROOT = Path(__file__).parents[2]
BOOK = ROOT / "notebooks" / "rbm.ipynb"
STEPS = 320


@pytest.fixture(scope="module")
def book():
    return nbformat.read(BOOK, as_version=4)


@pytest.fixture(scope="module")
def executed(book, tmp_path_factory):
    """The notebook after a run of fewer steps, in a folder that has the data sets beside it."""
    folder = tmp_path_factory.mktemp("checkout")
    (folder / "datasets").symlink_to(ROOT / "datasets")
    (folder / "notebooks").mkdir()
    short = nbformat.from_dict(book)
    (parameters,) = [cell for cell in short.cells if cell.id == "parameters"]
    parameters.source = f"{parameters.source}\nSTEPS = {STEPS}"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        patch.setenv("TMPDIR", str(folder))
        resources = {"metadata": {"path": str(folder / "notebooks")}}
        return nbclient.NotebookClient(short, timeout=90, resources=resources).execute()


def test_the_first_machine_learns(executed):
    errors = value(executed, "train")
    assert len(errors) == 5
    assert errors[-1] < 0.4 * errors[0]


def test_fine_tuning_learns(executed):
    steps, losses = zip(*value(executed, "tune"), strict=True)
    assert (steps[0], steps[-1]) == (0, 4 * STEPS)
    assert losses[-1] < 0.8 * losses[0]


def test_the_code_keeps_more_than_principal_components(executed):
    errors, same = value(executed, "compare"), value(executed, "neighbours")
    assert errors["auto-encoder"] < errors["principal components"]
    assert same["auto-encoder"] > same["principal components"]


@pytest.mark.parametrize("name", ["first", "stack"])
def test_nets_show_themselves(executed, name):
    (net,) = [output for output in outputs(executed, name) if output.output_type == "execute_result"]
    assert "<svg" in net.data["text/html"]


@pytest.mark.parametrize("name", ["filters", "dream", "rebuilt", "code"])
def test_pictures_are_drawn(executed, name):
    assert [output.data["image/png"] for output in outputs(executed, name)][0]


def test_no_cell_complains_but_of_biases_left_out(executed):
    for cell in executed.cells:
        said = "".join(output.text for output in cell.get("outputs", ()) if output.output_type == "stream")
        lines = [line for line in said.splitlines() if line]
        assert all(re.match(r"the net has no params b\d1 of .*: they are left out", line) for line in lines), lines
        assert bool(lines) == (cell.id == "stack")
