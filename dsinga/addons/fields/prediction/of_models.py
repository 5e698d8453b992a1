"""Predicts Datasets for models of ``nn`` that were trained from windows."""

from __future__ import annotations

from typing import Any

from dsinga.base.registry import register
from dsinga.cluster.lazy_prediction import predict_lazily


@register("definition", "WindowDefinition.predict")
def predict_with_windows(job: Any, params: Any, layer: str, source: Any, **options: Any) -> Any:
    """Return the prediction of a Dataset as a lazy Dataset; ``options`` go to :func:`dsinga.predict_lazily`."""
    return predict_lazily(job, params, layer, source, **options)
