"""Layers for sequences (B, T, n): embeddings, convolution, pooling, recurrent layers and masking.

A second source gives the lengths of the sequences. :func:`GRU` explains the common arguments.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any, Unpack

from dsinga.base.arguments import check_bool, check_range, unknown_name
from dsinga.base.errors import UserError
from dsinga.nn.words.activations import activate, check_activation
from dsinga.nn.words.keras_arguments import checked
from dsinga.nn.words.regularisers import weights
from dsinga.nn.writing.feature import Feature, batch_shape, row_shape
from dsinga.nn.writing.symbol import LayerArguments, LayerBuilder, layer
from dsinga.nn.writing.writer import LayerWriter, Write, layer_settings, simple

# Keras's names of cell activations; None is "linear".
CELL_ACTIVATIONS = {"sigmoid": "SIGMOID", "tanh": "TANH", "relu": "RELU", "linear": "IDENTITY", None: "IDENTITY"}


@layer
def Embedding(
    input_dim: int,
    output_dim: int,
    embeddings_initializer: Any = "uniform",
    dense_gradient: bool = False,
    embeddings_regularizer: Any = None,
    mask_zero: bool = False,
    **common: Unpack[LayerArguments],
) -> Write:
    """Looks up a trained vector for each code (kEmbedding): (B, T) to (B, T, output_dim), or (B,) to (B, output_dim).

    Args:
        input_dim: number of different codes.
        output_dim: width of the vectors.
        embeddings_initializer: initialiser of the table, or its name.
        dense_gradient: True for a gradient of the whole table, so that updaters move all rows in each step.
        embeddings_regularizer: penalty of the table, as nn.L2(0.01).
        mask_zero: whether steps with the code 0 are left out.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20,))
        >>> nn.Embedding(1000, 16)(x).shape
        (None, 20, 16)
    """
    settings = {"vocab_size": input_dim, "feature_dim": output_dim, "dense_gradient": dense_gradient}
    conf = layer_settings("Embedding", "kEmbedding", settings)
    params = weights(weight=(embeddings_initializer, embeddings_regularizer))

    def write(writer: LayerWriter) -> Feature:
        if not mask_zero:
            return with_ends(writer, writer.add("kEmbedding", **conf, **params))
        ends = {"end": 0, "anywhere": True}
        source = writer.extra("lengths", "kSequenceLength", writer.source, sequencelength_conf=ends)
        feature = writer.add("kEmbedding", sources=[source], **conf, **params)
        return feature._replace(lengths=Feature(source.layer, row_shape(writer.source)))

    return write


@layer
def OneHot(num_tokens: int, **common: Unpack[LayerArguments]) -> Write:
    """Converts codes to one-hot vectors (kOneHot): (B, T) to (B, T, num_tokens), or (B,) to (B, num_tokens)."""
    conf = layer_settings("OneHot", "kOneHot", {"vocab_size": num_tokens}, {"vocab_size": "num_tokens"})
    return lambda writer: with_ends(writer, writer.add("kOneHot", **conf))


def with_ends(writer: LayerWriter, feature: Feature) -> Feature:
    """Attach sequence lengths to an input of codes with any number of steps, to skip padding."""
    if not writer.source.any_length:
        return feature
    return feature._replace(lengths=writer.extra("lengths", "kSequenceLength", writer.source))


@layer
def SequenceLength(
    end: int | None = None, anywhere: bool = False, mask_value: float | None = None, **common: Unpack[LayerArguments]
) -> Write:
    """Finds the lengths of sequences, for layers that accept lengths as their last source (kSequenceLength).

    Args:
        end: code of the steps after the end, in addition to -1.
        anywhere: whether steps with the code ``end`` may come before others, which then move forward.
        mask_value: number that all features have at the steps after the end.
    """
    return simple("SequenceLength", "kSequenceLength", end=end, anywhere=anywhere, mask_value=mask_value)


@layer
def Masking(mask_value: float = 0.0, **common: Unpack[LayerArguments]) -> Write:
    """Makes the layers above skip the steps of sequences (B, T, n) at which all features are ``mask_value``.

    A kSequenceLength layer moves the other steps forward. Each sequence needs at least one other step.
    """

    def write(writer: LayerWriter) -> Feature:
        feature = writer.add("kSequenceLength", sequencelength_conf={"mask_value": mask_value, "anywhere": True})
        rows = row_shape(feature)
        return feature._replace(lengths=Feature(writer.name, None if rows is None else rows[:1]))

    return write


@layer
def PositionalEncoding(scale: float = 1.0, **common: Unpack[LayerArguments]) -> Write:
    """Multiplies sequences by ``scale`` and adds sines and cosines of the step positions (kPositionalEncoding)."""
    return simple("PositionalEncoding", "kPositionalEncoding", scale=scale)


@layer
def Conv1D(
    filters: int,
    kernel_size: int,
    strides: int = 1,
    padding: str | int = "valid",
    activation: Any = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    kernel_regularizer: Any = None,
    bias_regularizer: Any = None,
    dilation_rate: int = 1,
    groups: int = 1,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes the convolution over the steps of sequences (B, T, n), and its activation (kConvolution1D).

    ``padding`` is "valid", "same", "causal", or the number of zero steps before and after each sequence.
    :func:`dsinga.nn.Conv2D` explains the other arguments.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20, 4))
        >>> nn.Conv1D(8, 3, padding="same")(x).shape
        (None, 20, 8)
    """
    check_activation("Conv1D", activation)
    params = weights(weight=(kernel_initializer, kernel_regularizer), bias=(bias_initializer, bias_regularizer))
    settings = {"num_filters": filters, "kernel": kernel_size, "stride": strides, "bias_term": use_bias}
    settings |= {"dilation": dilation_rate, "group": groups}
    layer_settings("Conv1D", "kConvolution1D", settings)

    def write(writer: LayerWriter) -> Feature:
        inputs = writer.rows(writer.sources[0])[-1]
        if isinstance(padding, str) and padding not in ("valid", "same", "causal"):
            raise writer.fail(f'padding is "valid", "same", "causal" or a number of steps, not {padding!r}')
        pad = {"pad": padding} if not isinstance(padding, str) else {} if padding == "valid" else {padding: True}
        conf = layer_settings("Conv1D", "kConvolution1D", {**settings, **pad})
        fans = {"weight": (inputs // groups * kernel_size, filters * kernel_size)}
        return activate(writer, writer.add("kConvolution1D", **conf, fans=fans, **params), activation)

    return write


@layer
def MaxPooling1D(pool_size: int | None = 2, strides: int | None = None, **common: Unpack[LayerArguments]) -> Write:
    """Max pooling over steps before a sequence's end; windows do not overlap by default (kPooling1D)."""
    return pooling1d("MaxPooling1D", {"pool": "MAX", "kernel": pool_size, "stride": strides})


@layer
def AveragePooling1D(pool_size: int | None = 2, strides: int | None = None, **common: Unpack[LayerArguments]) -> Write:
    """Mean pooling over steps before a sequence's end; windows do not overlap by default (kPooling1D)."""
    return pooling1d("AveragePooling1D", {"pool": "AVG", "kernel": pool_size, "stride": strides})


def pooling1d(function: str, settings: Mapping[str, Any]) -> Write:
    """Return a function that writes a pooling of windows of steps into a job."""
    conf = layer_settings(function, "kPooling1D", settings, {"kernel": "pool_size"})
    return lambda writer: writer.add("kPooling1D", **conf)


@layer
def GlobalMaxPooling1D(**common: Unpack[LayerArguments]) -> Write:
    """The maximum of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n)."""
    return lambda writer: writer.add("kPooling1D", pooling1d_conf={"pool": "MAX"})


@layer
def GlobalAveragePooling1D(**common: Unpack[LayerArguments]) -> Write:
    """The mean of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n)."""
    return lambda writer: writer.add("kPooling1D", pooling1d_conf={"pool": "AVG"})


@layer
def GRU(
    units: int,
    activation: str | None = "tanh",
    recurrent_activation: str | None = "sigmoid",
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = False,
    bidirectional: bool = False,
    carry: bool | None = None,
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    dropout: float = 0.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes gated recurrent units over sequences (B, T, n) (kGRU).

    Args:
        units: width of the hidden state.
        activation: function of the candidate: sigmoid, tanh, relu or linear.
        recurrent_activation: function of the gates.
        use_bias: whether a bias is added.
        kernel_initializer: weight's initialiser, or its name.
        recurrent_initializer: initialiser of the state's weight, or its name.
        bias_initializer: bias's initialiser, or its name.
        return_sequences: True to return all steps, (B, T, units), False the last one, (B, units).
        bidirectional: whether a second direction, from the last step to the first, is joined.
        carry: whether the state continues from the same row of the batch before.
        kernel_regularizer: weight's penalty, such as nn.L2(0.01).
        recurrent_regularizer: penalty of the state's weight.
        bias_regularizer: bias's penalty.
        dropout: share of the source's features to drop in training.

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20, 4))
        >>> nn.GRU(32, return_sequences=True)(x).shape
        (None, 20, 32)
    """
    hidden, bias = (recurrent_initializer, recurrent_regularizer), (bias_initializer, bias_regularizer)
    params = weights(hx=(kernel_initializer, kernel_regularizer), hh=hidden, b=bias)
    settings = {"dim_hidden": units, "bias_term": use_bias, "bidirectional": bidirectional, "carry": carry}
    settings |= cell_settings("GRU", candidate_activation=activation, gate_activation=recurrent_activation)
    return recurrent("GRU", "kGRU", 3, settings, params, return_sequences, dropout)


@layer
def LSTM(
    units: int,
    activation: str | None = "tanh",
    recurrent_activation: str | None = "sigmoid",
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = False,
    bidirectional: bool = False,
    carry: bool | None = None,
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    dropout: float = 0.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """Computes long short-term memory over sequences (kLSTM), with the arguments of :func:`GRU`.

    ``activation`` is the function of the candidate and of the cell state. The bias of the forget gate begins at 0
    (Keras: 1).

    Examples:
        >>> from dsinga import nn
        >>> x = nn.Input((20, 4))
        >>> nn.LSTM(32)(x).shape
        (None, 32)
    """
    hidden, bias = (recurrent_initializer, recurrent_regularizer), (bias_initializer, bias_regularizer)
    params = weights(hx=(kernel_initializer, kernel_regularizer), hh=hidden, b=bias)
    settings = {"dim_hidden": units, "bias_term": use_bias, "bidirectional": bidirectional, "carry": carry}
    settings |= cell_settings("LSTM", candidate_activation=activation, gate_activation=recurrent_activation)
    settings["cell_activation"] = settings["candidate_activation"]
    return recurrent("LSTM", "kLSTM", 4, settings, params, return_sequences, dropout)


@layer
def SimpleRNN(
    units: int,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = False,
    bidirectional: bool = False,
    carry: bool | None = None,
    kernel_regularizer: Any = None,
    recurrent_regularizer: Any = None,
    bias_regularizer: Any = None,
    dropout: float = 0.0,
    **common: Unpack[LayerArguments],
) -> Write:
    """A simple recurrent layer, tanh(x hxᵀ + h hhᵀ + b), over sequences (kRNN), with the arguments of :func:`GRU`."""
    hidden, bias = (recurrent_initializer, recurrent_regularizer), (bias_initializer, bias_regularizer)
    params = weights(hx=(kernel_initializer, kernel_regularizer), hh=hidden, b=bias)
    settings = {"dim_hidden": units, "bias_term": use_bias, "bidirectional": bidirectional, "carry": carry}
    return recurrent("SimpleRNN", "kRNN", 1, settings, params, return_sequences, dropout)


def cell_settings(function: str, **activations: str | None) -> dict[str, Any]:
    """Check a recurrent layer's activations, and return them as settings."""
    for activation in activations.values():
        if activation not in CELL_ACTIVATIONS:
            raise UserError(f"{function}: {unknown_name('activation', activation, filter(None, CELL_ACTIVATIONS))}")
    return {name: CELL_ACTIVATIONS[activation] for name, activation in activations.items()}


def recurrent(
    function: str,
    type: str,
    gates: int,
    settings: Mapping[str, Any],
    params: Mapping[str, Any],
    return_sequences: bool,
    dropout: float,
) -> Write:
    """Return a function that writes a recurrent layer, and a layer for its last step, into a job."""
    conf, units = layer_settings(function, type, settings), settings["dim_hidden"]

    def write(writer: LayerWriter) -> Feature:
        source, *lengths = writer.sources
        rows = writer.rows(source)
        if len(rows) == 1 and not settings["carry"]:  # with carry, an agent computes one step at a time
            raise writer.fail(
                f"takes sequences (batch, steps, n), but gets {batch_shape(rows)}; give a recurrent layer below "
                "return_sequences=True, or put nn.Embedding between, if these are codes"
            )
        check_range(f"dropout of {writer.name}", dropout, 0, 1)
        check_bool(f"return_sequences of {writer.name}", return_sequences)
        if dropout:
            kept = {"dropout_ratio": dropout, "unit": "kFeature"}
            source = writer.extra("dropout", "kDropout", source, dropout_conf=kept)
        # Keras counts the outputs of all gates together.
        fans = {"hx": (rows[-1], gates * units), "hh": (units, gates * units)}
        feature = writer.add(type, sources=[source, *lengths], **conf, fans=fans, **params)
        if return_sequences or len(rows) == 1:
            return feature
        pool = "ENDS" if settings["bidirectional"] else "LAST"
        return writer.extra("last", "kPooling1D", feature, *lengths, pooling1d_conf={"pool": pool})

    return write


CELLS: Mapping[str, Any] = {"GRU": GRU, "LSTM": LSTM, "SimpleRNN": SimpleRNN}


@checked
def Bidirectional(builder: LayerBuilder, name: str | None = None) -> LayerBuilder:
    """Return the recurrent layer in both directions: (B, T, 2·units), the forward direction first."""
    if not isinstance(builder, LayerBuilder) or builder.kind not in CELLS:
        raise UserError(f"Bidirectional takes nn.GRU, nn.LSTM or nn.SimpleRNN, not {builder!r}")
    settings = {**builder.settings, "bidirectional": True}
    both_ways = CELLS[builder.kind](**(settings if name is None else {**settings, "name": name}))
    again = functools.partial(Bidirectional, builder, name)
    made = LayerBuilder(both_ways.kind, both_ways.write, both_ways.settings, again, wrapped=builder)
    made.input_rows = builder.input_rows
    return made


@checked
def TimeDistributed(builder: LayerBuilder) -> LayerBuilder:
    """Return a layer that applies the given layer to each step of sequences (``per_step`` in a job)."""
    if not isinstance(builder, LayerBuilder):
        raise UserError(f"TimeDistributed takes a layer, as in nn.TimeDistributed(nn.Dense(10)), not {builder!r}")

    def write(writer: LayerWriter) -> Feature:
        return builder.write(StepWriter(writer.net, writer.builder, writer.name, writer.sources))

    again = functools.partial(TimeDistributed, builder)
    return LayerBuilder(builder.kind, write, builder.settings, again, wrapped=builder)


class StepWriter(LayerWriter):
    """Writes a layer that runs on each step of sequences (``per_step``) into a job."""

    def rows(self, source: Feature) -> tuple[int, ...]:
        """Return the shape of one step of the source."""
        rows = super().rows(source)
        if len(rows) < 2:
            raise self.fail(f"takes sequences (batch, steps, ...), but gets {batch_shape(rows)}")
        return rows[1:]

    def add(self, type: str, **arguments: Any) -> Feature:
        """Write the layer with the params of the call, to run on each step."""
        return super().add(type, **{**arguments, "per_step": True})

    def extra(self, suffix: str, type: str, *sources: Feature, **fields: Any) -> Feature:
        """Write a further layer without params, to run on each step."""
        return super().extra(suffix, type, *sources, **{**fields, "per_step": True})
