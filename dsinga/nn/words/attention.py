"""Attention layers: weighted means of values, with one or several heads."""

from __future__ import annotations

from typing import Any, Unpack

from dsinga.base.arguments import unknown_name
from dsinga.base.errors import UserError
from dsinga.nn.words.basic_layers import Dense
from dsinga.nn.writing.feature import Feature
from dsinga.nn.writing.symbol import LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, PartWriter, Write, layer_settings

SCORES = {"dot": "kDot", "scaled_dot": None, "additive": "kAdditive"}


@layer
def Attention(
    score_mode: str = "dot",
    num_heads: int = 1,
    use_causal_mask: bool = False,
    score_initializer: Any = "uniform",
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes weighted means of values (kAttention), for [query, value] or [query, value, key], as in Keras.

    The labels of a last source (B, Tk), an input of codes, give the lengths of keys and values; a fourth source always
    does. ``score_mode`` is "dot", "scaled_dot" or "additive", with a param initialised by ``score_initializer``. With
    ``use_causal_mask`` a query sees no later keys.
    """
    if score_mode not in SCORES:
        raise UserError(f"Attention: {unknown_name('score_mode', score_mode, SCORES)}")
    given = {"num_heads": num_heads, "score": SCORES[score_mode], "causal": use_causal_mask}
    conf = layer_settings("Attention", "kAttention", given)

    def write(writer: LayerWriter) -> Feature:
        query, value, key, lengths = query_value_key(writer)
        sources = [query, value] if key is None else [query, key, value]
        fans, inits = {"score": (writer.rows(query)[-1], 1)}, {"score": score_initializer}
        return writer.add("kAttention", sources=[*sources, *lengths], **conf, fans=fans, inits=inits)

    return write


def query_value_key(writer: LayerWriter) -> tuple[Feature, Feature, Feature | None, list[Feature]]:
    """Sort a call's sources into query, value, key (or None), and the source of lengths, if any."""
    sources = list(writer.sources)
    last_is_lengths = len(sources) == 4 or (len(sources) == 3 and len(writer.rows(sources[-1])) == 1)
    lengths = [sources.pop()] if last_is_lengths else []
    if len(sources) not in (2, 3):
        raise writer.fail(
            f"takes [query, value] or [query, value, key], and a source that gives lengths, not {len(writer.sources)} "
            "sources; for self-attention give the same feature twice"
        )
    query, value, *key = sources
    labelled = next(iter(writer.net.inputs), None)  # the first input has the labels
    if key and not lengths and key[0].layer == labelled and labelled not in (query.layer, value.layer):
        raise writer.fail(
            f"could take the records of {labelled!r} as the key, or their labels as lengths; for lengths give "
            f"[query, value, value, {labelled}], for the key put nn.Dense between"
        )
    return query, value, key[0] if key else None, lengths


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
    """Computes attention with ``num_heads`` heads of projections of [query, value] or [query, value, key].

    Queries and keys are projected to ``num_heads`` times ``key_dim`` features, values to ``num_heads`` times
    ``value_dim``, by kInnerProduct layers with ``per_step``. A last one gives ``output_shape`` features, by default as
    many as the query has. The labels of a last source (B, Tk) give the lengths.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20, 32))
        >>> nn.MultiHeadAttention(num_heads=4, key_dim=8)(x, x).shape
        (None, 20, 32)
    """
    arguments = {"use_bias": use_bias, "kernel_initializer": kernel_initializer, "bias_initializer": bias_initializer}
    sizes = {"query": key_dim, "key": key_dim, "value": value_dim or key_dim}
    projections = {role: Dense(num_heads * size, **arguments) for role, size in sizes.items()}
    outputs: dict[int, LayerBuilder] = {} if output_shape is None else {output_shape: Dense(output_shape, **arguments)}
    conf = layer_settings("MultiHeadAttention", "kAttention", {"num_heads": num_heads, "causal": use_causal_mask})

    def write(writer: LayerWriter) -> Feature:
        query, value, key, lengths = query_value_key(writer)

        def project(builder: LayerBuilder, name: str, source: Feature) -> Feature:
            return builder.write(PartWriter(writer, builder, name, source))

        roles = {"query": query, "key": value if key is None else key, "value": value}
        projected = [project(projections[role], f"{writer.name}_{role}", source) for role, source in roles.items()]
        heads = writer.add("kAttention", name=f"{writer.name}_heads", sources=[*projected, *lengths], **conf)
        columns = output_shape or writer.rows(query)[-1]
        builder = outputs.setdefault(columns, Dense(columns, **arguments))
        return project(builder, writer.name, heads)

    return write
