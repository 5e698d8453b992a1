"""The Python API: train, evaluate, predict and plan, on a given Dask cluster or in this process."""

from dsinga.addons.search.result import SearchResult
from dsinga.addons.search.search import search
from dsinga.api.clients import ClusterSource, current_client, find_cluster, open_client
from dsinga.api.inference import (
    evaluate,
    evaluate_fields,
    generate,
    predict,
    predict_batches,
    predict_lazily,
    predict_with_labels,
    translate,
)
from dsinga.api.jobs_with_data import roots, wanted_workers, with_workers
from dsinga.api.learning_rate import find_learning_rate
from dsinga.api.planning import build_net, compare_with_plan, partition_net, plan
from dsinga.api.result import Result
from dsinga.api.run import Run, submit
from dsinga.api.training import train
from dsinga.layers.metrics.forecast_scores import ensemble_scores

__all__ = [
    "ClusterSource",
    "Result",
    "Run",
    "SearchResult",
    "build_net",
    "compare_with_plan",
    "current_client",
    "ensemble_scores",
    "evaluate",
    "evaluate_fields",
    "find_cluster",
    "find_learning_rate",
    "generate",
    "open_client",
    "partition_net",
    "plan",
    "predict",
    "predict_batches",
    "predict_lazily",
    "predict_with_labels",
    "roots",
    "search",
    "submit",
    "train",
    "translate",
    "wanted_workers",
    "with_workers",
]
