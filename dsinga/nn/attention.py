"""Attention of several heads over projected queries, keys and values, by the name of Keras."""

from __future__ import annotations

from typing import Any

from dsinga.nn.feature import Feature
from dsinga.nn.layer_details import query_value_key
from dsinga.nn.layer_functions import layer_functions
from dsinga.nn.symbol import COMMON, LayerBuilder, layer
from dsinga.nn.writer import LayerWriter, Write

Dense = layer_functions["Dense"]


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


class _ProjectionWriter(LayerWriter):
    """Writes a projection with the arguments of the attention that it belongs to: cut, place, phases, scales."""

    def __init__(self, writer: LayerWriter, builder: LayerBuilder, name: str, source: Feature):
        super().__init__(writer.net, builder, name, [source])
        common = {field: writer.settings.get(field) for field in COMMON if field not in ("name", "param")}
        self.settings = {**self.settings, **common}
