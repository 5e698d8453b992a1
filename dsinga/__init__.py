"""dsinga trains neural networks on a laptop or a Dask cluster, straight from numpy, zarr, xarray and dask arrays."""

from typing import TYPE_CHECKING

from dsinga.base.arguments import missing_names
from dsinga.base.components import lazy_names
from dsinga.base.errors import Cancelled, ClusterNotReady, RunError, UserError
from dsinga.base.registry import register
from dsinga.base.version import __version__

if TYPE_CHECKING:
    # "import dsinga.nn as nn" exports no name to type checkers, "nn as nn" does.
    from dsinga import convert as convert
    from dsinga import data as data
    from dsinga import estimators as estimators
    from dsinga import extensions as extensions
    from dsinga import models as models
    from dsinga import nn as nn
    from dsinga import rl as rl
    from dsinga.addons.fields.prediction.evaluate import evaluate_fields
    from dsinga.addons.fields.records.field_windows import windows
    from dsinga.addons.pictures import plotting as plotting
    from dsinga.addons.planner.planning import compare_with_plan, plan
    from dsinga.addons.probabilities.forecast_scores import ensemble_scores
    from dsinga.addons.search.learning_rate import find_learning_rate
    from dsinga.addons.search.ranges import SearchRange
    from dsinga.addons.search.result import SearchResult
    from dsinga.addons.search.search import search
    from dsinga.addons.tables.records import table
    from dsinga.addons.text.generation import generate
    from dsinga.addons.text.translation import translate
    from dsinga.api import Result, build_net, evaluate, predict, predict_batches, predict_with_labels, train
    from dsinga.cluster.background import Run, submit
    from dsinga.cluster.lazy_prediction import predict_lazily
    from dsinga.cutting.nets import partition_net
    from dsinga.job import Job, load, loads

__all__ = [
    "Cancelled", "ClusterNotReady", "Job", "Result", "Run", "RunError", "SearchRange", "SearchResult", "UserError",
    "build_net", "compare_with_plan", "ensemble_scores", "evaluate", "evaluate_fields", "find_learning_rate",
    "generate", "load", "loads",
    "partition_net", "plan", "predict", "predict_batches", "predict_lazily", "predict_with_labels", "register",
    "search", "submit", "table", "train", "translate", "windows",
]  # fmt: skip

INSTEAD = {
    **dict.fromkeys(("Trainer", "LightningModule", "Sequential", "Model", "fit"), "a model of dsinga.nn has fit"),
    "keras": "write from dsinga import nn as keras",
    "read_metrics": "write dsinga.monitor.read_metrics(path)",
}
if not TYPE_CHECKING:
    __getattr__, __dir__ = lazy_names(__name__, missing_names(__name__, __all__, instead=INSTEAD))
