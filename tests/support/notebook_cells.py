"""Running a notebook in a fresh kernel, and reading the outputs of its cells."""

import ast
import atexit
import contextlib
import functools
import os
import tempfile
from pathlib import Path

import nbclient
import nbformat
import pytest
from jupyter_client.kernelspec import KernelSpec, KernelSpecManager
from jupyter_client.manager import AsyncKernelManager
from traitlets import Instance

from tests.support.command_server import PRELOAD, command_server

ROOT = Path(__file__).parents[2]


IMPORTED = [
    *(*PRELOAD, "ipykernel.kernelapp", "matplotlib.pyplot", "dsinga.estimators", "dask.array"),
    "distributed.dashboard.scheduler",
]


@functools.cache
def kernel_command():
    """Start the process from which kernels are forked, until this process ends; return the command of a kernel."""
    stack = contextlib.ExitStack()
    atexit.register(stack.close)
    folder = Path(stack.enter_context(tempfile.TemporaryDirectory()))
    # The kernel sets it, too, before a cell imports Matplotlib.
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "MPLBACKEND": "module://matplotlib_inline.backend_inline"}
    words = stack.enter_context(command_server(folder, environment, IMPORTED))
    return [*words, "ipykernel_launcher", "-f", "{connection_file}"]


class ForkedKernels(KernelSpecManager):
    """Describes the kernel of Python that need not import the package anew."""

    def get_kernel_spec(self, kernel_name):
        """Return the description of the kernel, whatever its name."""
        return KernelSpec(argv=kernel_command(), display_name=kernel_name, language="python")


class ForkedKernelManager(AsyncKernelManager):
    """Starts and ends such a kernel."""

    kernel_spec_manager = Instance(ForkedKernels, ())


def execute(name, folder, timeout=90, environment=(), changed=None):
    """Run notebooks/``name``.ipynb in ``folder``, an empty one, beside the data sets, and return it.

    ``timeout`` is that of a cell, ``environment`` has names of variables to set to ``folder``, ``changed`` functions
    from the old source of a cell to the new one, by its id. Raises CellExecutionError if a cell fails.
    """
    (folder / "datasets").symlink_to(ROOT / "datasets")
    place = (folder / "notebooks" / name).parent
    place.mkdir(parents=True)
    source = ROOT / "notebooks" / f"{name}.ipynb"
    for module in source.parent.glob("*.py"):
        (place / module.name).symlink_to(module)
    book = nbformat.read(source, as_version=4)
    for key, change in (changed or {}).items():
        (cell,) = [cell for cell in book.cells if cell.id == key]
        cell.source = change(cell.source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("PYTHONPATH", str(ROOT))
        # Else each Dask worker of a notebook would import Dask anew.
        patch.setenv("DASK_DISTRIBUTED__WORKER__MULTIPROCESSING_METHOD", "forkserver")
        for variable in environment:
            patch.setenv(variable, str(folder))
        resources = {"metadata": {"path": str(place)}}
        options = {"timeout": timeout, "resources": resources, "kernel_manager_class": ForkedKernelManager}
        return nbclient.NotebookClient(book, **options).execute()


def outputs(book, name):
    (cell,) = [cell for cell in book.cells if cell.id == name]
    return cell.outputs


def streams(book):
    """Return what cells print or warn, by the id of the cell."""
    outputs = [(cell.id, output) for cell in book.cells for output in cell.get("outputs", ())]
    return [(name, output) for name, output in outputs if output.output_type == "stream"]


def shown(book, kind, names):
    """Whether each of these cells displays something of a MIME type first."""
    return all([output.data[kind] for output in outputs(book, name)][0] for name in names.split())


def result(book, name):
    """Return the result that the cell with the id ``name`` displays, by MIME type."""
    (output,) = [output for output in outputs(book, name) if output.output_type == "execute_result"]
    return output.data


def value(book, name):
    """Return the Python literal that the cell with the id ``name`` displays as its result."""
    return ast.literal_eval(result(book, name)["text/plain"])
