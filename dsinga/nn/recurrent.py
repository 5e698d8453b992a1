"""Embeddings, lengths and recurrent layers of whole sequences (B, T, n)."""

from __future__ import annotations

import functools
from collections.abc import Mapping
from typing import Any

from dsinga.errors import UserError
from dsinga.nn.activations import check_activation
from dsinga.nn.feature import Feature, batch_shape
from dsinga.nn.keras_arguments import checked
from dsinga.nn.symbol import LayerBuilder, layer
from dsinga.nn.writer import LayerWriter, Write

# The cell in a job, and the number of its gates, which Keras's fans count together.
CELLS = {"GRU": ("gru", 3), "LSTM": ("lstm", 4), "SimpleRNN": ("rnn", 1)}

# The activations of cells by the names of Keras, where None is "linear", too.
CELL_ACTIVATIONS = {"sigmoid": "SIGMOID", "tanh": "TANH", "relu": "RELU", "linear": "IDENTITY"}


@layer
def Embedding(
    input_dim: int, output_dim: int, embeddings_initializer: Any = "uniform", dense_gradient: bool = False
) -> Write:
    """Row of a trained table for each code (kEmbedding): (B, T) of whole numbers below ``input_dim`` to (B, T, n).

    A row that a batch does not look up keeps its value in that step, also under momentum, weight decay and Adam, unless
    ``dense_gradient`` is set.
    """
    settings: dict[str, Any] = {"vocab_size": input_dim, "feature_dim": output_dim}
    settings |= {"dense_gradient": True} if dense_gradient else {}
    return lambda writer: writer.add("kEmbedding", embedding_conf=settings, inits={"weight": embeddings_initializer})


def recurrent(
    kind: str,
    units: int,
    use_bias: bool,
    initialisers: tuple[Any, Any, Any],
    return_sequences: bool,
    bidirectional: bool,
    carry: bool | None,
    activations: Mapping[str, str | None] | None = None,
) -> Write:
    """Return the writing of a recurrent layer; a second source gives the lengths of sequences by its labels.

    ``activations`` are Keras's names by the field of the job. Raises UserError for ``return_sequences=False``, which no
    recurrent layer can do, and for an activation that no cell has.
    """
    for activation in (activations or {}).values():
        check_activation(kind, activation, CELL_ACTIVATIONS)
    if not return_sequences:
        raise UserError(
            f"{kind} gives all steps here, (B, T, n); leave return_sequences out, and for one vector a sequence put "
            "nn.GlobalMaxPooling1D() or nn.GlobalAveragePooling1D() after it"
        )
    cell, gates = CELLS[kind]
    fields: dict[str, Any] = {
        "dim_hidden": units,
        "bias_term": use_bias,
        "bidirectional": bidirectional or None,
        "carry": carry,
    }
    for field, activation in (activations or {}).items():
        fields[field] = CELL_ACTIVATIONS["linear" if activation is None else activation]
    kernel, hidden, bias = initialisers

    def write(writer: LayerWriter) -> Feature:
        inputs = writer.rows(writer.sources[0])[-1]
        conf: dict[str, Any] = {f"{cell}_conf": {name: value for name, value in fields.items() if value is not None}}
        return writer.add(
            f"k{cell.upper()}",
            inits={"hx": kernel, "hh": hidden, "b": bias},
            fans={"hx": (inputs, gates * units), "hh": (units, gates * units)},
            **conf,
        )

    return write


@layer
def GRU(
    units: int,
    activation: str | None = "tanh",
    recurrent_activation: str | None = "sigmoid",
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = True,
    bidirectional: bool = False,
    carry: bool | None = None,
) -> Write:
    """Gated recurrent units over sequences (kGRU): (B, T, n) to (B, T, units).

    ``activation`` of the candidate and ``recurrent_activation`` of the gates are "sigmoid", "tanh", "relu" or "linear".
    ``carry`` begins a batch with the last state of the batch before, like Keras's stateful.
    """
    activations = {"gate_activation": recurrent_activation, "candidate_activation": activation}
    inits = (kernel_initializer, recurrent_initializer, bias_initializer)
    return recurrent("GRU", units, use_bias, inits, return_sequences, bidirectional, carry, activations)


@layer
def LSTM(
    units: int,
    activation: str | None = "tanh",
    recurrent_activation: str | None = "sigmoid",
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = True,
    bidirectional: bool = False,
    carry: bool | None = None,
) -> Write:
    """Long short-term memory over sequences (kLSTM); the bias of the forget gate begins at 0, in Keras at 1.

    ``activation`` of the candidate and of the cell state, and ``recurrent_activation`` of the gates, are as for GRU.
    """
    activations = {
        "gate_activation": recurrent_activation,
        "candidate_activation": activation,
        "cell_activation": activation,
    }
    inits = (kernel_initializer, recurrent_initializer, bias_initializer)
    return recurrent("LSTM", units, use_bias, inits, return_sequences, bidirectional, carry, activations)


@layer
def SimpleRNN(
    units: int,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    recurrent_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
    return_sequences: bool = True,
    bidirectional: bool = False,
    carry: bool | None = None,
) -> Write:
    """Simple recurrent layer with tanh over sequences (kRNN)."""
    inits = (kernel_initializer, recurrent_initializer, bias_initializer)
    return recurrent("SimpleRNN", units, use_bias, inits, return_sequences, bidirectional, carry)


MAKERS = {"GRU": GRU, "LSTM": LSTM, "SimpleRNN": SimpleRNN}


@checked
def Bidirectional(builder: LayerBuilder, name: str | None = None) -> LayerBuilder:
    """Return the recurrent layer in both directions: (B, T, 2·units), the forward direction first."""
    if not isinstance(builder, LayerBuilder) or builder.kind not in MAKERS:
        raise UserError(f"Bidirectional takes nn.GRU, nn.LSTM or nn.SimpleRNN, not {builder!r}")
    settings = {**builder.settings, "bidirectional": True}
    both_ways = MAKERS[builder.kind](**(settings if name is None else {**settings, "name": name}))
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
