"""Computes the nodes of an ONNX graph that depend on constants only, by the reference evaluator of onnx."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.naming import is_made_up
from dsinga.addons.onnx.values import LARGEST, Constant, NotImportable
from dsinga.base.errors import UserError

MOST_TIMES = 4  # as many numbers as a file has may be computed from them, besides LARGEST ones
RENAMING = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}  # the same numbers, arranged
# Operators that files of any version spell out, and the version that has them.
SPELLED_OUT = {"Swish": 24, "RMSNormalization": 23, "Gelu": 20, "Mish": 18, "LayerNormalization": 17, "HardSwish": 14}
RANDOM = {"RandomNormal", "RandomUniform", "RandomNormalLike", "RandomUniformLike", "Bernoulli", "Multinomial"}
MOST_FILLED = 1 << 28  # times that one number may be repeated, as in the whole nets without weights that onnx has
GROWING = {"Tile", "Range", "Pad", "Resize", "Upsample", "OneHot", "EyeLike", "MatMul", "Dense"}
# Operators whose result has the type of the first input, among those that stand beside CastLike.
SAME_TYPE = {"Reshape", "InstanceNormalization", "Mul", "Add", "Sub", "Div", "Transpose"}


def folded(node: Any, operands: Sequence[Constant | None], version: int) -> list[Constant]:
    """Return the outputs of a node of constants. Raises NotImportable for one that cannot be computed here."""
    from onnx import TensorProto, helper
    from onnx.reference import ReferenceEvaluator

    if node.op_type in RANDOM:
        raise NotImportable("that draws random numbers")
    first, second = (*operands[:2], None, None)[:2]
    if node.op_type == "ConstantOfShape" and first is not None:
        return [filled(node, first)]
    if node.op_type == "Expand" and first is not None and second is not None:
        return [expanded(first, second)]
    if node.op_type == "Gather" and first is not None and second is not None and first.is_param and first.part is None:
        return [rows_of_table(node, first, second)]
    arrays = {name: x.array for name, x in zip(node.input, operands, strict=True) if x is not None}
    given = [x.array for x in operands if x is not None]
    version = max(version, SPELLED_OUT.get(node.op_type, 0))
    sizes: list[float] = [array.size for array in given if 0 in array.strides]  # expanded ones, which take no memory
    sizes += [_result_size(node.op_type, given)] if node.op_type in GROWING else []
    if max(sizes, default=0) > LARGEST:
        raise NotImportable(f"that makes more than {LARGEST} numbers")
    if node.op_type == "Dense":  # a product and a sum, spelled out
        x, weight, bias = given
        return [Constant(x @ weight + bias)]
    inputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in arrays]
    outputs = [helper.make_tensor_value_info(name, TensorProto.UNDEFINED, None) for name in node.output if name]
    graph = helper.make_graph([node], "node", inputs, outputs)
    try:
        with np.errstate(all="ignore"):
            results = ReferenceEvaluator(graph, opsets={node.domain: version}).run(None, arrays)
    except Exception as error:  # whatever a wrong graph leads numpy to
        raise NotImportable(f"whose constants do not fit: {type(error).__name__}: {error}") from None
    part = part_of(node, operands)
    return [Constant(np.asarray(array), _name_of(node, operands), part) for array in results]


def _name_of(node: Any, operands: Sequence[Constant | None]) -> str:
    """Return the name of the param whose numbers the result of a node has, "" for none.

    Exporters write params with the same numbers once, and an Identity for each further one, which has its name.
    """
    if node.op_type not in RENAMING or not operands or operands[0] is None:
        return ""
    is_copy = node.op_type == "Identity" and not is_made_up(node.output[0])
    return str(node.output[0]) if is_copy else operands[0].name


def filled(node: Any, shape: Constant) -> Constant:
    """Return one number in a shape, which takes no memory. Raises NotImportable."""
    from onnx import numpy_helper

    sizes = tuple(map(int, shape.array.ravel()))
    if min(sizes, default=0) < 0 or math.prod(map(float, sizes)) > MOST_FILLED:
        raise NotImportable(f"that makes more than {MOST_FILLED} numbers, or none")
    values = [numpy_helper.to_array(attribute.t) for attribute in node.attribute] or [np.zeros(1, np.float32)]
    return Constant(np.broadcast_to(values[0].reshape(()), sizes))


def expanded(x: Constant, shape: Constant) -> Constant:
    """Return a constant with axes of length 1 repeated, which takes no memory. Raises NotImportable.

    Numbers that are all the same, such as first states, may have been made for the batch of the file.
    """
    sizes, arrays = tuple(int(size) for size in shape.array.ravel()), [x.array]
    if (x.array == x.array.ravel()[:1]).all():
        arrays.append(x.array[(slice(0, 1),) * x.array.ndim])
    for array in arrays:
        try:
            return replace(x, array=np.broadcast_to(array, np.broadcast_shapes(array.shape, sizes)))
        except ValueError as error:
            fault = error
    raise NotImportable(f"whose constants do not fit: {fault}")


def rows_of_table(node: Any, table: Constant, codes: Constant) -> Constant:
    """Return rows of a param, such as those of positions; neighbours, and one row repeated, are part of the param."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0) % table.array.ndim
    own = codes.array
    own = own[tuple(slice(0, 1 if stride == 0 else None) for stride in own.strides)]  # without what Expand repeats
    own = own.ravel()[:1].reshape((1,) * own.ndim) if own.size and (own == own.flat[0]).all() else own
    try:
        array = table.array.take(own, axis)
    except IndexError as error:
        raise NotImportable(f"whose constants do not fit: {error}") from None
    shape = (*table.array.shape[:axis], *codes.array.shape, *table.array.shape[axis + 1 :])
    numbers = np.where(own < 0, own + table.array.shape[axis], own).ravel()
    if not own.size or not (np.diff(numbers) == 1).all():
        return Constant(np.broadcast_to(array, shape))
    items = {axis: slice(int(numbers[0]), int(numbers[-1]) + 1)}
    return Constant(np.broadcast_to(array, shape), part=(table, index_items(table.array.shape, items)))


def part_of(node: Any, operands: Sequence[Constant | None]) -> tuple[Constant, tuple[Any, ...]] | None:
    """Return the param of which a Slice takes part, and the items of the index; None for what is computed otherwise."""
    whole = operands[0] if operands else None
    if whole is not None and node.op_type in RENAMING - {"Transpose"}:
        return whole.part
    if whole is None or not whole.is_param or whole.part is not None or node.op_type != "Slice" or len(operands) < 3:
        return None
    starts, ends, *more = (x.array for x in operands[1:] if x is not None)
    axes = more[0] if more else np.arange(len(starts))
    steps = more[1] if more[1:] else np.ones(len(starts), np.int64)
    rank = whole.array.ndim
    bounds = zip(axes, starts, ends, steps, strict=True)
    return whole, index_items(whole.array.shape, {int(axis) % rank: slice(*map(int, part)) for axis, *part in bounds})


def index_items(shape: Sequence[int], items: Mapping[int, slice]) -> tuple[slice, ...]:
    """Return an item for each axis of a param, slice(None) for those of which everything is taken."""
    wholes = {axis for axis, item in items.items() if item.indices(shape[axis]) == (0, shape[axis], 1)}
    return tuple(slice(None) if axis in wholes else items.get(axis, slice(None)) for axis in range(len(shape)))


def _result_size(op_type: str, arrays: Sequence[np.ndarray]) -> float:
    """Return a bound of how many numbers the result of a node has."""
    if op_type == "Range":
        start, limit, delta = (float(array) for array in arrays)
        return abs((limit - start) / delta) if delta else math.inf
    if op_type == "Tile":
        return arrays[0].size * math.prod(map(float, arrays[1].ravel()))
    if op_type == "OneHot":
        return arrays[0].size * float(arrays[1].ravel()[0])
    if op_type in ("MatMul", "Dense"):
        return max(arrays[0].size, 1) * float(arrays[1].shape[-1])
    if op_type == "Pad":
        return math.prod(size + float(np.abs(arrays[1]).sum()) for size in arrays[0].shape)
    further = [float(np.abs(array).max()) for array in arrays[1:] if array.size]
    return arrays[0].size * max(further, default=1.0) ** max(arrays[0].ndim, 1)


def fold_constants(
    graph: Any, constants: Mapping[str, Constant], version: int
) -> tuple[list[Any], dict[str, Constant]]:
    """Return the nodes that depend on the inputs of a graph, and all constants, those of the other nodes included.

    Raises UserError where these are many times as large as the file's.
    """
    from onnx import TensorProto

    known, left = dict(constants), []
    room = LARGEST + MOST_TIMES * sum(x.array.size for x in constants.values())
    infos = [*graph.input, *graph.value_info]
    floats = {info.name for info in infos if info.type.tensor_type.elem_type == TensorProto.FLOAT}
    for node in graph.node:
        operands = [known.get(name) if name else None for name in node.input]
        if node.op_type == "CastLike" and operands[0] is not None and node.input[1] in floats:
            operands = operands[:1] * 2 if operands[0].array.dtype == np.float32 else operands  # it stays as it is
        if node.op_type in SAME_TYPE and node.input[0] in floats:
            floats.update(node.output)
        is_constant = all(x is not None or not name for x, name in zip(operands, node.input, strict=True))
        if not is_constant or any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute):
            left.append(node)
            continue
        try:
            results = folded(node, operands, version)
        except NotImportable:
            left.append(node)  # which the walk names
            continue
        room -= sum(x.array.size for x in results if 0 not in x.array.strides)
        if room < 0:
            raise UserError("the constants of the net grow without bounds; export it with those that it needs")
        names = [name for name in node.output if name]
        known |= {
            name: replace(x, name=x.name or (name if node.op_type == "Constant" else ""))
            for name, x in zip(names, results, strict=False)
        }
    return left, known
