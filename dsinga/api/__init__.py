"""The Python API for jobs: train, evaluate and predict, on a Dask cluster or in this process."""

from typing import TYPE_CHECKING

from dsinga.base.components import lazy_names

if TYPE_CHECKING:
    from dsinga.api.execution import train
    from dsinga.api.inference import evaluate, predict, predict_batches, predict_with_labels
    from dsinga.api.jobs_with_data import Result, roots, wanted_workers, with_workers
    from dsinga.api.nets import build_net
else:
    __getattr__, __dir__ = lazy_names(__name__)

__all__ = [
    "Result", "build_net", "evaluate", "predict", "predict_batches",
    "predict_with_labels", "roots", "train", "wanted_workers", "with_workers",
]  # fmt: skip
