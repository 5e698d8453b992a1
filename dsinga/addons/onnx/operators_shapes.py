"""Makes layers for ONNX's operators on shapes: reshaping, permuting, cutting, joining and repeating tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.operators_arithmetic import BOOL, aligned, as_tensor, combine, with_batch
from dsinga.addons.onnx.values import Constant, NotImportable, Operand, Value, axis_of, integers
from dsinga.nn.writing.composed import is_input
from dsinga.nn.writing.reshaping import permuted, reshaped, rows_of
from dsinga.nn.writing.symbol import Symbol

MOST_SEQUENCE, MOST_PROJECTED = 4096, 1 << 24  # parts of a sequence; numbers of queries, keys and values
MOST_PARTS = 64  # of a tensor that are taken one by one, by an index that is no slice


def view(place: NodePlace, x: Value, shape: Sequence[int]) -> Value:
    """Return a tensor in another shape, which may have the batch and its neighbours as one axis. Raises NotImportable.

    Records would be mixed where the batch is in parts of several axes.
    """
    shape = tuple(shape)
    if math.prod(shape) != math.prod(x.shape):
        raise NotImportable(f"from {x.seen} to {shape}, which has another number of numbers")
    if x.batch_axis is None:
        return Value(reshaped(place, x.symbol, shape or (1,)), shape, None, x.dtype)
    before = math.prod(x.shape[: x.batch_axis])
    axis = axis_with_batch(shape, before, place.batch)
    if axis is None:
        raise NotImportable("that mixes the records of a batch")
    start, size = math.prod(shape[:axis]), shape[axis]
    if before % start or (start * size) % (before * place.batch):
        raise NotImportable("that mixes the records of a batch")
    outer, inner = before // start, start * size // (before * place.batch)
    parts = [*([outer] if outer > 1 else []), place.batch, *([inner] if inner > 1 else [])]
    merged = (axis, axis + len(parts)) if len(parts) > 1 else None
    shape, axis = (*shape[:axis], *parts, *shape[axis + 1 :]), axis + (outer > 1)
    rows = (*shape[:axis], *shape[axis + 1 :]) or (1,)
    symbol = x.symbol if rows == rows_of(x.symbol) else reshaped(place, x.symbol, rows)
    return Value(symbol, shape, axis, x.dtype, merged)


def axis_with_batch(shape: Sequence[int], before: int, batch: int) -> int | None:
    """Return the axis of a shape that is the batch, or has it, after ``before`` numbers; None for no axis."""
    starts = [math.prod(shape[:axis]) for axis in range(len(shape))]
    exact = [axis for axis, start in enumerate(starts) if start == before and shape[axis] == batch]
    ends = [axis for axis, start in enumerate(starts) if start <= before and start * shape[axis] >= before * batch]
    return next(iter(exact + ends), None)


def reshape(place: NodePlace, x: Value, shape: Any = None) -> Value:
    """Return a tensor in a shape, in which 0 stands for the size that it has and -1 for what is left."""
    sizes = place.integers("shape", shape)
    is_open = not place.attribute("allowzero", 0)
    sizes = [x.seen[axis] if size == 0 and is_open else size for axis, size in enumerate(sizes)]
    known, total = max(math.prod(size for size in sizes if size != -1), 1), math.prod(x.shape)
    result, given = [total // known if size == -1 else size for size in sizes], place.made.given_batch
    before = math.prod(x.shape[: x.batch_axis])
    if not given and math.prod(result) != total:  # which the file computes for one number of records only
        given = next((size for axis, size in enumerate(sizes) if size > 0 and math.prod(sizes[:axis]) == before), None)
    if x.batch_axis is None or not given:
        return view(place, x, result)
    of_file = [total // place.batch * given // known if size == -1 else size for size in sizes]
    ways = [(size, own) for size, own in ((place.batch, result), (given, of_file)) if math.prod(own) * place.batch
            == total * size]  # fmt: skip
    for is_exact in (True, False):
        for size, own in ways:
            axis = axis_with_batch(own, before, size)
            if axis is not None and (not is_exact or own[axis] == size):
                return view(place, x, [*own[:axis], own[axis] // size * place.batch, *own[axis + 1 :]])
    raise NotImportable("that mixes the records of a batch")


def shape_of(place: NodePlace, x: Value) -> Constant:
    """Return the shape of a tensor, as numbers."""
    return Constant(np.asarray(x.seen[slice(place.attribute("start", 0), place.attribute("end"))], np.int64))


def flatten(place: NodePlace, x: Value) -> Value:
    """Return a tensor as a matrix."""
    axis = place.attribute("axis", 1)
    axis += x.rank if axis < 0 else 0
    return view(place, x, (math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def transpose(place: NodePlace, x: Value) -> Value:
    """Return a tensor with its axes in another order; merged ones stay next to each other."""
    start, stop = x.merged or (0, 1)
    axes = [[axis] for axis in range(start)] + [[*range(start, stop)]] + [[axis] for axis in range(stop, x.rank)]
    groups = [axes[axis] for axis in place.attribute("perm", [*range(len(axes))][::-1])]
    order, batch = [axis for group in groups for axis in group], x.batch_axis
    shape = tuple(x.shape[axis] for axis in order)
    if batch is None:
        return Value(permuted(place, x.symbol, [axis + 1 for axis in order]), shape, None, x.dtype)
    rows = [axis + (axis < batch) for axis in order if axis != batch]
    merged = (order.index(start), order.index(start) + stop - start) if x.merged else None
    return Value(permuted(place, x.symbol, rows) if rows else x.symbol, shape, order.index(batch), x.dtype, merged)


def squeeze(place: NodePlace, x: Value, axes: Any = None) -> Value:
    """Return a tensor without axes of length 1."""
    given = place.integers("axes", axes)
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    gone = ones if given is None else [axis_of(axis, x) for axis in given]
    if not {*gone} <= {*ones}:
        raise NotImportable("of axes that are longer than 1")
    if id(x.symbol) in place.made.parts:  # of an axis from which one was taken, that one
        whole, axis, number = place.made.parts[id(x.symbol)]
        if gone == [axis]:
            return part(place, whole, axis, number)
    return view(place, x, [size for axis, size in enumerate(x.shape) if axis not in gone])


def unsqueeze(place: NodePlace, x: Value, axes: Any = None) -> Value:
    """Return a tensor with further axes of length 1."""
    given = place.integers("axes", axes)
    new, sizes = {axis_of(axis, [0] * (x.rank + len(given))) for axis in given}, iter(x.shape)
    return view(place, x, [1 if axis in new else next(sizes) for axis in range(x.rank + len(given))])


def expand(place: NodePlace, x: Value, shape: Any) -> Value:
    """Return a tensor with axes of length 1 repeated; of a param, which is the same for all records, for a batch."""
    rank, sizes = x.rank, integers(shape, "shape")
    if x.batch_axis is not None:
        at = x.batch_axis - rank + len(sizes)
        sizes = [1 if axis == at and size == place.made.given_batch else size for axis, size in enumerate(sizes)]
    try:
        result = np.broadcast_shapes(x.shape, tuple(sizes))
    except ValueError:
        raise NotImportable(f"from {x.shape} to {tuple(sizes)}") from None
    own = (1,) * (len(result) - rank) + x.shape
    axis = x.batch_axis + len(result) - rank if x.batch_axis is not None else None
    for count in (place.batch, place.made.given_batch):
        if axis is None and count in result and own[result.index(count)] == 1 < (count or 0):
            axis = result.index(count)
            result = (*result[:axis], place.batch, *result[axis + 1 :])
    rows, own_rows = ([size for at, size in enumerate(shape) if at != axis] or [1] for shape in (result, own))
    symbol = x.symbol if tuple(own_rows) == rows_of(x.symbol) else reshaped(place, x.symbol, own_rows, ".aligned")
    if rows != own_rows:
        zeros = place.vector(Constant(np.broadcast_to(np.float32(0), rows)), ".zeros").symbol
        symbol = nn.Layer("kArithmetic", operator="ADD", name=place.name())(symbol, zeros)
    return Value(symbol, result, axis, x.dtype)


def tile(place: NodePlace, x: Value, repeats: Any) -> Value:
    """Return a tensor repeated along its axes."""
    counts = integers(repeats, "repeats")
    for axis, count in enumerate(counts):
        if count > 1 and axis == x.batch_axis:
            raise NotImportable("along the records of a batch")
        if count == place.batch and x.batch_axis is None and x.shape[axis] == 1:
            sizes = [count if at == axis else 1 for at in range(x.rank)]
            x = expand(place, x, Constant(np.asarray(sizes, np.int64)))
        elif count > MOST_PARTS or count < 1:
            raise NotImportable(f"{count} times")
        elif count > 1:
            x = joined(place, [x] * count, axis)
    return x


def concat(place: NodePlace, *tensors: Operand) -> Value:
    """Return tensors joined along an axis."""
    like = [next((x for x in tensors if getattr(x, "batch_axis", None) is not None), None)]
    values = [as_tensor(place, x, like) for x in tensors]
    return joined(place, values, axis_of(place.attribute("axis", 0), values[0]))


def joined(place: NodePlace, tensors: Sequence[Value], axis: int) -> Value:
    """Return tensors of one rank joined along an axis."""
    symbols, rank, batch = aligned(place, tensors)
    if axis == batch:
        raise NotImportable("along the records of a batch")
    owner = next((x for x in tensors if x.batch_axis is not None), tensors[0])
    row = axis if batch is None else axis - (axis > batch)
    y = symbols[0]
    if len(symbols) > 1:
        rows = rows_of(y)
        inner = row > 2  # kConcate joins the first axes
        if inner:
            shapes = [(math.prod(rows[:row]), rows_of(x)[row], math.prod(rows[row + 1 :])) for x in symbols]
            symbols = [reshaped(place, x, shape, ".parts") for x, shape in zip(symbols, shapes, strict=True)]
        y = nn.Concatenate(axis=2 if inner else row + 1, name=place.name())(symbols)
        y = reshaped(place, y, (*rows[:row], rows_of(y)[1], *rows[row + 1 :]), ".axes") if inner else y
    return with_batch(owner, y, rank, batch)


def part(place: NodePlace, x: Value, axis: int, item: int | slice) -> Value:
    """Return part of a tensor along an axis; a number leaves the axis out."""
    shape, batch, size = list(x.shape), x.batch_axis, x.shape[axis]
    if isinstance(item, slice):
        start, stop, step = item.indices(size)
        shape[axis] = len(range(start, stop, step))
        if shape[axis] == size and step == 1:
            return x
        item = slice(start, None if stop < 0 else stop, None if step == 1 else step)
    else:
        del shape[axis]
        item = item % size
    if axis == batch:
        raise NotImportable("of some records of a batch")
    row = axis if batch is None else axis - (axis > batch)
    if isinstance(item, int) and row == 0 and x.symbol.builder.settings.get("axis") == 1 and x.symbol.sources[1:]:
        for source in x.symbol.sources:  # of what was joined
            if item < (length := rows_of(source)[0]):
                joint = replace(x, symbol=source, shape=(*x.shape[:axis], length, *x.shape[axis + 1 :]))
                return part(place, joint, axis, item)
            item -= length
    if isinstance(item, int) and row == 0 and (projected := part_of_projection(place, x.symbol, item)) is not None:
        return Value(projected, tuple(shape), None if batch is None else batch - (axis < batch), x.dtype)
    if isinstance(item, int) and size == 1:
        return view(place, x, shape)
    symbol = x.symbol[(slice(None), *[slice(None)] * row, item)]
    symbol.builder.name = place.name()
    batch = batch - (axis < batch and isinstance(item, int)) if batch is not None else None
    if not rows_of(symbol):  # (B,), of which other layers make (B, 1)
        symbol = nn.Reshape([1], name=place.name(".rows"))(symbol)
    if isinstance(item, slice) and shape[axis] == 1:
        place.made.parts[id(symbol)] = x, axis, item.start
    return Value(symbol, tuple(shape), batch, x.dtype)


def part_of_projection(place: NodePlace, symbol: Symbol, item: int) -> Any:
    """Return queries, keys or values of PyTorch's attention, of its one projection to all three; None for others."""
    chain = [symbol]
    while chain[-1].builder.kind in ("Reshape", "Permute") and len(chain) < MOST_PARTS:
        chain.append(chain[-1].sources[0])
    dense = chain.pop()
    name, rows = dense.builder.name or "", rows_of(dense)
    bias = place.made.given.get((name, "bias"))
    is_projection = bias is not None and bias[0].name.endswith("in_proj_bias") and len(rows) == 2 and rows[1] % 3 == 0
    if not is_projection or math.prod(rows) > MOST_PROJECTED:
        return None
    numbers = np.arange(math.prod(rows), dtype=np.int32)
    which = numbers.reshape(rows)
    for x in reversed(chain):
        dims = x.builder.settings.get("dims")
        which = which.reshape(rows_of(x)) if dims is None else which.transpose([axis - 1 for axis in dims])
    if which.shape[0] != 3 or not np.array_equal(
        which[item].ravel(), numbers.reshape(-1, 3, rows[1] // 3)[:, item].ravel()
    ):
        return None
    params = {}
    for role in ("weight", "bias"):
        if (given := place.made.given.get((name, role))) is not None:
            own = np.split(given[1], 3)[item]
            params[role] = Constant(own, f"{given[0].name} {item}" if given[0].name else ""), own
    own_place = NodePlace(place.made, place.node, f"{name.removesuffix('.in_proj')}.in_proj_{'qkv'[item]}")
    y = own_place.layer(nn.Dense, params, units=rows[1] // 3, use_bias="bias" in params)(dense.sources[0])
    return reshaped(place, y, rows_of(symbol)[1:], ".part")


def slice_of(
    place: NodePlace, x: Value, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Value:
    """Return part of a tensor along axes."""
    firsts, lasts = place.integers("starts", starts), place.integers("ends", ends)
    along = [axis_of(axis, x) for axis in place.integers("axes", axes) or range(len(firsts))]
    gaps = place.integers("steps", steps) or [1] * len(firsts)
    for axis, start, end, step in zip(along, firsts, lasts, gaps, strict=True):
        if axis != x.batch_axis or (start, step) != (0, 1) or end not in (place.made.given_batch, x.shape[axis]):
            x = part(place, x, axis, slice(start, end, step))
    return x


def split(place: NodePlace, x: Value, sizes: Any = None) -> list[Value]:
    """Return the parts of a tensor along an axis."""
    axis, count = axis_of(place.attribute("axis", 0), x), len(place.node.output)
    lengths = place.integers("split", sizes)
    if lengths is None:
        length = -(-x.shape[axis] // count)
        lengths = [min(length, x.shape[axis] - length * number) for number in range(count)]
    if min(lengths) < 0 or sum(lengths) != x.shape[axis]:
        raise NotImportable(f"into {len(lengths)} parts that are not the {x.shape[axis]} of the axis {axis}")
    ends = np.cumsum(lengths).tolist()
    return [part(place, x, axis, slice(end - size, end)) for end, size in zip(ends, lengths, strict=True)]


def split_to_sequence(place: NodePlace, x: Value, sizes: Any = None) -> list[list[Value]]:
    """Return one sequence: the parts of a tensor along an axis, all but the last of one length, or of given ones."""
    axis = axis_of(place.attribute("axis", 0), x)
    lengths = [1] if sizes is None else integers(sizes, "parts")
    if x.shape[axis] > MOST_SEQUENCE:
        raise NotImportable(f"of {x.shape[axis]} parts")
    if sizes is None or not sizes.array.ndim:
        lengths = [min(lengths[0], x.shape[axis] - at) for at in range(0, x.shape[axis], max(lengths[0], 1))]
    ends = np.cumsum(lengths).tolist()
    return [[part(place, x, axis, slice(end - size, end)) for end, size in zip(ends, lengths, strict=True)]]


def sequence_at(place: NodePlace, parts: list[Value], position: Any) -> Value:
    """Return a part of a sequence."""
    return parts[integers(position, "position")[0]]


def gather(place: NodePlace, x: Any, codes: Any) -> Value:
    """Return parts of a tensor by constant indices, or the vectors of a table by codes."""
    axis = axis_of(place.attribute("axis", 0), x)
    if isinstance(x, Constant) and isinstance(codes, Value):
        return embedding(place, x, codes, axis)
    if isinstance(codes, Value):
        if x.batch_axis is not None or axis or codes.batch_axis or codes.rank < 2 or x.rank != 2:
            raise NotImportable("by indices that depend on a batch")
        flat = reshaped(place, codes.symbol, (math.prod(codes.shape[1:]),), ".codes")
        hot = nn.Layer("kOneHot", onehot_conf={"vocab_size": x.shape[0]}, name=place.name(".one_hot"))(flat)
        y = nn.Layer("kArithmetic", operator="MATMUL", name=place.name())([hot, x.symbol])
        return Value(reshaped(place, y, (*codes.shape[1:], x.shape[1]), ".axes"), (*codes.shape, x.shape[1]))
    size = x.shape[axis]
    if codes.array.size > max(size, MOST_PARTS):
        raise NotImportable(f"by {codes.array.size} indices that are no neighbours")
    if codes.array.size and not -size <= codes.array.min() <= codes.array.max() < size:
        raise NotImportable(f"by indices beyond its {size} parts")
    numbers = [int(number) % size for number in codes.array.ravel()]
    if not codes.array.ndim:
        return part(place, x, axis, numbers[0])
    steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)} or {1}
    if len(steps) == 1 and 0 not in steps:
        step, stop = min(steps), numbers[-1] + min(steps)
        y = part(place, x, axis, slice(numbers[0], None if stop < 0 else stop, step))
    elif axis == x.batch_axis:
        raise NotImportable("of some records of a batch")
    else:
        row = axis if x.batch_axis is None else axis - (axis > x.batch_axis)
        symbol = x.symbol[(slice(None), *[slice(None)] * row, numbers)]
        symbol.builder.name = place.name()
        y = replace(x, symbol=symbol, shape=(*x.shape[:axis], len(numbers), *x.shape[axis + 1 :]))
    return view(place, y, (*x.shape[:axis], *codes.array.shape, *x.shape[axis + 1 :]))


def embedding(place: NodePlace, table: Constant, codes: Value, axis: int) -> Value:
    """Return the vectors of codes."""
    if axis or codes.batch_axis is None:
        raise NotImportable("of a table along another axis, or by codes that are the same for all records")
    array = np.asarray(table.array, np.float32).reshape(len(table.array), -1)
    settings: dict[str, Any] = {"vocab_size": len(array), "feature_dim": array.shape[1], "dense_gradient": True}
    layer = place.layer("kEmbedding", {"weight": (table, array)}, **settings)
    rows, batch = rows_of(codes.symbol), codes.batch_axis
    y = layer(codes.symbol if len(rows) < 2 else reshaped(place, codes.symbol, (math.prod(rows),), ".codes"))
    shape = (*codes.shape, *table.array.shape[1:])
    rows = tuple(size for at, size in enumerate(shape) if at != batch) or (1,)
    return Value(y if rows_of(y) == rows else reshaped(place, y, rows, ".axes"), shape, batch, table.array.dtype)


def cast(place: NodePlace, x: Operand, like: Any = None) -> Operand:
    """Return a tensor in another dtype, which must hold its numbers. Raises NotImportable where it may not."""
    from onnx import helper

    if like is None:
        dtype = np.dtype(helper.tensor_dtype_to_np_dtype(place.attribute("to")))
    else:
        dtype = like.dtype
    if isinstance(x, Constant):  # whose dtype a tensor of the layers says
        return replace(x, array=x.array.astype(dtype))
    if dtype == BOOL != x.dtype:
        return combine(place, "NOT_EQUAL", (x, 0.0), BOOL)
    if dtype.kind not in "fiub" or (dtype.kind == "f" and dtype.itemsize < 4):
        raise NotImportable(f"to {dtype}, which rounds numbers")
    if dtype.kind in "iu" and x.dtype.kind == "f" and not is_input(x.symbol):
        raise NotImportable("to integers of what is no input of the net, which cuts off fractions")
    return x.of(x.symbol, dtype)


SHAPES: Mapping[str, Callable[..., Any]] = {
    **{"Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze, "Unsqueeze": unsqueeze, "Shape": shape_of},
    "Size": lambda place, x: Constant(np.asarray(math.prod(x.shape), np.int64)),
    **{"Transpose": transpose, "Expand": expand, "Tile": tile, "Concat": concat, "Split": split, "Slice": slice_of},
    **{"SplitToSequence": split_to_sequence, "SequenceAt": sequence_at},
    **{"Gather": gather, "Cast": cast, "CastLike": cast},
}
