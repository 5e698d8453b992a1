"""Layers made of others, for sequences (B, T, n): both directions of a recurrent layer, any layer at each step."""

from __future__ import annotations

import functools
from typing import Any

from dsinga.errors import UserError
from dsinga.nn.feature import Feature, batch_shape
from dsinga.nn.keras_arguments import checked
from dsinga.nn.layer_functions import layer_functions
from dsinga.nn.symbol import LayerBuilder
from dsinga.nn.writer import LayerWriter


@checked
def Bidirectional(builder: LayerBuilder, name: str | None = None) -> LayerBuilder:
    """Return the recurrent layer in both directions: (B, T, 2·units), the forward direction first."""
    if not isinstance(builder, LayerBuilder) or builder.kind not in ("GRU", "LSTM", "SimpleRNN"):
        raise UserError(f"Bidirectional takes nn.GRU, nn.LSTM or nn.SimpleRNN, not {builder!r}")
    settings = {**builder.settings, "bidirectional": True}
    both_ways = layer_functions[builder.kind](**(settings if name is None else {**settings, "name": name}))
    again = functools.partial(Bidirectional, builder, name)
    return LayerBuilder(both_ways.kind, both_ways.write, both_ways.settings, again, wrapped=builder)


@checked
def TimeDistributed(builder: LayerBuilder) -> LayerBuilder:
    """Return the layer applied to each step of sequences (``per_step`` of a job)."""
    if not isinstance(builder, LayerBuilder):
        raise UserError(f"TimeDistributed takes a layer, as in nn.TimeDistributed(nn.Dense(10)), not {builder!r}")

    def write(writer: LayerWriter) -> Feature:
        return builder.write(StepWriter(writer))

    again = functools.partial(TimeDistributed, builder)
    return LayerBuilder(builder.kind, write, builder.settings, again, wrapped=builder)


class StepWriter(LayerWriter):
    """Writes the layers of one call with ``per_step``; sources look like those of one step."""

    def __init__(self, writer: LayerWriter):
        super().__init__(writer.net, writer.builder, writer.name, writer.sources)

    def rows(self, source: Feature) -> tuple[int, ...]:
        """Return the shape of a step of the source."""
        rows = super().rows(source)
        if len(rows) < 2:
            raise self.fail(f"takes sequences (batch, steps, ...), but gets {batch_shape(rows)}")
        return rows[1:]

    def add(self, type: str, **arguments: Any) -> Feature:
        """Write the layer that has the params of the call."""
        return super().add(type, **{**arguments, "per_step": True})

    def extra(self, suffix: str, type: str, source: Feature, **fields: Any) -> Feature:
        """Write a further layer without params."""
        return super().extra(suffix, type, source, **{**fields, "per_step": True})
