"""Fully connected layers, dropout and flattening."""

from __future__ import annotations

import math
from typing import Any

from dsinga.nn.activations import activate, check_activation
from dsinga.nn.arguments import layer
from dsinga.nn.feature import Feature
from dsinga.nn.writer import LayerWriter, Write


@layer
def Dense(
    units: int,
    activation: str | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    transpose: bool = False,
) -> Write:
    """Fully connected layer with ``units`` outputs (kInnerProduct), and its activation.

    Of sequences (B, T, n) it computes each step, as in Keras. Images (B, C, H, W) are flattened. ``transpose`` keeps
    the weight as (inputs, units), which can share another layer's (units, inputs).
    """
    check_activation("Dense", activation)

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        rows = writer.rows(source)
        settings = {"num_output": units, "bias_term": use_bias, "transpose": transpose}
        inputs = rows[-1] if len(rows) == 2 else math.prod(rows)
        feature = writer.add(
            "kInnerProduct",
            innerproduct_conf=settings,
            per_step=True if len(rows) == 2 else None,
            inits={"weight": kernel_initializer, "bias": bias_initializer},
            fans={"weight": (inputs, units)},
        )
        return activate(writer, feature, activation)

    return write


@layer
def Dropout(rate: float, unit: str | None = None) -> Write:
    """In training sets a share ``rate`` of the units to 0 and scales the others (kDropout).

    ``unit`` is "kNumber" (the default), "kChannel" or "kRow".
    """
    return lambda writer: writer.add(
        "kDropout", dropout_conf={"dropout_ratio": rate, **({} if unit is None else {"unit": unit})}
    )


@layer
def SpatialDropout2D(rate: float) -> Write:
    """Dropout of whole channels of images (kDropout with unit kChannel)."""
    return lambda writer: writer.add("kDropout", dropout_conf={"dropout_ratio": rate, "unit": "kChannel"})


@layer
def Flatten() -> Write:
    """Makes each row a vector: no layer of the job, because layers that take vectors flatten their source."""

    def write(writer: LayerWriter) -> Feature:
        source = writer.source
        return source._replace(flat=source.shape is not None and len(source.shape) > 1, is_input=False)

    return write


@layer
def Identity() -> Write:
    """Passes on its source; no layer of the job."""
    return lambda writer: writer.source
