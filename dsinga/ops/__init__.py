"""Array kernels behind one interface (numpy, oneDNN, GPU), and the choice of a backend by name."""

from __future__ import annotations

import functools
import os
import threading
from collections.abc import Callable
from typing import NamedTuple

from dsinga.base.errors import UserError
from dsinga.base.registry import find, lookup, nearest
from dsinga.ops.interface import Capture, Ops
from dsinga.ops.layout import computes_in_blocks
from dsinga.ops.sparse import SparseRows
from dsinga.ops.types import Array, AsyncCopy, Pair
from dsinga.ops.update import Update

__all__ = [
    "BACKENDS", "Array", "AsyncCopy", "Capture", "Ops", "Pair", "Processor", "SparseRows", "Update",
    "computes_in_blocks", "cpu_ops", "describe_kernels", "get_ops",
]  # fmt: skip


def _create(name: str) -> Ops:
    ops: Ops = lookup("backend", name).create()
    return ops


BACKENDS: dict[str, Callable[[], Ops]] = {
    name: functools.partial(_create, name) for name in ("onednn", "numpy", "cupy")
}
"""Functions that create the backends by name, the default first; each raises UserError if it cannot.

The numpy backend always loads; later ones are used on request. Other distributions add theirs as entry points.
"""

_loaded: dict[str, Ops] = {}
_lock = threading.Lock()


def get_ops(name: str | None = None) -> Ops:
    """Return the backend ``name``, one instance for all threads of the process.

    The environment variable ``DSINGA_OPS`` overrides ``name``; the default is the first that loads. Raises UserError
    for an unknown name, or if the backend cannot load.
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
    """Describe this process's backend and compiled loops, for version and bug reports."""
    from dsinga.ops.compiled.compiler import describe

    try:
        return f"{get_ops().describe()}; {describe()}"
    except UserError as error:
        return str(error)


def _load(name: str, origin: str = "") -> Ops:
    if name not in BACKENDS and find("backend", name) is None:
        known = ", ".join(sorted(BACKENDS))
        raise UserError(f"there is no kernel backend {name!r}{origin}{nearest(name, BACKENDS)} (known: {known})")
    with _lock:
        if name not in _loaded:
            _loaded[name] = BACKENDS.get(name, functools.partial(_create, name))()
        return _loaded[name]


class Processor(NamedTuple):
    """The processor of one worker: its process's GPU ``device`` or, if None, ``threads`` CPU cores."""

    threads: int
    device: int | None = None
    precision: str = "float32"

    def ops(self) -> Ops:
        """Create the kernels for this worker."""
        if self.device is None:
            return cpu_ops(self.precision)
        return get_ops("cupy").for_worker(self.device, self.precision)


def cpu_ops(precision: str) -> Ops:
    """Return CPU kernels for a precision ("float32", "bf16"); "tf32" becomes float32."""
    return get_ops().for_worker(precision="float32" if precision == "tf32" else precision)
