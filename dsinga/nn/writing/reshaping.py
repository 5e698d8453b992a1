"""Layers that give a feature another shape, or its axes another order, for nets that were written elsewhere."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, Protocol

from dsinga.nn.words.shape_layers import Flatten, Permute, Reshape
from dsinga.nn.writing.symbol import Symbol

AS_IMAGE = ".image"  # the end of the name of the source of a convolution of sequences


class NamesLayers(Protocol):
    """The operation for which layers are made; see :class:`dsinga.convert.torch_tracing.ModulePlace`."""

    def name(self, suffix: str = "") -> str:
        """Return the name of a further layer."""


def rows_of(symbol: Symbol) -> tuple[int, ...]:
    """Return the shape of a row of a feature."""
    rows = symbol.rows
    assert rows is not None, symbol
    return tuple(rows)


def reshaped(place: NamesLayers, symbol: Symbol, rows: Sequence[int], suffix: str = "") -> Any:
    """Return a feature with rows of another shape; where it was reshaped before, from what it was then."""
    while symbol.builder.kind in ("Reshape", "Flatten") and not (symbol.builder.name or "").endswith(AS_IMAGE):
        symbol = symbol.sources[0]
    if rows_of(symbol) == tuple(rows):
        return symbol
    is_flat = len(rows) == 1 and rows_of(symbol) != ()
    layer = Flatten(name=place.name(suffix)) if is_flat else Reshape([*rows], name=place.name(suffix))
    return layer(symbol)


def permuted(place: NamesLayers, symbol: Symbol, dims: Sequence[int], suffix: str = "") -> Any:
    """Return a feature with the axes of rows, counted from 1, in another order; two orders in a row are one."""
    order = list(dims)
    if symbol.builder.kind == "Permute":
        before, symbol = symbol.builder.settings["dims"], symbol.sources[0]
        order = [before[axis - 1] for axis in order]
    return symbol if order == sorted(order) else Permute(order, name=place.name(suffix))(symbol)


def as_image(place: NamesLayers, symbol: Symbol) -> Any:
    """Return sequences (B, C, T) as images (B, C, 1, T)."""
    channels, steps = rows_of(symbol)
    return Reshape([channels, 1, steps], name=place.name(AS_IMAGE))(symbol)


def as_sequence(place: NamesLayers, symbol: Symbol) -> Any:
    """Return images of one row as sequences, the reverse of :func:`as_image`."""
    channels, _, steps = rows_of(symbol)
    return reshaped(place, symbol, (channels, steps), ".steps")


def split_heads(place: NamesLayers, symbol: Symbol, count: int) -> Any:
    """Return sequences (B, T, n) with an axis of heads, (B, count, T, n/count)."""
    steps, width = rows_of(symbol)
    return permuted(place, reshaped(place, symbol, (steps, count, width // count), ".heads"), (2, 1, 3), ".split")


def join_heads(place: NamesLayers, symbol: Symbol) -> Any:
    """Return sequences of heads (B, H, T, n) as (B, T, H·n)."""
    count, steps, width = rows_of(symbol)
    return reshaped(place, permuted(place, symbol, (2, 1, 3), ".steps"), (steps, count * width), ".joined")
