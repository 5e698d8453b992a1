"""Images with their channels last, as a model's inputs say: its labels and outputs that are images have them last, too.

Inside, features are (B, C, H, W): labels and outputs get their axes in another order where they come in and go out.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.data.array_kinds import is_dask_collection
from dsinga.ops.layout import LAST


def labels_first(y: Any) -> Any:
    """Return labels that are images (n, H, W, C), or volumes, with the channels first; others as they are.

    ``y`` may be a list of those of several outputs, or a dict. Dask arrays stay lazy.
    """
    if isinstance(y, dict):
        return {name: labels_first(labels) for name, labels in y.items()}
    if isinstance(y, list) and y and all(hasattr(labels, "ndim") for labels in y):
        return [labels_first(labels) for labels in y]
    if getattr(y, "ndim", 0) not in LAST:
        return y
    return np.moveaxis(y if is_dask_collection(y) else np.asarray(y), -1, 1)


def outputs_last(outputs: Any) -> Any:
    """Return outputs, an array or a list, with the channels of images and volumes last."""
    if isinstance(outputs, list):
        return [outputs_last(output) for output in outputs]
    return np.moveaxis(outputs, 1, -1) if outputs.ndim in LAST else outputs
