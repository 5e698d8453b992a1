"""Symbolic tensors of nets imported from PyTorch or ONNX; their operations become layers."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Any, Protocol

import numpy as np

from dsinga.nn.words.activations import ReLU, Softmax
from dsinga.nn.words.basic_layers import layer_of_type
from dsinga.nn.words.shape_layers import Concatenate
from dsinga.nn.writing.operators import SIMPLE, HasOperators
from dsinga.nn.writing.reshaping import (
    NamesLayers,
    NoLayer,
    axis_of,
    axis_with_batch,
    indexed,
    made,
    parts_along,
    permuted,
    reshaped,
    rows_of,
    without,
)
from dsinga.nn.writing.symbol import Symbol

FLOAT, BOOL = np.dtype(np.float32), np.dtype(bool)
MIXES = "that mixes the records of a batch"


class Operation(NamesLayers, Protocol):
    """An operation of the imported net, which names its layers and provides its operands."""

    @property
    def batch(self) -> int:
        """The number of records that shapes of the imported net assume."""

    def operand(self, x: Any, others: Sequence[Any]) -> Tensor | float:
        """Convert an operand, such as a constant, to a tensor or number that fits the others."""

    def array(self, x: Any) -> np.ndarray | None:
        """Return the numbers of a constant operand that does not train, else None."""

    def constant(self, array: np.ndarray, suffix: str = "") -> Tensor:
        """Return constant numbers, equal for all records, as a param that does not train."""


@dataclass(frozen=True, eq=False)
class Tensor(HasOperators):
    """A tensor of an imported net, computed by layers.

    Attributes:
        place: operation that makes further layers of the tensor.
        source: layer's output, with the tensor's rows without the batch axis; or a cached function that makes the
            layer.
        shape: shape, with ``place.batch`` records.
        batch_axis: axis of the batch; None for a tensor that is the same for all records, such as a param.
        dtype: dtype in the net; features hold integers and truth values as float32.
        merged: range of axes, including the batch, that are one axis in the net, as (0, 2) for (N·H, T, n).
    """

    place: Any
    source: Symbol | Callable[[], Symbol]
    shape: tuple[int, ...]
    batch_axis: int | None = 0
    dtype: np.dtype = FLOAT
    merged: tuple[int, int] | None = None

    @functools.cached_property
    def symbol(self) -> Symbol:
        """The layer's output that has the tensor's numbers."""
        return self.source if isinstance(self.source, Symbol) else self.source()

    @property
    def rank(self) -> int:
        """The number of axes of the tensor."""
        return len(self.shape)

    @property
    def rows(self) -> tuple[int, ...]:
        """The shape of a row of the layer's output; (1,) for a tensor (B,)."""
        return rows_of(self.symbol)

    @property
    def seen(self) -> tuple[int, ...]:
        """The tensor's shape in the imported net, with merged axes as one."""
        if self.merged is None:
            return self.shape
        start, stop = self.merged
        return (*self.shape[:start], math.prod(self.shape[start:stop]), *self.shape[stop:])

    def feature(self, rank: int | None = None) -> Symbol:
        """Return the layer's output of a tensor with the batch as first axis."""
        if self.batch_axis is None:
            raise NoLayer("computed from params and constants only")
        if self.batch_axis:
            raise NoLayer(f"on a tensor whose axis {self.batch_axis} is the batch")
        if rank is not None and self.rank != rank + 1:
            raise NoLayer(f"of a tensor with {self.rank} axes, not {rank + 1}")
        return self.symbol

    def at(self, place: Operation) -> Tensor:
        """Return the tensor for use in another operation, which names further layers."""
        return replace(self, place=place)

    def of(self, symbol: Symbol, dtype: Any = None) -> Tensor:
        """Return a tensor of the same shape with another layer's output."""
        return replace(self, source=symbol, dtype=self.dtype if dtype is None else np.dtype(dtype))

    def each(self, make: str | Callable[..., Any], *args: Any, suffix: str = "", **settings: Any) -> Tensor:
        """Apply a layer to each number, or along an axis of unchanged length."""
        return self.of(made(make, *args, name=self.place.name(suffix), **settings)(self.symbol))

    def axis(self, axis: int) -> int:
        """Convert a negative axis to one counted from the front."""
        return axis_of(axis, self.rank)

    def reshape(self, shape: Sequence[int], suffix: str = "") -> Tensor:
        """Reshape the tensor; the batch may be merged with neighbouring axes.

        Raises NoLayer if the batch would be split over several axes, which mixes records.
        """
        shape = tuple(shape)
        if math.prod(shape) != math.prod(self.shape):
            raise NoLayer(f"from {self.seen} to {shape}, which has another number of numbers")
        axis, merged = self.batch_axis, None
        if axis is not None:
            before = math.prod(self.shape[:axis])
            axis = axis_with_batch(shape, before, self.place.batch)
            if axis is None:
                raise NoLayer(MIXES)
            start, size = math.prod(shape[:axis]), shape[axis]
            if before % start or (start * size) % (before * self.place.batch):
                raise NoLayer(MIXES)
            outer, inner = before // start, start * size // (before * self.place.batch)
            parts = [*([outer] if outer > 1 else []), self.place.batch, *([inner] if inner > 1 else [])]
            merged = (axis, axis + len(parts)) if len(parts) > 1 else None
            shape, axis = (*shape[:axis], *parts, *shape[axis + 1 :]), axis + (outer > 1)
        symbol = reshaped(self.place, self.symbol, without(shape, axis), suffix)
        return Tensor(self.place, symbol, shape, axis, self.dtype, merged)

    def transpose(self, order: Sequence[int], suffix: str = "") -> Tensor:
        """Permute the axes of the tensor."""
        batch = self.batch_axis
        dims = [axis + (batch is None or axis < batch) for axis in order if axis != batch]
        symbol = permuted(self.place, self.symbol, dims, suffix)
        shape = tuple(self.shape[axis] for axis in order)
        return replace(self, source=symbol, shape=shape, batch_axis=None if batch is None else [*order].index(batch))

    def swap(self, first: int, second: int, suffix: str = "") -> Tensor:
        """Exchange two axes of the tensor."""
        order = [*range(self.rank)]
        order[first], order[second] = order[second], order[first]
        return self.transpose(order, suffix)

    def with_batch(self, axis: int) -> Tensor:
        """Move the batch to another axis, without a layer."""
        order = [at for at in range(self.rank) if at != self.batch_axis]
        order.insert(axis, self.batch_axis or 0)
        return self.transpose(order)

    def expand(self, shape: Sequence[int]) -> Tensor:
        """Repeat axes of length 1; a param's axis can become the batch."""
        shape, own = tuple(shape), (1,) * (len(shape) - self.rank) + self.shape
        axis = None if self.batch_axis is None else self.batch_axis + len(shape) - self.rank
        if axis is None and self.place.batch in shape and own[shape.index(self.place.batch)] == 1:
            axis = shape.index(self.place.batch)
        rows, own_rows = without(shape, axis), without(own, axis)
        symbol = reshaped(self.place, self.symbol, own_rows, ".aligned")
        if rows != own_rows:
            zeros = self.place.constant(np.broadcast_to(np.float32(0), rows), ".zeros").symbol
            symbol = layer_of_type("kArithmetic", operator="ADD", name=self.place.name())(symbol, zeros)
        return Tensor(self.place, symbol, shape, axis, self.dtype)

    def part(self, axis: int, item: Any) -> Tensor:
        """Select a part along one axis, by a number (which drops the axis), slice, or list."""
        return self[(slice(None),) * axis + (item,)]

    def parts(self, axis: int) -> list[Tensor]:
        """Return all parts along one axis, without it."""
        if axis == self.batch_axis or self.shape[axis] == 1:
            return [self.part(axis, number) for number in range(self.shape[axis])]
        batch = self.batch_axis
        shape = without(self.shape, axis)
        batch_axis = None if batch is None else batch - (axis < batch)
        symbols = parts_along(self.place, self.symbol, axis - (batch is not None and batch < axis))
        rows = without(shape, batch_axis)
        return [
            replace(self, source=reshaped(self.place, part, rows, ".rows"), shape=shape, batch_axis=batch_axis)
            for part in symbols
        ]

    def __getitem__(self, key: Any) -> Tensor:
        """Select a part by numbers, slices, lists of numbers, None and ...; the batch keeps all records."""
        items = [*key] if isinstance(key, tuple) else [key]
        dots = [at for at, item in enumerate(items) if item is Ellipsis] or [len(items)]
        left = self.rank - sum(item is not None and item is not Ellipsis for item in items)
        items[dots[0] : dots[0] + 1] = [slice(None)] * left
        if (joint := self._part_of_joined(items)) is not None:
            return joint
        sizes, shape, rows, batch = iter(enumerate(self.shape)), list[int](), list[Any](), self.batch_axis
        for item in items:
            axis, size = next(sizes) if item is not None else (None, 1)
            if axis is not None and axis == self.batch_axis:
                if item != slice(None):
                    raise NoLayer("that cuts the batch, of which all records stay")
                batch = len(shape)
            else:
                rows.append(slice(None) if isinstance(item, int) and size == 1 else item)
            if isinstance(item, slice):
                size = len(range(*item.indices(size)))
            shape += [] if isinstance(item, int) else [len(item) if isinstance(item, list) else size]
        symbol = self.symbol
        if not all(item is None or item == slice(None) for item in rows):
            chosen = [axis for axis, item in enumerate(rows) if item != slice(None)]
            if len(chosen) == 1 and isinstance(rows[chosen[0]], int):
                symbol = parts_along(self.place, symbol, chosen[0], rows[chosen[0]])[0]
            else:
                symbol = indexed(self.place, symbol, rows)
        symbol = reshaped(self.place, symbol, without(shape, batch), ".rows")
        return replace(self, source=symbol, shape=tuple(shape), batch_axis=batch)

    def _part_of_joined(self, items: list[Any]) -> Tensor | None:
        """Select one of the tensors joined along the first row axis; None for other parts."""
        axis, symbol = int(self.batch_axis == 0), self.symbol
        is_joined = symbol.builder.kind == "Concatenate" and symbol.builder.settings.get("axis") == 1
        if not is_joined or None in items or len(items) <= axis or not isinstance(items[axis], int):
            return None
        number = items[axis] % self.shape[axis]
        for source in symbol.sources:
            count = rows_of(source)[0]
            if number < count:
                shape = (*self.shape[:axis], count, *self.shape[axis + 1 :])
                return replace(self, source=source, shape=shape)[(*items[:axis], number, *items[axis + 1 :])]
            number -= count
        return None

    def _binary(self, operator: str, other: Any, swapped: bool = False) -> Tensor:
        return arithmetic(self.place, operator, *((other, self) if swapped else (self, other)))

    def __pow__(self, other: Any) -> Tensor:
        return self._binary("POWER", other)

    def __abs__(self) -> Tensor:
        """Compute |x| as max(x, 0) + max(-x, 0), with the gradient 0 at 0."""
        return self.each(ReLU, suffix=".part") + (-self).each(ReLU, suffix=".part")

    def maximum(self, other: Any) -> Tensor:
        """Return the elementwise maximum of two tensors."""
        return self._binary("MAXIMUM", other)

    def minimum(self, other: Any) -> Tensor:
        """Return the elementwise minimum of two tensors."""
        return self._binary("MINIMUM", other)

    def activated(self, kind: str, **numbers: float) -> Tensor:
        """Apply a function of kActivation, such as EXP, to each number."""
        return self.each("kActivation", activation_conf={"type": kind, **numbers})

    def __matmul__(self, other: Any) -> Tensor:
        """Multiply matrices along the last two axes; the first operand's rows may be records."""
        a, b = self, tensor_of(self.place, other, [self])
        if b.rank == 1 and b.batch_axis is None:
            return (a @ b.reshape((*b.shape, 1))).reshape(a.shape[:-1])
        if a.rank == 1 and a.batch_axis is None:
            y = a.reshape((1, *a.shape)) @ b
            return y.reshape((*y.shape[:-2], y.shape[-1]))
        if a.rank > 1 and a.batch_axis == a.rank - 2 and b.batch_axis is None:
            y = a.reshape((*a.shape[:-1], 1, a.shape[-1])) @ b
            return y.reshape((*y.shape[:-2], y.shape[-1]))
        symbols, rank, axis = aligned([a, b])
        if min(a.rank, b.rank) < 2 or (axis is not None and axis >= rank - 2):
            raise NoLayer("of vectors, or along the axis of the batch")
        y = layer_of_type("kArithmetic", operator="MATMUL", name=self.place.name())(symbols)
        return result_of([a, b], y, rank, axis)

    def reduced(self, pool: str, axes: Sequence[int], keeps: bool) -> Tensor:
        """Compute means (AVG), sums (SUM) or maxima (MAX) over axes, kept with length 1 if ``keeps``."""
        if self.batch_axis is None:  # the layer needs a batch axis in front
            of_batch = replace(self, shape=(self.place.batch, *self.shape), batch_axis=0)
            result = of_batch.reduced(pool, [axis + 1 for axis in axes], keeps)
            return replace(result, shape=result.shape[1:], batch_axis=None)
        batch, rank, axes = self.batch_axis, self.rank, sorted(axes)
        if batch in axes:
            raise NoLayer("over the records of a batch")
        shape = tuple(1 if axis in axes else size for axis, size in enumerate(self.shape) if keeps or axis not in axes)
        batch_after = batch if keeps else batch - sum(axis < batch for axis in axes)
        if pool == "AVG" and batch == 0 and rank in (4, 5) and axes == [*range(2, rank)]:  # images or volumes
            y = layer_of_type("kPooling", pool="AVG", global_pooling=True, name=self.place.name())(self.symbol)
        else:
            order = [*axes, *(axis for axis in range(rank) if axis not in axes and axis != batch)]
            turned = permuted(self.place, self.symbol, [axis + (axis < batch) for axis in order], ".axes")
            count = math.prod(self.shape[axis] for axis in axes)
            steps = reshaped(self.place, turned, (count, math.prod(self.rows) // count), ".steps")
            y = layer_of_type("kPooling1D", pool=pool, name=self.place.name())(steps)
        rows = reshaped(self.place, y, without(shape, batch_after), ".rows")
        return replace(self, source=rows, shape=shape, batch_axis=batch_after)

    def softmax(self, axis: int = -1) -> Tensor:
        """Apply the softmax over an axis."""
        axis = self.axis(axis)
        if axis == self.batch_axis:
            raise NoLayer("over the records of a batch")
        row, last = axis + (self.batch_axis is None or axis < self.batch_axis), len(self.rows)
        swapped = [*range(1, row), last, *range(row + 1, last), row] if row < last else [*range(1, last + 1)]
        symbol = permuted(self.place, self.symbol, swapped, ".last")
        fields = {"num_softmax_per_instance": math.prod(self.rows) // self.rows[row - 1]}
        make = made(Softmax if last == 1 else "kSoftmax", name=self.place.name(), **({} if last == 1 else fields))
        return self.of(permuted(self.place, make(symbol), swapped, ".back"))


def batched(place: Operation, symbol: Symbol) -> Tensor:
    """Return the tensor for a layer's output with the batch as first axis."""
    return Tensor(place, symbol, (place.batch, *rows_of(symbol)))


def tensor_of(place: Operation, x: Any, others: Sequence[Any]) -> Tensor:
    """Convert an operand to a tensor; a number becomes a constant."""
    operand = place.operand(x, others)
    return operand if isinstance(operand, Tensor) else place.constant(np.asarray(operand, np.float32))


def aligned(tensors: Sequence[Tensor]) -> tuple[list[Symbol], int, int | None]:
    """Broadcast tensors to equally many axes; return the symbols, the rank and the batch axis."""
    rank = max(x.rank for x in tensors)
    axes = {x.batch_axis + rank - x.rank for x in tensors if x.batch_axis is not None}
    if len(axes) > 1:
        raise NoLayer("of tensors whose batches are different axes")
    axis = axes.pop() if axes else None
    symbols = []
    for x in tensors:
        shape = (1,) * (rank - x.rank) + x.shape
        if axis is not None and x.batch_axis is None and shape[axis] != 1:
            raise NoLayer(f"of a param of the shape {x.shape}, which would mix the records of a batch")
        symbols.append(reshaped(x.place, x.symbol, without(shape, axis), ".aligned"))
    return symbols, rank, axis


def result_of(tensors: Sequence[Tensor], symbol: Symbol, rank: int, axis: int | None, dtype: Any = None) -> Tensor:
    """Return a layer's result on aligned tensors, with ``rank`` axes and the batch on ``axis``."""
    owner = next((x for x in tensors if x.batch_axis is not None), tensors[0])
    rows = rows_of(symbol)
    if axis is None:
        return replace(owner.of(symbol, dtype), shape=rows[:rank])
    rows = rows if rank > 1 else ()  # rows of a tensor (B,) have one number
    return replace(owner.of(symbol, dtype), shape=(*rows[:axis], owner.place.batch, *rows[axis:]), batch_axis=axis)


def arithmetic(place: Operation, operator: str, *given: Any, dtype: Any = None) -> Tensor:
    """Apply a kArithmetic operator to two operands, at least one of them a tensor."""
    operands = [place.operand(x, given) for x in given]
    tensors = [x for x in operands if isinstance(x, Tensor)]
    symbols, rank, axis = aligned(tensors)
    fields: dict[str, Any] = {"operator": operator}
    if len(tensors) == 1:
        is_first = tensors[0] is operands[0]
        fields |= {"number": operands[is_first]} | ({} if is_first else {"swapped": True})
    is_simple = operator in SIMPLE and len(symbols) > 1 and rows_of(symbols[0]) == rows_of(symbols[1])
    kind, fields = (SIMPLE[operator], {}) if is_simple else ("kArithmetic", fields)
    return result_of(tensors, layer_of_type(kind, name=place.name(), **fields)(symbols), rank, axis, dtype)


def joined(tensors: Sequence[Tensor], axis: int) -> Tensor:
    """Concatenate tensors of one rank along an axis."""
    place = tensors[0].place
    if len(tensors) == 1:
        return tensors[0]
    symbols, rank, batch = aligned(tensors)
    if axis == batch:
        raise NoLayer("along the records of a batch")
    row, rows = axis if batch is None else axis - (axis > batch), rows_of(symbols[0])
    inner = row > 2  # kConcate joins the first axes
    if inner:
        shapes = [(math.prod(rows[:row]), rows_of(x)[row], math.prod(rows[row + 1 :])) for x in symbols]
        symbols = [reshaped(place, x, shape, ".parts") for x, shape in zip(symbols, shapes, strict=True)]
    y = Concatenate(axis=2 if inner else row + 1, name=place.name())(symbols)
    y = reshaped(place, y, (*rows[:row], rows_of(y)[1], *rows[row + 1 :]), ".axes") if inner else y
    return result_of(tensors, y, rank, batch)
