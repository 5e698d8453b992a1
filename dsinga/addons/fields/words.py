"""Metrics of ``dsinga.nn`` for fields."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.base.errors import UserError
from dsinga.base.registry import register
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.metrics import MetricLayer


@register("word", "FieldError")
@checked
def FieldError(channel: Sequence[str] = (), climatology: Any = None) -> MetricLayer:
    """Metrics "rmse", "mae" and "bias" of fields, and "anomaly_correlation" with a climatology (kFieldError).

    The loss says whether points are masked or weighted.

    Args:
        channel: the names of the channels of the labels, for metrics of each, such as "rmse_t2m".
        climatology: the reference of anomalies: a number for each channel, (C,), or an array (C, *space); for one
            channel also a number, or (*space).

    Raises:
        UserError: the climatology is no array of numbers, or has NaN.
    """
    settings: dict[str, Any] = {"channel": list(channel)} if channel else {}
    if climatology is not None:
        numbers = np.asarray(climatology)
        if numbers.dtype.kind not in "iuf" or not np.isfinite(numbers).all():
            raise UserError("FieldError: climatology has a number for each channel, or for each of its points; no NaN")
        settings["climatology"] = numbers.astype(np.float64).ravel().tolist()
    return MetricLayer("kFieldError", "fields", "fielderror_conf", settings)
