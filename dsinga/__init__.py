"""dsinga trains neural networks, described layer by layer as in Apache SINGA, on a Dask cluster, from zarr arrays."""

from typing import TYPE_CHECKING, Any

from dsinga.errors import RunError, UserError
from dsinga.registry import register
from dsinga.version import __version__

if TYPE_CHECKING:
    from dsinga.api import (
        Result,
        build_net,
        evaluate,
        find_learning_rate,
        generate,
        partition_net,
        plan,
        predict,
        predict_batches,
        predict_with_labels,
        train,
    )
    from dsinga.job import Job, load, loads

__all__ = [
    "Job",
    "Result",
    "RunError",
    "UserError",
    "build_net",
    "evaluate",
    "find_learning_rate",
    "generate",
    "load",
    "loads",
    "partition_net",
    "plan",
    "predict",
    "predict_batches",
    "predict_with_labels",
    "register",
    "train",
]

_JOB = ("Job", "load", "loads")
_API = (
    "Result",
    "build_net",
    "evaluate",
    "find_learning_rate",
    "generate",
    "partition_net",
    "plan",
    "predict",
    "predict_batches",
    "predict_with_labels",
    "train",
)
_MODULES = dict.fromkeys(_JOB, "dsinga.job") | dict.fromkeys(_API, "dsinga.api")


def __getattr__(name: str) -> Any:
    """Import a public name when it is first used, so that a process imports only what it needs."""
    import importlib

    if name in ("extensions", "models", "nn"):
        return importlib.import_module(f"dsinga.{name}")
    if name not in _MODULES:
        raise AttributeError(f"module 'dsinga' has no attribute {name!r}")
    return getattr(importlib.import_module(_MODULES[name]), name)
