"""Normalisation of batches and of rows."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from dsinga.nn.arguments import layer
from dsinga.nn.convolution import refuse_channels_last
from dsinga.nn.feature import Feature
from dsinga.nn.writer import LayerWriter, Write


@layer
def BatchNormalization(momentum: float | None = None) -> Write:
    """Batch normalisation of each channel, axis 1 (kBM), with epsilon 1e-5.

    ``momentum`` is the share of the old running statistics, as in Keras; by default 0.9 (Keras: 0.99). A layer that is
    not trainable normalises with its running statistics in training, too, and does not move them.
    """

    def write(writer: LayerWriter) -> Feature:
        rows = writer.rows(writer.source)
        if len(rows) == 2:
            raise writer.fail("normalises channels, axis 1, which of sequences are steps; use nn.LayerNormalization")
        refuse_channels_last(writer)
        settings: dict[str, Any] = {} if momentum is None else {"momentum": round(1 - momentum, 12)}
        settings |= {} if writer.settings["trainable"] else {"use_global_stats": True}
        return writer.add("kBM", bm_conf=settings or None)

    return write


@layer
def LayerNormalization(axis: int | Sequence[int] = -1) -> Write:
    """Layer normalisation over the last axis, or over all axes from the first of ``axis`` on (kLayerNorm)."""

    def write(writer: LayerWriter) -> Feature:
        count = len(writer.rows(writer.source)) + 1
        axes = sorted(number % count for number in ([axis] if isinstance(axis, int) else axis))
        if not axes or axes != list(range(axes[0], count)) or axes[0] == 0:
            raise writer.fail(f"normalises the last axes of {count}, not the axes {axis}; give -1, or (-2, -1), ...")
        return writer.add("kLayerNorm", layernorm_conf=None if axes[0] == 1 else {"first_axis": axes[0]})

    return write
