"""Convolution and pooling over the steps of sequences (B, T, n), and the layer that tells their lengths."""

from __future__ import annotations

from typing import Any

from dsinga.nn.activations import activate, check_activation
from dsinga.nn.arguments import layer
from dsinga.nn.feature import Feature
from dsinga.nn.writer import LayerWriter, Write


@layer
def SequenceLength() -> Write:
    """Codes (B, T), -1 after the end, which also tell the layers that take it last the lengths (kSequenceLength).

    ``words = nn.Input((50,)); lengths = nn.SequenceLength()(words); nn.LSTM(64)(nn.Embedding(9000, 32)(words),
    lengths)``.
    """
    return lambda writer: writer.add("kSequenceLength")


@layer
def Conv1D(
    filters: int,
    kernel_size: int,
    strides: int = 1,
    padding: str | int = "valid",
    activation: str | None = None,
    use_bias: bool = True,
    kernel_initializer: Any = "glorot_uniform",
    bias_initializer: Any = "zeros",
) -> Write:
    """Convolution over the steps of sequences (B, T, n), and its activation (kConvolution1D).

    ``padding`` is "valid", "same", or the number of zero steps before and after. A second source gives the lengths.
    """
    check_activation("Conv1D", activation)

    def write(writer: LayerWriter) -> Feature:
        inputs = writer.rows(writer.sources[0])[-1]
        settings = {"num_filters": filters, "kernel": kernel_size, "stride": strides, "bias_term": use_bias}
        feature = writer.add(
            "kConvolution1D",
            convolution1d_conf={**settings, **pad_fields(writer, padding)},
            inits={"weight": kernel_initializer, "bias": bias_initializer},
            fans={"weight": (inputs * kernel_size, filters * kernel_size)},
        )
        return activate(writer, feature, activation)

    return write


@layer
def MaxPooling1D(pool_size: int = 2, strides: int | None = None) -> Write:
    """Maximum of each window of steps (kPooling1D); ``strides`` are ``pool_size`` by default, as in Keras."""
    return lambda writer: pool_steps(writer, "MAX", kernel=pool_size, stride=strides)


@layer
def AveragePooling1D(pool_size: int = 2, strides: int | None = None) -> Write:
    """Mean of each window of steps (kPooling1D), over the steps before the end of a sequence."""
    return lambda writer: pool_steps(writer, "AVG", kernel=pool_size, stride=strides)


@layer
def GlobalMaxPooling1D() -> Write:
    """Maximum of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).

    A second source gives the lengths of the sequences.
    """
    return lambda writer: pool_steps(writer, "MAX")


@layer
def GlobalAveragePooling1D() -> Write:
    """Mean of each feature over the steps of sequences (kPooling1D): (B, T, n) to (B, n).

    A second source gives the lengths of the sequences; without it the mean is over all T steps.
    """
    return lambda writer: pool_steps(writer, "AVG")


@layer
def CosineSimilarity(scale: float = 1.0) -> Write:
    """``scale`` times the cosine of the angle between two rows (kCosineSimilarity): two (B, n) to (B, 1)."""
    return lambda writer: writer.add(
        "kCosineSimilarity", cosinesimilarity_conf=None if scale == 1 else {"scale": scale}
    )


def pad_fields(writer: LayerWriter, padding: str | int) -> dict[str, Any]:
    """Return the fields of a padding."""
    if isinstance(padding, str):
        if padding not in ("valid", "same"):
            raise writer.fail(f'padding is "valid", "same" or a number of steps, not {padding!r}')
        return {"same": True} if padding == "same" else {}
    return {"pad": padding}


def pool_steps(writer: LayerWriter, method: str, **window: int | None) -> Feature:
    """Write a kPooling1D layer."""
    settings = {"pool": method, **{field: number for field, number in window.items() if number is not None}}
    return writer.add("kPooling1D", pooling1d_conf=settings)
