"""Running a notebook as a person would, from a fresh kernel, and what its cells have shown."""

import ast
from pathlib import Path

import nbclient
import nbformat
import pytest

ROOT = Path(__file__).parents[2]


def execute(name, folder, timeout=90, environment=(), changed=None):
    """Return the notebook ``name`` after a run in ``folder``/notebooks, beside the data sets of the repository.

    What it writes goes to ``folder``. ``environment`` are names of variables that are to hold ``folder``, ``changed``
    makes the new source of cells, by their id, of the old one. Raises CellExecutionError, with the traceback, where a
    cell fails.
    """
    (folder / "datasets").symlink_to(ROOT / "datasets")
    (folder / "notebooks").mkdir()
    book = nbformat.read(ROOT / "notebooks" / f"{name}.ipynb", as_version=4)
    for key, change in (changed or {}).items():
        (cell,) = [cell for cell in book.cells if cell.id == key]
        cell.source = change(cell.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        for variable in environment:
            patch.setenv(variable, str(folder))
        resources = {"metadata": {"path": str(folder / "notebooks")}}
        return nbclient.NotebookClient(book, timeout=timeout, resources=resources).execute()


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def result(book, name):
    """Return the data, by MIME type, of what the cell of this id displays as its result."""
    (shown,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return shown.data


def value(book, name):
    """Return the literal that the cell of this id displays as its result."""
    return ast.literal_eval(result(book, name)["text/plain"])
