"""Running a notebook in a fresh kernel, and reading the outputs of its cells."""

import ast
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]


def execute(name, folder, timeout=90, environment=(), changed=None):
    """Run the notebook ``name`` in ``folder``/notebooks, beside the data sets of the repository, and return it.

    Args:
        name: the file's path below notebooks/, without its suffix.
        folder: an empty folder, which receives the files that the notebook writes.
        timeout: seconds for a cell.
        environment: names of environment variables to set to ``folder``.
        changed: functions from the old source of a cell to the new one, by the id of the cell.

    Raises CellExecutionError, with the traceback, if a cell fails.
    """
    (folder / "datasets").symlink_to(ROOT / "datasets")
    place = (folder / "notebooks" / name).parent
    place.mkdir(parents=True)
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for key, change in (changed or {}).items():
        (cell,) = [cell for cell in book.cells if cell.id == key]
        cell.source = change(cell.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for variable in environment:
            patch.setenv(variable, str(folder))
        resources = {"metadata": {"path": str(place)}}
        return nbclient.NotebookClient(book, timeout=timeout, resources=resources).execute()


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def result(book, name):
    """Return the result that the cell with the id ``name`` displays, by MIME type."""
    (output,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return output.data


def value(book, name):
    """Return the Python literal that the cell with the id ``name`` displays as its result."""
    return ast.literal_eval(result(book, name)["text/plain"])
