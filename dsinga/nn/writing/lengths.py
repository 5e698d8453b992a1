"""Where sequences end: what an embedding of codes knows is handed to the layers above it, as masks are in Keras."""

from __future__ import annotations

from collections.abc import Sequence

from dsinga.nn.writing.feature import Feature, row_shape

WINDOWS = set("Conv1D MaxPooling1D AveragePooling1D".split())  # which give other steps, and say where these end
ONE_SOURCE = WINDOWS | set("GRU LSTM SimpleRNN GlobalMaxPooling1D GlobalAveragePooling1D".split())
ATTENTION = ("Attention", "MultiHeadAttention")
OTHER_ORDER = set("Permute Reshape RepeatVector index matmul".split())  # whose axis 1 need not be that of the source


def with_lengths(kind: str, sources: Sequence[Feature]) -> Sequence[Feature]:
    """Return the sources of a layer with the lengths of its sequences, where it takes them and was given none."""
    if not sources or any(len(row_shape(source) or ()) != 2 for source in sources):
        return sources
    source = sources[0] if kind in ONE_SOURCE and len(sources) == 1 else None
    source = sources[min(1, len(sources) - 1)] if kind in ATTENTION else source
    return sources if source is None or source.lengths is None else [*sources, source.lengths]


def keep_lengths(kind: str, name: str, feature: Feature, sources: Sequence[Feature]) -> Feature:
    """Return the feature of a layer called ``name`` with the lengths of its first source, where it has its steps."""
    rows, lengths = row_shape(feature), sources[0].lengths if sources else None
    if lengths is None or feature.lengths is not None or rows is None or len(rows) != 2 or kind in OTHER_ORDER:
        return feature
    if kind in WINDOWS:
        return feature._replace(lengths=Feature(name, rows[:1]))
    return feature._replace(lengths=lengths if rows[:1] == lengths.shape else None)
