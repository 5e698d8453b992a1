"""dsinga trains neural networks on a laptop or a Dask cluster, straight from numpy, zarr, xarray and dask arrays."""

from typing import TYPE_CHECKING, Any

from dsinga.base.errors import Cancelled, ClusterNotReady, RunError, UserError
from dsinga.base.registry import register
from dsinga.base.version import __version__

if TYPE_CHECKING:
    from dsinga import convert as convert
    from dsinga import data as data
    from dsinga import estimators as estimators
    from dsinga import extensions as extensions
    from dsinga import models as models
    from dsinga import nn as nn
    from dsinga import rl as rl
    from dsinga.addons.planner.planning import compare_with_plan, plan
    from dsinga.addons.search.learning_rate import find_learning_rate
    from dsinga.addons.search.result import SearchResult
    from dsinga.addons.search.search import search
    from dsinga.api import (
        Result,
        Run,
        build_net,
        ensemble_scores,
        evaluate,
        evaluate_fields,
        generate,
        partition_net,
        predict,
        predict_batches,
        predict_lazily,
        predict_with_labels,
        submit,
        train,
        translate,
    )  # fmt: skip
    from dsinga.api import plotting as plotting
    from dsinga.data import windows
    from dsinga.job import Job, load, loads

__all__ = [
    "Cancelled", "ClusterNotReady", "Job", "Result", "Run", "RunError", "SearchResult", "UserError", "build_net",
    "compare_with_plan", "ensemble_scores", "evaluate", "evaluate_fields", "find_learning_rate", "generate", "load",
    "loads",
    "partition_net", "plan", "predict", "predict_batches", "predict_lazily", "predict_with_labels", "register",
    "search", "submit", "train", "translate", "windows",
]  # fmt: skip

# The module of each public name that is imported when it is first used.
_MODULES = dict.fromkeys(set(__all__) - globals().keys(), "dsinga.api")
_MODULES |= dict.fromkeys(("Job", "load", "loads"), "dsinga.job")
_MODULES |= {
    "SearchResult": "dsinga.addons.search.result",
    "compare_with_plan": "dsinga.addons.planner.planning",
    "find_learning_rate": "dsinga.addons.search.learning_rate",
    "plan": "dsinga.addons.planner.planning",
    "search": "dsinga.addons.search.search",
    "windows": "dsinga.data",
}
# Modules that users import, or reach as attributes.
_SUBMODULES = {name: f"dsinga.{name}" for name in ("convert", "data", "estimators", "extensions", "models", "nn", "rl")}
_SUBMODULES["plotting"] = "dsinga.api.plotting"


if not TYPE_CHECKING:  # type checkers know the names

    def __getattr__(name: str) -> Any:
        """Import a public name when it is first used, so that a process imports only what it needs."""
        import importlib

        if name in _MODULES:
            return getattr(importlib.import_module(_MODULES[name]), name)
        if name in _SUBMODULES:
            return importlib.import_module(_SUBMODULES[name])
        raise AttributeError(f"module 'dsinga' has no attribute {name!r}")


def __dir__() -> list[str]:
    """Return the public names, those not imported yet included, for completion by the Tab key."""
    return sorted([*__all__, "__version__", "__doc__", *_SUBMODULES])
