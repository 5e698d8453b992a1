"""The base class of losses that compare two sources, and sample weights from an optional last source.

With weights w the loss is Σ wᵢ·lᵢ / B, where lᵢ is the loss of row i; the sum of weights does not matter. With a weight
for each step or point of a row, wᵢ·lᵢ is Σ wᵢⱼ·lᵢⱼ. A metric that counts right predictions is their weighted share, Σ
wᵢ·rightᵢ / Σ wᵢ, as in scikit-learn.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from typing import Any, ClassVar

import numpy as np

from dsinga.job import LayerConf
from dsinga.layers.interface.checks import shape_text
from dsinga.layers.interface.context import RecordInfo
from dsinga.layers.interface.declarations import Cut
from dsinga.layers.interface.layer import Array, Arrays, Layer, Shape
from dsinga.ops import Ops

WEIGHTS = 2  # the position of the source with weights


def check_weights(layer: Layer, position: int, points: Shape = ()) -> None:
    """Raise UserError unless the optional source of sample weights has one number a row: (B,) or (B, 1).

    With the shape ``points`` of a row, it may have one number for each point instead.
    """
    if len(layer.source_shapes) <= position:
        return
    rows, shape = layer.source_shapes[0][0], layer.source_shapes[position]
    if points and shape in ((rows, *points), (rows, 1, *points)):
        return
    if shape[0] != rows or math.prod(shape) != rows:
        raise layer.fail(
            f"takes one weight for each of {rows} rows from {layer.source_name(position)}, which gives "
            f"{shape_text(shape)}; give it records that are one number"
            + (f", or {shape_text(points)} for a weight for each point" if points else ""),
            field="srclayers",
        )


def check_rows(layer: Layer, index: int, size: int, what: str) -> None:
    """Raise UserError unless source ``index`` gives ``size`` numbers for each row of the first source."""
    rows, shape = layer.source_shapes[0][0], layer.source_shapes[index]
    expected: Shape = (rows, size)
    if shape[0] != rows or math.prod(shape[1:]) != size:
        raise layer.fail(
            f"takes {what} {shape_text(expected)} from {layer.source_name(index)}, which gives {shape_text(shape)}",
            field="srclayers",
        )


def weights_of(sources: Arrays, position: int, ops: Ops) -> Array | None:
    """Return the sample weights as a float array, (B,) or (B, n) for n points of a row, or None."""
    if len(sources) <= position:
        return None
    weights = sources[position]
    if weights.dtype.kind != "f":  # integers, as codes, stay in host memory
        weights = ops.asarray(np.asarray(weights, np.float32))
    return weights.reshape(len(weights) if weights.size == len(weights) else (len(weights), -1))


def weighted_sum(rows: Array, weights: Array | None, scale: float = 1.0) -> Array:
    """Sum rows' losses times their weights, if any, Σ wᵢ·rowsᵢ·scale, in float64."""
    return (rows if weights is None else rows * weights).sum(dtype=np.float64) * scale


def in_parts(matrix: Array, weights: Array) -> Array:
    """Split rows (B, n) into a part for each weight (B, T), as (B, T, n/T); unchanged for weights (B,)."""
    return matrix.reshape(*weights.shape, matrix.shape[1] // math.prod(weights.shape[1:]))


def weighted_rows(matrix: Array, weights: Array | None) -> Array:
    """Multiply each row of a matrix (B, n), or each of T equal parts of it, by its weight, if any."""
    if weights is None:
        return matrix
    weights = weights[..., None].astype(matrix.dtype, copy=False)
    if weights.ndim == 2:
        return matrix * weights
    return (in_parts(matrix, weights[..., 0]) * weights).reshape(matrix.shape)


def gradient_of_weights(rows: Array, factor: float, like: Array) -> Array:
    """Return the gradient for the weights, ``rows`` (B,) times ``factor``, shaped as ``like``."""
    return (rows * factor).astype(like.dtype, copy=False).reshape(like.shape)


class PairLoss(Layer):
    """Base of losses that compare two sources with rows of equal lengths; the feature is (B, n).

    A subclass that ``predicts_several`` has several numbers for each target number (:meth:`forecast_form`). One that
    ``weighs_steps`` also accepts weights (B, T) for targets (B, T, ...), and (B, n) for (B, n).
    """

    weighs_steps: ClassVar[bool] = False
    predicts_several: ClassVar[bool] = False
    source_count = 2
    optional_sources = 1
    cut = Cut(gathered_because="reports the loss of whole rows")
    is_loss = True
    metric_names: tuple[str, ...] = ("loss",)

    def __init__(self, conf: LayerConf, source_shapes: Sequence[Shape], info: RecordInfo | None = None):
        super().__init__(conf, source_shapes, info)
        self.check_sizes()
        first = self.source_shapes[0]
        steps = self.source_shapes[1] if self.predicts_several else first
        check_weights(self, WEIGHTS, steps[1:2] if self.weighs_steps and len(steps) in (2, 3) else ())
        self.shape = (first[0], math.prod(first[1:]))

    @classmethod
    def label_example(cls, settings: Mapping[str, Any], shape: Shape, known: Shape | None = None) -> np.ndarray:
        shape = shape[:1] and (shape[0] + bool(settings.get("weighted")), *shape[1:])
        return np.zeros((1, *(() if shape == (1,) else shape)), np.float32)  # metrics of classes take no columns

    @classmethod
    def forecast_form(cls, arguments: Mapping[str, Any]) -> Any:
        """Return how to read predictions with several numbers, such as quantiles, for each target number, or None."""
        return None

    def check_sizes(self) -> None:
        """Raise UserError unless both sources have equally many rows of equal length."""
        first, second = self.source_shapes[:2]
        fit = first[0] == second[0] and math.prod(first) == math.prod(second)
        self.expect_alike(fit, "give both as many rows, and rows as long")
