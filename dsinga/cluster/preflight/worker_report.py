"""Reports what a Dask worker has for a run: kernels, the user's classes and stores; the process may lack dsinga.

The driver sends this file's source, so it imports only the standard library, and works in other versions of Python.
"""

from __future__ import annotations

import functools
import importlib
import os
import pickle
import sys
from collections.abc import Mapping
from importlib import metadata
from typing import Any

# What a run imports first on a Dask worker: a missing dependency shows here.
MODULES = ("dsinga.cluster.on_workers.tasks", "dsinga.cluster.on_workers.server_actor")
ONEDNN_AND_NUMBA = "onednn with numba"  # where numba's loops take the place of kernels with other last bits
# Packages that compute, or with objects that travel between processes.
PACKAGES = ("dask", "distributed", "cloudpickle", "msgpack", "tornado", "toolz", "numpy", "zarr")


def report(
    version: str, objects: Mapping[str, bytes], stores: Mapping[str, tuple[bytes, Any]], computes: bool
) -> dict[str, Any]:
    """Report the kernels, objects and stores of this process that a run needs, as plain values.

    Args:
        version: the driver's version of dsinga.
        objects: pickled objects, possibly of users' classes, by their names in errors.
        stores: by location of records, the pickled source and its facts (:func:`describe`) in the driver.
        computes: whether the process computes and so needs kernels.

    Returns:
        ``python`` (the version), ``executable``, ``packages`` (versions by name), ``dsinga`` (the version, or None) and
        ``kernels`` (the backend's name, or ONEDNN_AND_NUMBA). Troubles in words, or "": ``import`` (why dsinga cannot
        be imported), ``no_kernels``, ``no_onednn``, ``no_bf16``, and ``objects`` and ``stores`` by name. If dsinga is
        missing or another version, only the existence of stores with local paths is checked.
    """
    answer: dict[str, Any] = {
        "python": "{}.{}".format(*sys.version_info),
        "executable": sys.executable,
        "packages": {},
        "dsinga": None,
        "import": "",
        "kernels": "",
        "no_kernels": "",
        "no_onednn": "",
        "no_bf16": "",
        "objects": {},
        "stores": {},
    }
    try:
        answer["dsinga"] = getattr(importlib.import_module("dsinga"), "__version__", None)
    except Exception as error:
        answer["import"] = "" if getattr(error, "name", "") == "dsinga" else _text(error)
    if answer["dsinga"] == version:
        try:
            for module in MODULES:
                importlib.import_module(module)
        except Exception as error:
            answer["import"] = _text(error)
    if answer["dsinga"] != version or answer["import"]:
        answer["packages"] = versions()
        answer["stores"] = {path: _path_trouble(path) for path in stores}
        return answer
    # What is executed here is forgotten after the report; the module that this dsinga has keeps the versions.
    answer["packages"] = importlib.import_module("dsinga.cluster.preflight.worker_report").versions()
    if computes:
        answer.update(_kernels())
    answer["objects"] = {name: _load_trouble(pickled) for name, pickled in objects.items()}
    answer["stores"] = {name: _store_trouble(*store) for name, store in stores.items()}
    return answer


def describe(source: Any) -> tuple[int, tuple[int, ...], str]:
    """Return the facts about records on which processes must agree: their number, shape, and digest if known."""
    return len(source), tuple(source.shape), getattr(source, "digest", "")


@functools.cache
def versions() -> dict[str, str]:
    """Return the versions of installed packages that should be equal in all processes."""
    installed = {}
    for package in PACKAGES:
        try:
            installed[package] = metadata.version(package)
        except Exception:  # not installed, or damaged
            continue
    return installed


def _text(error: BaseException) -> str:
    """Return an error's text without dsinga's remedy, which is for the driver's process."""
    if type(error).__module__ == "dsinga.base.errors":
        return str(error).partition(";")[0]
    return f"{type(error).__name__}: {error}"


def _kernels() -> dict[str, str]:
    """Return this process's kernels by name, or why it has none, and why it lacks oneDNN or bfloat16."""
    ops = importlib.import_module("dsinga.ops")
    try:
        kernels = ops.get_ops()
    except Exception as error:
        return {"no_kernels": str(error)}
    answer = {"kernels": kernels.name, "no_bf16": kernels.lacks_bf16()}
    if kernels.name == "onednn" and importlib.import_module("dsinga.ops.onednn.choices").has_wide_loops():
        answer["kernels"] = ONEDNN_AND_NUMBA
    if kernels.name == "numpy" and not os.environ.get("DSINGA_OPS"):
        try:
            ops.get_ops("onednn")
        except Exception as error:
            answer["no_onednn"] = str(error)
    return answer


def _load_trouble(pickled: bytes) -> str:
    try:
        pickle.loads(pickled)
    except Exception as error:
        return _text(error)
    return ""


def _store_trouble(pickled: bytes, facts: Any) -> str:
    """Return why this process cannot read records, or how they differ from the driver's, or ""."""
    try:
        source = pickle.loads(pickled)
        if describe(source) != facts:
            return f"it has {_describe(describe(source))}, the driver {_describe(facts)}"
        # A number that is not finite is refused where it is read for training, with its row.
        getattr(source, "allowing_nonfinite", lambda: source)().read([0])
    except Exception as error:
        return _text(error)
    return ""


def _describe(facts: Any) -> str:
    count, shape, digest = facts
    return f"{count} records of shape {tuple(shape)}" + (f" with digest {digest[:8]}" if digest else "")


def _path_trouble(path: str) -> str:
    if os.path.isabs(path) and not os.path.exists(path):
        return "there is nothing there"
    return ""
