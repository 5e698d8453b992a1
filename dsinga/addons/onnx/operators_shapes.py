"""Converts ONNX's operators on shapes: reshaping, permuting, cutting, joining and repeating tensors."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.node_place import NodePlace
from dsinga.addons.onnx.values import Constant, integers
from dsinga.nn.words.basic_layers import Dense, layer_of_type
from dsinga.nn.writing.composed import MOST_PARTS, is_input, looked_up, tiled
from dsinga.nn.writing.reshaping import NoLayer, axis_of, axis_with_batch, reshaped, rows_of
from dsinga.nn.writing.symbol import Symbol
from dsinga.nn.writing.tensor import BOOL, MIXES, Tensor, arithmetic, batched, joined

MOST_SEQUENCE, MOST_PROJECTED = 4096, 1 << 24  # parts of a sequence; numbers of queries, keys and values


def reshape(place: NodePlace, x: Tensor, shape: Any = None, allowzero: int = 0) -> Tensor:
    """Reshape a tensor; in the shape, 0 keeps a size and -1 is the rest."""
    sizes = [
        x.seen[axis] if size == 0 and not allowzero else size for axis, size in enumerate(integers(shape, "shape"))
    ]
    known, total = max(math.prod(size for size in sizes if size != -1), 1), math.prod(x.shape)
    result, given = [total // known if size == -1 else size for size in sizes], place.made.given_batch
    before = math.prod(x.shape[: x.batch_axis])
    if not given and math.prod(result) != total:  # which the file computes for one number of records only
        given = next((size for axis, size in enumerate(sizes) if size > 0 and math.prod(sizes[:axis]) == before), None)
    if x.batch_axis is None or not given:
        return x.reshape(result)
    of_file = [total // place.batch * given // known if size == -1 else size for size in sizes]
    ways = [(size, own) for size, own in ((place.batch, result), (given, of_file)) if math.prod(own) * place.batch
            == total * size]  # fmt: skip
    for is_exact in (True, False):
        for size, own in ways:
            axis = axis_with_batch(own, before, size)
            if axis is not None and (not is_exact or own[axis] == size):
                return x.reshape([*own[:axis], own[axis] // size * place.batch, *own[axis + 1 :]])
    raise NoLayer(MIXES)


def flatten(x: Tensor, axis: int = 1) -> Tensor:
    """Convert Flatten: reshape a tensor to a matrix."""
    axis += x.rank if axis < 0 else 0
    return x.reshape((math.prod(x.shape[:axis]), math.prod(x.shape[axis:])))


def transpose(x: Tensor, perm: Any = None) -> Tensor:
    """Permute a tensor's axes; merged ones stay next to each other."""
    start, stop = x.merged or (0, 1)
    axes = [[axis] for axis in range(start)] + [[*range(start, stop)]] + [[axis] for axis in range(stop, x.rank)]
    order = [axis for at in perm or [*range(len(axes))][::-1] for axis in axes[at]]
    merged = (order.index(start), order.index(start) + stop - start) if x.merged else None
    return replace(x.transpose(order), merged=merged)


def squeeze(place: NodePlace, x: Tensor, axes: Any = None) -> Tensor:
    """Remove axes of length 1."""
    given = integers(axes, "axes")
    ones = [axis for axis, size in enumerate(x.shape) if size == 1]
    gone = ones if given is None else [x.axis(axis) for axis in given]
    if not {*gone} <= {*ones}:
        raise NoLayer("of axes that are longer than 1")
    if id(x.symbol) in place.made.parts:  # of an axis from which one was taken, that one
        whole, axis, number = place.made.parts[id(x.symbol)]
        if gone == [axis]:
            return part(replace(whole, place=place), axis, number)
    return x.reshape([size for axis, size in enumerate(x.shape) if axis not in gone])


def unsqueeze(x: Tensor, axes: Any = None) -> Tensor:
    """Add axes of length 1."""
    given = integers(axes, "axes")
    new, sizes = {axis_of(axis, x.rank + len(given)) for axis in given}, iter(x.shape)
    return x.reshape([1 if axis in new else next(sizes) for axis in range(x.rank + len(given))])


def expand(place: NodePlace, x: Tensor, shape: Any) -> Tensor:
    """Repeat a tensor's axes of length 1; a param, which all records share, is repeated for a batch."""
    sizes, given = integers(shape, "shape"), place.made.given_batch
    at = None if x.batch_axis is None else x.batch_axis - x.rank + len(sizes)
    sizes = [1 if axis == at and size == given else size for axis, size in enumerate(sizes)]
    try:
        result = np.broadcast_shapes(x.shape, tuple(sizes))
    except ValueError:
        raise NoLayer(f"from {x.shape} to {tuple(sizes)}") from None
    own = (1,) * (len(result) - x.rank) + x.shape
    is_for_batch = given in result and own[result.index(given)] == 1 < (given or 0)
    if at is None and place.batch not in result and is_for_batch:
        result = tuple(place.batch if axis == result.index(given) else size for axis, size in enumerate(result))
    return x.expand(result)


def concat(place: NodePlace, *tensors: Any, axis: int = 0) -> Tensor:
    """Convert Concat: join tensors along an axis."""
    like = [next((x for x in tensors if getattr(x, "batch_axis", None) is not None), None)]
    values = [place.tensor(x, like) for x in tensors]
    return joined(values, values[0].axis(axis))


def part(x: Tensor, axis: int, item: int | slice) -> Tensor:
    """Return part of a tensor along an axis; an integer removes the axis."""
    if isinstance(item, slice):
        start, stop, step = item.indices(x.shape[axis])
        if len(range(start, stop, step)) == x.shape[axis] and step == 1:
            return x
        y = x.part(axis, slice(start, None if stop < 0 else stop, None if step == 1 else step))
        if y.shape[axis] == 1:
            x.place.made.parts[id(y.symbol)] = x, axis, start
        return y
    item = item % x.shape[axis]
    is_first = axis != x.batch_axis and axis - (x.batch_axis == 0) == 0
    if is_first and (projected := part_of_projection(x.place, x.symbol, item)) is not None:
        batch = None if x.batch_axis is None else x.batch_axis - (axis < x.batch_axis)
        return replace(x, source=projected, shape=(*x.shape[:axis], *x.shape[axis + 1 :]), batch_axis=batch)
    return x.part(axis, item)


def part_of_projection(place: NodePlace, symbol: Symbol, item: int) -> Any:
    """Find queries, keys or values in the joint projection of PyTorch's attention; None for others."""
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
    y = own_place.layer(Dense, params, units=rows[1] // 3, use_bias="bias" in params)(dense.sources[0])
    return reshaped(place, y, rows_of(symbol)[1:], ".part")


def slice_of(
    place: NodePlace, x: Tensor, starts: Any = None, ends: Any = None, axes: Any = None, steps: Any = None
) -> Tensor:
    """Convert Slice: cut part of a tensor along axes."""
    firsts, lasts = integers(starts, "starts"), integers(ends, "ends")
    along = [x.axis(axis) for axis in integers(axes, "axes") or range(len(firsts))]
    gaps = integers(steps, "steps") or [1] * len(firsts)
    for axis, start, end, step in zip(along, firsts, lasts, gaps, strict=True):
        if axis != x.batch_axis:
            x = part(x, axis, slice(start, end, step))
        elif (start, step) != (0, 1) or end not in (place.made.given_batch, x.shape[axis]):
            raise NoLayer("of some records of a batch")
    return x


def split_of(place: NodePlace, x: Tensor, split: Any = None, axis: int = 0) -> list[Tensor]:
    """Convert Split: cut a tensor into parts along an axis."""
    axis, count, lengths = x.axis(axis), len(place.node.output), integers(split, "split")
    if lengths is None:
        length = -(-x.shape[axis] // count)
        lengths = [min(length, x.shape[axis] - length * number) for number in range(count)]
    if min(lengths) < 0 or sum(lengths) != x.shape[axis]:
        raise NoLayer(f"into {len(lengths)} parts that are not the {x.shape[axis]} of the axis {axis}")
    return parts_of(x, axis, lengths)


def parts_of(x: Tensor, axis: int, lengths: list[int]) -> list[Tensor]:
    """Cut a tensor into consecutive parts along an axis."""
    ends = np.cumsum(lengths).tolist()
    return [part(x, axis, slice(end - size, end)) for end, size in zip(ends, lengths, strict=True)]


def split_to_sequence(x: Tensor, split: Any = None, axis: int = 0) -> list[list[Tensor]]:
    """Convert SplitToSequence to a list of parts along an axis, of equal (except the last) or given lengths."""
    axis = x.axis(axis)
    lengths = [1] if split is None else integers(split, "parts")
    if x.shape[axis] > MOST_SEQUENCE:
        raise NoLayer(f"of {x.shape[axis]} parts")
    if split is None or not split.array.ndim:
        lengths = [min(lengths[0], x.shape[axis] - at) for at in range(0, x.shape[axis], max(lengths[0], 1))]
    return [parts_of(x, axis, lengths)]


def gather(place: NodePlace, x: Any, codes: Any, axis: int = 0) -> Tensor:
    """Convert Gather: parts of a tensor at constant indices, or a table's vectors for codes."""
    axis = axis_of(axis, len(x.array.shape) if isinstance(x, Constant) else x.rank)
    if isinstance(x, Constant) and isinstance(codes, Tensor):
        return embedding(place, x, codes, axis)
    if isinstance(codes, Tensor):
        if x.batch_axis is not None or axis or codes.batch_axis or codes.rank < 2 or x.rank != 2:
            raise NoLayer("by indices that depend on a batch")
        hot = layer_of_type("kOneHot", onehot_conf={"vocab_size": x.shape[0]}, name=place.name(".one_hot"))
        return looked_up(codes, lambda flat: (batched(place, hot(flat)) @ x).symbol, x.shape[1:])
    size = x.shape[axis]
    if codes.array.size > max(size, MOST_PARTS):
        raise NoLayer(f"by {codes.array.size} indices that are no neighbours")
    if codes.array.size and not -size <= codes.array.min() <= codes.array.max() < size:
        raise NoLayer(f"by indices beyond its {size} parts")
    numbers = [int(number) % size for number in codes.array.ravel()]
    if not codes.array.ndim:
        return part(x, axis, numbers[0])
    steps = {b - a for a, b in zip(numbers, numbers[1:], strict=False)} or {1}
    if len(steps) == 1 and 0 not in steps:
        step, stop = min(steps), numbers[-1] + min(steps)
        y = part(x, axis, slice(numbers[0], None if stop < 0 else stop, step))
    else:
        y = x.part(axis, numbers)
    return y.reshape((*x.shape[:axis], *codes.array.shape, *x.shape[axis + 1 :]))


def embedding(place: NodePlace, table: Constant, codes: Tensor, axis: int) -> Tensor:
    """Convert a Gather that looks codes up in a constant table to a kEmbedding layer."""
    if axis or codes.batch_axis is None:
        raise NoLayer("of a table along another axis, or by codes that are the same for all records")
    array = np.asarray(table.array, np.float32).reshape(len(table.array), -1)
    settings: dict[str, Any] = {"vocab_size": len(array), "feature_dim": array.shape[1], "dense_gradient": True}
    layer = place.layer("kEmbedding", {"weight": (table, array)}, **settings)
    return looked_up(codes, layer, table.array.shape[1:])


def cast(place: NodePlace, x: Any, like: Any = None, to: int = 1) -> Any:
    """Convert Cast, if the dtype holds the numbers."""
    from onnx import helper

    dtype = np.dtype(helper.tensor_dtype_to_np_dtype(to)) if like is None else like.dtype
    if isinstance(x, Constant):  # a tensor of the layers gives its dtype
        return replace(x, array=x.array.astype(dtype))
    if dtype == BOOL != x.dtype:
        return arithmetic(place, "NOT_EQUAL", x, 0.0, dtype=BOOL)
    if dtype.kind not in "fiub" or (dtype.kind == "f" and dtype.itemsize < 4):
        raise NoLayer(f"to {dtype}, which rounds numbers")
    if dtype.kind in "iu" and x.dtype.kind == "f" and not is_input(x):
        raise NoLayer("to integers of what is no input of the net, which cuts off fractions")
    return x.of(x.symbol, dtype)


SHAPES: Mapping[str, Callable[..., Any]] = {
    **{"Reshape": reshape, "Flatten": flatten, "Squeeze": squeeze, "Unsqueeze": unsqueeze},
    "Shape": lambda x, start=0, end=None: Constant(np.asarray(x.seen[start:end], np.int64)),
    "Size": lambda x: Constant(np.asarray(math.prod(x.shape), np.int64)),
    **{
        "Transpose": transpose,
        "Expand": expand,
        "Tile": lambda x, repeats: tiled(x, integers(repeats, "repeats")),
        "Concat": concat,
        "Split": split_of,
        "Slice": slice_of,
    },
    "SplitToSequence": split_to_sequence,
    "SequenceAt": lambda parts, position: parts[integers(position, "position")[0]],
    **{"Gather": gather, "Cast": cast, "CastLike": cast},
}
