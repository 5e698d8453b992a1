"""Array kernels behind one interface, and the choice of a backend: numpy, oneDNN or CuPy."""

from __future__ import annotations

import os
import threading
from collections.abc import Callable

from dsinga.base.errors import UserError
from dsinga.base.registry import nearest
from dsinga.ops.attention_blocks import computes_in_blocks
from dsinga.ops.compiled.compiler import describe
from dsinga.ops.interface import Ops
from dsinga.ops.sparse import SparseRows
from dsinga.ops.types import Array, AsyncCopy, Pair
from dsinga.ops.update import Update

__all__ = [
    "BACKENDS", "Array", "AsyncCopy", "Ops", "Pair", "SparseRows", "Update", "computes_in_blocks", "describe_kernels",
    "get_ops",
]  # fmt: skip


def _numpy() -> Ops:
    from dsinga.ops.numpy.numpy_ops import NumpyOps

    return NumpyOps()


def _onednn() -> Ops:
    from dsinga.ops.onednn.onednn_ops import OnednnOps

    return OnednnOps()


def _cupy() -> Ops:
    from dsinga.addons.gpu.cupy.cupy_ops import CupyOps

    return CupyOps()


BACKENDS: dict[str, Callable[[], Ops]] = {"onednn": _onednn, "numpy": _numpy, "cupy": _cupy}
"""Factories of the backends by name, the default first; each raises UserError, in one sentence, if it cannot load here.

The numpy backend always loads, so cupy, which comes after it, is used only on request.
"""

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
