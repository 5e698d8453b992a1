"""Reshapes and permutes symbolic tensors of imported nets by as few layers as possible."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Protocol

from dsinga.nn.words.basic_layers import layer_of_type
from dsinga.nn.words.shape_layers import Flatten, Permute, Reshape, Slice
from dsinga.nn.writing.symbol import Symbol

AS_IMAGE = ".image"  # name suffix of a sequence reshaped to an image for a convolution


class NoLayer(Exception):
    """Error: an imported operation has no layer; the text names the setting, "" for the whole operation."""


def refuse(settings: Mapping[str, Any]) -> None:
    """Raise NoLayer with the names of all true settings, which no layer supports."""
    if wrong := [name for name, value in settings.items() if value]:
        raise NoLayer(f"with {', '.join(wrong)}")


class NamesLayers(Protocol):
    """An operation of an imported net, which names the layers made for it."""

    def name(self, suffix: str = "") -> str:
        """Return a name for a layer of the operation."""


def made(make: str | Callable[..., Any], *args: Any, **settings: Any) -> Any:
    """Make a layer by its type, or by a function of ``nn``."""
    return layer_of_type(make, *args, **settings) if isinstance(make, str) else make(*args, **settings)


def rows_of(symbol: Symbol) -> tuple[int, ...]:
    """Return the shape of a row of a symbolic tensor."""
    rows = symbol.rows
    assert rows is not None, symbol
    return tuple(rows)


def without(shape: Sequence[int], axis: int | None) -> tuple[int, ...]:
    """Remove the batch axis from a tensor's shape; (1,) if no axis is left."""
    return tuple(size for at, size in enumerate(shape) if at != axis) or (1,)


def axis_of(axis: int, rank: int) -> int:
    """Convert a negative axis to one counted from the front."""
    if not -rank <= axis < rank:
        raise NoLayer(f"along the axis {axis} of a tensor with {rank} axes")
    return axis % rank


def axis_with_batch(shape: Sequence[int], before: int, batch: int) -> int | None:
    """Find the axis that is or contains the batch, after ``before`` numbers, or None."""
    starts = [math.prod(shape[:axis]) for axis in range(len(shape))]
    exact = [axis for axis, start in enumerate(starts) if start == before and shape[axis] == batch]
    ends = [axis for axis, start in enumerate(starts) if start <= before and start * shape[axis] >= before * batch]
    return next(iter(exact + ends), None)


def reshaped(place: NamesLayers, symbol: Symbol, rows: Sequence[int], suffix: str = "") -> Symbol:
    """Reshape the rows of a symbolic tensor; an earlier reshape is skipped."""
    if rows_of(symbol) == tuple(rows):
        return symbol
    while symbol.builder.kind in ("Reshape", "Flatten") and not (symbol.builder.name or "").endswith(AS_IMAGE):
        symbol = symbol.sources[0]
    if rows_of(symbol) == tuple(rows):
        return symbol
    is_flat = len(rows) == 1 and rows_of(symbol) != ()
    layer = Flatten(name=place.name(suffix)) if is_flat else Reshape([*rows], name=place.name(suffix))
    return layer(symbol)


def permuted(place: NamesLayers, symbol: Symbol, dims: Sequence[int], suffix: str = "") -> Symbol:
    """Permute the row axes, counted from 1, of a symbolic tensor; two permutations become one."""
    order = list(dims)
    if symbol.builder.kind == "Permute" and order:
        before, symbol = symbol.builder.settings["dims"], symbol.sources[0]
        order = [before[axis - 1] for axis in order]
    return symbol if order == sorted(order) else Permute(order, name=place.name(suffix))(symbol)


def indexed(place: NamesLayers, symbol: Symbol, items: Sequence[Any]) -> Symbol:
    """Select a part of the rows of a symbolic tensor by a number, a slice or a list for each axis."""
    part = symbol[(slice(None), *items)]
    part.builder.name = place.name()
    return part


def parts_along(place: NamesLayers, symbol: Symbol, axis: int, number: int | None = None) -> list[Symbol]:
    """Return the parts along an axis of rows, without the axis; with a ``number`` this part only.

    They are cut before axes are reordered: queries, keys and values of one projection are slices of its feature.
    """
    before = [slice(None)] * axis
    rows, kind, source = rows_of(symbol), symbol.builder.kind, next(iter(symbol.sources), symbol)
    if kind == "Permute":
        dims = symbol.builder.settings["dims"]
        order = [dim - (dim > dims[axis]) for dim in dims if dim != dims[axis]]
        parts = parts_along(place, source, dims[axis] - 1, number)
        return [permuted(place, part, order, ".order") for part in parts]
    width = math.prod(rows[axis + 1 :])
    if kind == "Reshape" and rows_of(source) == (*rows[:axis], rows[axis] * width):
        if number is None:
            parts = Slice(rows[axis], axis + 1, name=place.name())(source)
        else:
            start = number % rows[axis] * width
            parts = [indexed(place, source, [*before, slice(start, start + width)])]
        return [reshaped(place, part, rows[:axis] + rows[axis + 1 :], ".rows") for part in parts]
    return [indexed(place, symbol, [*before, at]) for at in (range(rows[axis]) if number is None else [number])]
