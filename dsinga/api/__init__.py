"""The Python API: train, evaluate and predict, on a given Dask cluster or in this process."""

from typing import TYPE_CHECKING

from dsinga.base.lazy_names import lazy_names

if TYPE_CHECKING:
    from dsinga.api.clients import ClusterSource, current_client, find_cluster, open_client
    from dsinga.api.inference import (
        evaluate,
        evaluate_fields,
        predict,
        predict_batches,
        predict_lazily,
        predict_with_labels,
    )
    from dsinga.api.jobs_with_data import roots, wanted_workers, with_workers
    from dsinga.api.nets import build_net, partition_net
    from dsinga.api.result import Result
    from dsinga.api.run import Run, submit
    from dsinga.api.training import train
    from dsinga.layers.metrics.forecast_scores import ensemble_scores
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "ClusterSource", "Result", "Run", "build_net", "current_client",
    "ensemble_scores", "evaluate", "evaluate_fields", "find_cluster", "open_client",
    "partition_net", "predict", "predict_batches", "predict_lazily", "predict_with_labels", "roots",
    "submit", "train", "wanted_workers", "with_workers",
]  # fmt: skip
