"""Layers made of others: both directions of a recurrent layer, any layer at each step, attention of several heads."""

from __future__ import annotations

import functools
from typing import Any, Unpack

from dsinga.base.errors import UserError
from dsinga.nn.words.function_specs import Sides, Size
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.layer_adapters import query_value_key
from dsinga.nn.words.layer_functions import layer_functions
from dsinga.nn.writing.feature import Feature, batch_shape
from dsinga.nn.writing.symbol import COMMON, LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write

Dense = layer_functions["Dense"]


@checked
def Bidirectional(builder: LayerBuilder, name: str | None = None) -> LayerBuilder:
    """Return the recurrent layer in both directions: (B, T, 2·units), the forward direction first."""
    if not isinstance(builder, LayerBuilder) or builder.kind not in ("GRU", "LSTM", "SimpleRNN"):
        raise UserError(f"Bidirectional takes nn.GRU, nn.LSTM or nn.SimpleRNN, not {builder!r}")
    settings = {**builder.settings, "bidirectional": True}
    both_ways = layer_functions[builder.kind](**(settings if name is None else {**settings, "name": name}))
    again = functools.partial(Bidirectional, builder, name)
    made = LayerBuilder(both_ways.kind, both_ways.write, both_ways.settings, again, wrapped=builder)
    made.input_rows = builder.input_rows
    return made


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

    def extra(self, suffix: str, type: str, *sources: Feature, **fields: Any) -> Feature:
        """Write a further layer without params."""
        return super().extra(suffix, type, *sources, **{**fields, "per_step": True})


@layer
def MultiHeadAttention(
    num_heads: int,
    key_dim: int,
    value_dim: int | None = None,
    use_bias: bool = True,
    output_shape: int | None = None,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    use_causal_mask: bool = False,
    **common: Unpack[LayerArguments],
) -> Write:
    """Attention of ``num_heads`` projected queries, keys and values, called on [query, value] or [query, value, key].

    The projections are kInnerProduct layers with ``per_step``, to ``num_heads`` times ``key_dim`` features, or
    ``value_dim`` for the values; a last one gives ``output_shape`` features, by default as many as the query has. The
    labels of a last source (B, Tk), an input of codes, or of any fourth source, give the lengths of keys and values.
    """
    arguments = {"use_bias": use_bias, "kernel_initializer": kernel_initializer, "bias_initializer": bias_initializer}
    sizes = {"query": key_dim, "key": key_dim, "value": value_dim or key_dim}
    projections = {role: Dense(num_heads * size, **arguments) for role, size in sizes.items()}
    outputs: dict[int, LayerBuilder] = {} if output_shape is None else {output_shape: Dense(output_shape, **arguments)}
    given = {"num_heads": num_heads if num_heads != 1 else None, "causal": use_causal_mask or None}
    settings = {name: value for name, value in given.items() if value is not None} or None

    def write(writer: LayerWriter) -> Feature:
        query, value, key, lengths = query_value_key(writer)

        def project(builder: LayerBuilder, name: str, source: Feature) -> Feature:
            return builder.write(_ProjectionWriter(writer, builder, name, source))

        roles = {"query": query, "key": value if key is None else key, "value": value}
        projected = [project(projections[role], f"{writer.name}_{role}", source) for role, source in roles.items()]
        heads = writer.add(
            "kAttention", name=f"{writer.name}_heads", sources=[*projected, *lengths], attention_conf=settings
        )
        columns = output_shape or writer.rows(query)[-1]
        builder = outputs.setdefault(columns, Dense(columns, **arguments))
        return project(builder, writer.name, heads)

    return write


@layer
def SeparableConv2D(
    filters: int,
    kernel_size: Size,
    strides: Size | None = 1,
    padding: str | Sides = "valid",
    dilation_rate: Size = 1,
    depth_multiplier: int = 1,
    activation: Any = None,
    use_bias: bool = True,
    depthwise_initializer: Any = "glorot_uniform",
    pointwise_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    depthwise_regularizer: Any = None,
    pointwise_regularizer: Any = None,
    bias_regularizer: Any = None,
    **common: Unpack[LayerArguments],
) -> Write:
    """A depthwise convolution of images without a bias, then a convolution of single pixels, and its activation.

    (B, C, H, W) to (B, filters, H', W'): two kConvolution layers, the first called as the layer with ``_depthwise``
    after it. Chollet, Xception (2017).
    """
    depthwise = layer_functions["DepthwiseConv2D"](
        kernel_size,
        strides,
        padding,
        depth_multiplier,
        dilation_rate,
        use_bias=False,
        depthwise_initializer=depthwise_initializer,
        depthwise_regularizer=depthwise_regularizer,
    )
    pointwise = layer_functions["Conv2D"](
        filters,
        1,
        activation=activation,
        use_bias=use_bias,
        kernel_initializer=pointwise_initializer,
        bias_initializer=bias_initializer,
        kernel_regularizer=pointwise_regularizer,
        bias_regularizer=bias_regularizer,
    )

    def write(writer: LayerWriter) -> Feature:
        name = f"{writer.name}_depthwise"
        feature = depthwise.write(_ProjectionWriter(writer, depthwise, name, writer.source))
        return pointwise.write(_ProjectionWriter(writer, pointwise, writer.name, feature))

    return write


class _ProjectionWriter(LayerWriter):
    """Writes a projection, or a convolution, with the arguments of the layer it belongs to: cut, place, scales."""

    def __init__(self, writer: LayerWriter, builder: LayerBuilder, name: str, source: Feature):
        super().__init__(writer.net, builder, name, [source])
        common = {field: writer.settings.get(field) for field in COMMON if field not in ("name", "param")}
        self.settings = {**self.settings, **common}
