"""Array kernels behind one interface, and the choice of a backend by name."""

from __future__ import annotations

import functools
import importlib
import os
import threading
from collections.abc import Callable
from types import ModuleType

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.ops.attention_blocks import computes_in_blocks
from dsinga.ops.compiled.compiler import describe
from dsinga.ops.interface import Capture, Ops
from dsinga.ops.sparse import SparseRows
from dsinga.ops.types import Array, AsyncCopy, Pair
from dsinga.ops.update import Update

__all__ = [
    "BACKENDS", "Array", "AsyncCopy", "Capture", "Ops", "Pair", "SparseRows", "Update", "backend_module",
    "computes_in_blocks", "describe_kernels", "get_ops",
]  # fmt: skip


# The module of each backend, the default first: ``create_ops`` returns its kernels, or raises UserError, in one
# sentence, if they cannot load here. That of a backend of GPUs also chooses them; it loads where there is none.
MODULES = {
    "onednn": "dsinga.ops.onednn.onednn_ops",
    "numpy": "dsinga.ops.numpy.numpy_ops",
    "cupy": "dsinga.addons.gpu.backend",
}


def backend_module(name: str) -> ModuleType:
    """Return the module of a backend. Raises UserError where the add-on that has it is not installed."""
    try:
        return importlib.import_module(MODULES[name])
    except ModuleNotFoundError as error:
        if not MODULES[name].startswith(f"{error.name}"):
            raise
        raise UserError(f"the kernel backend {name!r} is of the add-on {error.name}, which is not installed") from error


def _create(name: str) -> Ops:
    ops: Ops = backend_module(name).create_ops()
    return ops


BACKENDS: dict[str, Callable[[], Ops]] = {name: functools.partial(_create, name) for name in MODULES}
"""Functions that create the backends, by name. The numpy backend always loads; those after it are used on request."""

_loaded: dict[str, Ops] = {}
_lock = threading.Lock()


def get_ops(name: str | None = None) -> Ops:
    """Return the backend ``name``: one instance for the process, which several threads may use.

    The environment variable ``DSINGA_OPS`` overrides ``name``. Without either, it is the first backend that loads.
    Raises UserError if the name is unknown, or if the named backend cannot load.
    """
    variable = os.environ.get("DSINGA_OPS")
    if variable:
        return _load(variable, " (from $DSINGA_OPS)")
    if name:
        return _load(name)
    for candidate in BACKENDS:
        try:
            return _load(candidate)
        except UserError:
            continue
    raise AssertionError("the numpy backend always loads")


def describe_kernels() -> str:
    """Return the backend of this process with its version, or why there is none, and which loops are compiled."""
    try:
        return f"{get_ops().describe()}; {describe()}"
    except UserError as error:
        return str(error)


def _load(name: str, origin: str = "") -> Ops:
    if name not in BACKENDS:
        known = ", ".join(sorted(BACKENDS))
        raise UserError(f"there is no kernel backend {name!r}{origin}{nearest(name, BACKENDS)} (known: {known})")
    with _lock:
        if name not in _loaded:
            _loaded[name] = BACKENDS[name]()
        return _loaded[name]
