"""Makes layers for ONNX's arithmetic, comparisons, truth values, reductions and softmax, with axes as numpy's."""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_numbers import decimal
from dsinga.addons.onnx.values import (
    LARGEST,
    Constant,
    NotImportable,
    Operand,
    Value,
    axis_of,
    feature,
    integers,
    is_bound,
    spread,
)
from dsinga.nn.writing.composed import reduced, softmax_of_last, softmax_over
from dsinga.nn.writing.operators import SIMPLE
from dsinga.nn.writing.reshaping import permuted, reshaped, rows_of
from dsinga.nn.writing.symbol import Symbol

MOST_SUMMED = 4096  # numbers along an axis, whose sums are a product with a matrix
HIDDEN = -1e9  # added to the scores of what is not seen; the softmax of numbers with it is 0 there
BOOL = np.dtype(bool)


def with_batch(x: Value, symbol: Symbol, rank: int, axis: int | None, dtype: Any = None) -> Value:
    """Return the tensor of a feature with ``rank`` axes, of which ``axis`` is the batch of ``x``."""
    rows, dtype = rows_of(symbol), x.dtype if dtype is None else np.dtype(dtype)
    if axis is None:
        return Value(symbol, rows[:rank], None, dtype)
    assert x.batch_axis is not None
    rows = rows if rank > 1 else ()  # of (B,), the rows have one number
    return Value(symbol, (*rows[:axis], x.shape[x.batch_axis], *rows[axis:]), axis, dtype)


def same_for_records(place: NodePlace, x: Constant, axis: int) -> Constant:
    """Return a constant with length 1 along the axis of the batch, counted from the end, for which it was made."""
    array, axis = x.array, axis + x.array.ndim
    if axis < 0 or array.shape[axis] == 1 or array.shape[axis] not in (place.batch, place.made.given_batch):
        return x
    first = array.take([0], axis)
    if array.strides[axis] and (x.is_param or not (array == first).all()):
        raise NotImportable("of constants that differ among the records of a batch")
    return replace(x, array=first)


def operands_of(place: NodePlace, given: Sequence[Operand | float]) -> list[Value | float]:
    """Return operands as tensors that layers compute, or numbers; constants that files name become params."""
    rank = max((x.rank for x in given if isinstance(x, Value)), default=0)

    def operand(x: Operand | float) -> Value | float:
        if isinstance(x, Constant) and is_bound(x.array):
            place.keep(x)  # a softmax makes 0 of it
            x = Constant(np.maximum(x.array, np.float32(HIDDEN)))
        elif isinstance(x, Constant) and x.array.size == 1 and x.array.ndim <= rank and not x.is_param:
            return decimal(float(x.array.reshape(())))
        return x if isinstance(x, float) else as_tensor(place, x, given)

    return [operand(x) for x in given]


def as_tensor(place: NodePlace, x: Operand, others: Sequence[Any]) -> Value:
    """Return an operand as a tensor that layers compute, beside others, of which some have an axis of the batch."""
    if isinstance(x, Value):
        return x
    axes = [other.batch_axis - other.rank for other in others if getattr(other, "batch_axis", None) is not None]
    return place.vector(same_for_records(place, x, axes[0]) if axes else x)


def aligned(place: NodePlace, tensors: Sequence[Value]) -> tuple[list[Symbol], int, int | None]:
    """Return features of as many axes, as numpy aligns tensors, and the rank and the axis of the batch of a result."""
    rank = max(x.rank for x in tensors)
    axes = {x.batch_axis + rank - x.rank for x in tensors if x.batch_axis is not None}
    if len(axes) > 1:
        raise NotImportable("of tensors whose batches are different axes")
    axis = axes.pop() if axes else None
    symbols = []
    for x in tensors:
        shape = (1,) * (rank - x.rank) + x.shape
        if axis is not None:
            if x.batch_axis is None and shape[axis] != 1:
                raise NotImportable(f"of a param of the shape {x.shape}, which would mix the records of a batch")
            shape = shape[:axis] + shape[axis + 1 :]
        is_same = rows_of(x.symbol) == (shape or (1,))
        symbols.append(x.symbol if is_same else reshaped(place, x.symbol, shape or (1,), ".aligned"))
    return symbols, rank, axis


def combine(place: NodePlace, operator: str, given: Sequence[Operand | float], dtype: Any = None) -> Value:
    """Return the result of an operator of kArithmetic of two operands, at least one of them a tensor."""
    operands = operands_of(place, given)
    tensors = [x for x in operands if isinstance(x, Value)]
    fields: dict[str, Any] = {"operator": operator}
    if len(tensors) == 1:
        symbols, rank, axis = [tensors[0].symbol], tensors[0].rank, tensors[0].batch_axis
        fields["number"] = operands[1] if isinstance(operands[0], Value) else operands[0]
        fields |= {} if isinstance(operands[0], Value) else {"swapped": True}
    else:
        symbols, rank, axis = aligned(place, tensors)
    is_simple = operator in SIMPLE and len(symbols) > 1 and rows_of(symbols[0]) == rows_of(symbols[1])
    kind, fields = (SIMPLE[operator], {}) if is_simple else ("kArithmetic", fields)
    y = nn.Layer(kind, name=place.name(), **fields)(symbols)
    owner = next((x for x in tensors if x.batch_axis is not None), tensors[0])
    return with_batch(owner, y, rank, axis, dtype)


def binary(operator: str, swaps: bool = False, dtype: Any = None) -> Callable[..., Value]:
    """Return the function of an operator of two tensors."""

    def operate(place: NodePlace, a: Any, b: Any) -> Value:
        return combine(place, operator, (b, a) if swaps else (a, b), dtype)

    return operate


add, multiply, subtract = map(binary, ("ADD", "MULTIPLY", "SUBTRACT"))


def chained(operator: str) -> Callable[..., Any]:
    """Return the function of an operator of any number of tensors."""

    def operate(place: NodePlace, first: Any, *others: Any) -> Any:
        tensors = [x for x in (first, *others) if isinstance(x, Value)]
        if (
            operator == "ADD"
            and len(tensors) == 1 + len(others) > 2
            and len({(x.shape, x.batch_axis) for x in tensors}) == 1
        ):
            return first.of(nn.Layer("kAdd", name=place.name())([x.symbol for x in tensors]))
        return functools.reduce(lambda a, b: combine(place, operator, (a, b)), others, first)

    return operate


def mean_of(place: NodePlace, *tensors: Any) -> Any:
    """Return the mean of any number of tensors."""
    return combine(place, "DIVIDE", (chained("ADD")(place, *tensors), float(len(tensors))))


def divide(place: NodePlace, a: Any, b: Any) -> Value:
    """Return a / b. Raises NotImportable for integers, whose fractions are cut off."""
    if isinstance(a, Value) and isinstance(b, Constant) and b.array.size == 1 and b.array.item() == 1:
        return a
    dtypes = {x.dtype.kind for x in (a, b) if not isinstance(x, float)}
    if dtypes and "f" not in dtypes:
        raise NotImportable("of integers, which cuts off fractions")
    return combine(place, "DIVIDE", (a, b))


def power(place: NodePlace, x: Any, exponent: Any) -> Value:
    """Return x ** exponent, where a number is no param."""
    if isinstance(x, Value) and isinstance(exponent, Constant) and not exponent.is_param and exponent.array.size:
        if (exponent.array == exponent.array.flat[0]).all():
            return combine(place, "POWER", (x, float(exponent.array.flat[0])))
    return combine(place, "POWER", (x, exponent))


def negative(place: NodePlace, x: Value) -> Value:
    """Return -x."""
    return multiply(place, x, -1.0)


def root(place: NodePlace, x: Value) -> Value:
    """Return √x."""
    return combine(place, "POWER", (x, 0.5))


def absolute(place: NodePlace, x: Value) -> Value:
    """Return max(x, 0) + max(-x, 0), whose gradient at 0 is 0."""
    parts = [nn.ReLU(name=place.name(".part"))(part.symbol) for part in (x, negative(place, x))]
    return x.of(nn.Layer("kAdd", name=place.name())(*parts))


def sign(place: NodePlace, x: Value) -> Value:
    """Return 1, 0 or -1, whose gradient is 0."""
    return subtract(place, combine(place, "GREATER", (x, 0.0)), combine(place, "GREATER", (0.0, x)))


def where(place: NodePlace, condition: Operand, a: Operand, b: Operand) -> Any:
    """Return a tensor where a condition holds, another one elsewhere; -inf is a number that softmax makes 0."""
    if isinstance(condition, Constant):
        shares: list[Operand] = [Constant(share.astype(np.float32)) for share in (condition.array, ~condition.array)]
        for x, other, share in ((a, b, shares[1]), (b, a, shares[0])):
            if (
                isinstance(x, Value)
                and isinstance(other, Constant)
                and not other.is_param
                and other.array.size
                and other.array.max() <= HIDDEN
            ):
                return add(place, x, Constant(np.asarray(share.array) * np.float32(HIDDEN)))  # type: ignore[union-attr]
    else:
        shares = [condition, subtract(place, 1.0, condition)]
    parts: list[Any] = []
    for x, share in zip((a, b), shares, strict=True):
        if isinstance(x, Constant):
            x = x if x.is_param else Constant(np.maximum(x.array, np.asarray(HIDDEN, x.array.dtype)))
            if not x.is_param and not x.array.any():
                continue
        if isinstance(x, Constant) and isinstance(share, Constant) and not x.is_param:
            if spread([x.array.shape, share.array.shape]) > LARGEST:
                raise NotImportable(f"that makes more than {LARGEST} numbers")
            parts.append(Constant(x.array * share.array))
        else:
            parts.append(multiply(place, share, x))
    dtype = (b if isinstance(a, Constant) and isinstance(b, Value) else a).dtype
    result: Value = parts[0] if len(parts) == 1 else add(place, *parts)
    return result.of(result.symbol, dtype)


def reduce(place: NodePlace, x: Value, axes: Sequence[int], keeps: bool, pool: str) -> Value:
    """Return the mean (AVG), sum (SUM) or maximum (MAX) over axes other than that of the batch."""
    batch = x.batch_axis
    if batch is None:
        symbol, shape, _ = reduced(
            place, x.symbol, (place.batch, *x.shape), 0, [axis + 1 for axis in axes], keeps, pool
        )
        return Value(symbol, shape[1:], None, x.dtype)
    if batch in axes:
        raise NotImportable("over the records of a batch")
    return Value(*reduced(place, x.symbol, x.shape, batch, axes, keeps, pool), x.dtype)


def reduction(pool: str, before: Any = None, after: Any = None) -> Callable[..., Any]:
    """Return the function of a reduction over axes, of what ``before`` makes of numbers, followed by ``after``."""

    def operate(place: NodePlace, x: Value, axes: Any = None) -> Any:
        is_over_all = not place.attribute("noop_with_empty_axes", 0)
        given = place.integers("axes", axes) or (range(x.rank) if is_over_all else [])
        over = sorted(axis_of(axis, x) for axis in given)
        y = before(place, x) if before else x
        y = reduce(place, y, over, bool(place.attribute("keepdims", 1)), pool) if over else y
        return after(place, y) if after else y

    return operate


def square(place: NodePlace, x: Value) -> Value:
    """Return x², as x·x."""
    return multiply(place, x, x)


def softmax(place: NodePlace, x: Value) -> Any:
    """Return the softmax over an axis of records; before version 13 over all axes from it on."""
    axis = axis_of(place.attribute("axis", -1 if place.version >= 13 else 1), x)
    if x.batch_axis is not None and (axis == x.batch_axis or (place.version < 13 and x.batch_axis >= axis)):
        raise NotImportable("over the records of a batch")
    symbol, rows = x.symbol, rows_of(x.symbol)
    row = axis + (x.batch_axis is None or axis < x.batch_axis)
    if place.version < 13 and row < len(rows):
        flat = reshaped(place, symbol, (*rows[: row - 1], math.prod(rows[row - 1 :])), ".flat")
        return x.of(reshaped(place, softmax_of_last(place, flat), rows, ".axes"))
    return x.of(softmax_over(place, symbol, row))


def log_softmax(place: NodePlace, x: Value) -> Any:
    """Return the logarithm of a softmax, x less its maximum, less the logarithm of the sum of its exponentials."""
    axis = axis_of(place.attribute("axis", -1 if place.version >= 13 else 1), x)
    axes = [axis] if place.version >= 13 else [*range(axis, x.rank)]
    x = subtract(place, x, reduce(place, x, axes, True, "MAX"))
    total = reduce(place, activated(place, x, "EXP"), axes, True, "SUM")
    return subtract(place, x, activated(place, total, "LOG"))


def activated(place: NodePlace, x: Value, kind: str) -> Value:
    """Return what a function of kActivation makes of numbers."""
    return x.of(nn.Layer("kActivation", activation_conf={"type": kind}, name=place.name())(x.symbol))


def running_sum(place: NodePlace, x: Value, axis: Any) -> Value:
    """Return the sums of all numbers up to each along an axis of records: a product with ones."""
    along = axis_of(integers(axis, "axis")[0], x)
    if along == x.batch_axis or x.shape[along] > MOST_SUMMED:
        raise NotImportable(f"over the records of a batch, or of more than {MOST_SUMMED} numbers")
    ones = np.triu(np.ones((x.shape[along],) * 2, np.float32), int(bool(place.attribute("exclusive", 0))))
    ones = ones.T if place.attribute("reverse", 0) else ones
    row, rows = along - (x.batch_axis is not None and along > x.batch_axis), rows_of(x.symbol)
    last = [*range(1, row + 1), *range(row + 2, len(rows) + 1), row + 1]
    turned = permuted(place, x.symbol, last, ".last")
    flat = reshaped(place, turned, (math.prod(rows) // rows[row], rows[row]), ".rows")
    matrix = place.vector(Constant(ones), ".ones").symbol
    y = reshaped(
        place, nn.Layer("kArithmetic", operator="MATMUL", name=place.name())([flat, matrix]), rows_of(turned), ".axes"
    )
    return x.of(permuted(place, y, [last.index(at) + 1 for at in range(1, len(rows) + 1)], ".back"))


def largest_index(place: NodePlace, x: Value) -> Any:
    """Return the index of the largest number of each record."""
    if place.attribute("select_last_index", 0) or x.rank != 2 or axis_of(place.attribute("axis", 0), x) != 1:
        raise NotImportable("of other than records that are vectors")
    y = nn.Layer("kArgSort", topk=1, name=place.name())(feature(x))
    shape = x.shape[:1] + (1,) * place.attribute("keepdims", 1)
    return Value(y, shape, 0, np.dtype(np.int64))


ARITHMETIC: Mapping[str, Callable[..., Any]] = {
    **{"Add": add, "Sub": subtract, "Mul": multiply, "Div": divide, "Pow": power, "Mean": mean_of},
    **{name: chained(operator) for name, operator in {"Sum": "ADD", "Max": "MAXIMUM", "Min": "MINIMUM"}.items()},
    **{"Neg": negative, "Abs": absolute, "Sign": sign, "Sqrt": root},
    "Reciprocal": lambda place, x: combine(place, "DIVIDE", (1.0, x)),
    **{"Equal": binary("EQUAL", dtype=BOOL), "Xor": binary("NOT_EQUAL", dtype=BOOL), "And": multiply},
    **{"Greater": binary("GREATER", dtype=BOOL), "GreaterOrEqual": binary("GREATER_EQUAL", dtype=BOOL)},
    **{"Less": binary("GREATER", True, BOOL), "LessOrEqual": binary("GREATER_EQUAL", True, BOOL)},
    **{"Or": binary("MAXIMUM"), "Not": lambda place, x: subtract(place, 1.0, x), "Where": where},
    **{"ReduceMean": reduction("AVG"), "ReduceSum": reduction("SUM"), "ReduceMax": reduction("MAX")},
    **{"ReduceMin": reduction("MAX", negative, negative), "ReduceL1": reduction("SUM", absolute)},
    **{"ReduceL2": reduction("SUM", square, root), "ReduceSumSquare": reduction("SUM", square)},
    **{"Softmax": softmax, "LogSoftmax": log_softmax, "CumSum": running_sum, "ArgMax": largest_index},
}
