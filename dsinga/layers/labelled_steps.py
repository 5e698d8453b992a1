"""The rows of a batch, or steps of its sequences, that have a label: what losses over large vocabularies compute."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from dsinga.layers.base import Array, Layer, Shape
from dsinga.layers.context import Context
from dsinga.layers.label import class_labels, integer_labels


def labels_and_places(layer: Layer, labels: Any, classes: int) -> tuple[np.ndarray, np.ndarray]:
    """Return the N labels (N,) of (B,) or (B, T) that are not the -1 after an end, and their flat indices (N,).

    Raises UserError for a label outside [0, ``classes``).
    """
    flat = integer_labels(layer, labels).reshape(-1)
    places = np.flatnonzero(flat >= 0) if np.ndim(labels) == 2 else np.arange(len(flat))
    return class_labels(layer, flat[places], classes), places


def rows_at(source: Array, places: np.ndarray, ctx: Context) -> Array:
    """Return the rows of (B, n), or steps of (B, T, n), with these flat indices, (N, n)."""
    flat = source.reshape(-1, source.shape[-1])
    return flat if len(places) == len(flat) else flat[ctx.ops.asarray(places)]


def spread(rows: Array, places: np.ndarray, shape: Shape, ctx: Context) -> Array:
    """Return ``rows`` (N, ...) in ``shape``, with zeros for the steps that have no label."""
    array = ctx.ops.xp.zeros((math.prod(shape[: len(shape) + 1 - rows.ndim]), *rows.shape[1:]), rows.dtype)
    array[ctx.ops.asarray(places)] = rows
    return array.reshape(shape)
