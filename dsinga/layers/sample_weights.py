"""Sample weights: an optional last source of a loss, with a number that multiplies the loss of each row.

With weights w the loss is Σ wᵢ·lᵢ / B, where lᵢ is the loss of row i and B the rows of the global batch, whatever the
weights add up to. A metric that counts right predictions is their weighted share, Σ wᵢ·rightᵢ / Σ wᵢ, as in
scikit-learn.
"""

from __future__ import annotations

import math

import numpy as np

from dsinga.layers.base import Array, Arrays, Layer, as_text
from dsinga.ops import Ops


def check_weights(layer: Layer, position: int) -> None:
    """Raise UserError unless the source at ``position``, if there is one, has one number a row: (B,) or (B, 1)."""
    if len(layer.source_shapes) <= position:
        return
    rows, shape = layer.source_shapes[0][0], layer.source_shapes[position]
    if shape[0] != rows or math.prod(shape) != rows:
        raise layer.fail(
            f"takes one weight for each of {rows} rows from {layer.source_name(position)}, which gives "
            f"{as_text(shape)}; give it records that are one number",
            field="srclayers",
        )


def weights_of(sources: Arrays, position: int, ops: Ops) -> Array | None:
    """Return the weights (B,) as a float array of the backend, None for a loss without weights."""
    if len(sources) <= position:
        return None
    weights = sources[position]
    if weights.dtype.kind != "f":  # integers, as codes, stay in host memory
        weights = ops.asarray(np.asarray(weights, np.float32))
    return weights.reshape(len(weights))


def weighted_sum(rows: Array, weights: Array, scale: float = 1.0) -> Array:
    """Return Σ wᵢ·rowsᵢ·scale in float64, a number of the backend."""
    return (rows * weights).sum(dtype=np.float64) * scale


def weighted_rows(matrix: Array, weights: Array | None) -> Array:
    """Return a matrix (B, n) with each row times its weight; the matrix itself without weights."""
    return matrix if weights is None else matrix * weights[:, None].astype(matrix.dtype, copy=False)


def gradient_of_weights(rows: Array, factor: float, like: Array) -> Array:
    """Return the gradient for the weights, ``rows`` (B,) times ``factor``, in the shape and dtype of ``like``."""
    return (rows * factor).astype(like.dtype, copy=False).reshape(like.shape)


def hits_by_row(scores: Array, labels: Array, topk: int, ops: Ops) -> Array:
    """Return whether the label of each row is among the ``topk`` highest of ``scores`` (B, K), as :meth:`Ops.hits`."""
    xp = ops.xp
    of_labels = scores[xp.arange(len(labels)), labels][:, None]
    earlier = xp.arange(scores.shape[1]) < labels[:, None]
    above = (scores > of_labels) | ((scores == of_labels) & earlier)
    return above.sum(axis=1) < topk
