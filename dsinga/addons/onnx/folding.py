"""Computes the nodes of an ONNX graph that depend only on constants (constant folding)."""

from __future__ import annotations

import math
import textwrap
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

import numpy as np

from dsinga.addons.onnx.naming import is_made_up
from dsinga.addons.onnx.values import (
    LARGEST,
    Constant,
    Room,
    integers,
    spread,
    without_repeats,
)
from dsinga.base.errors import UserError
from dsinga.nn.writing.reshaping import NoLayer

STRING, MOST_LETTERS = 8, 300  # ONNX's number of texts; letters of a message of numpy
MOST_BYTES = 1 << 27  # of computed constants and params, in addition to the file's
MOST_TIMES = 4  # as many bytes as a file has may be computed from them, besides
RECORD_BYTES, MOST_RECORD = 1 << 12, 1 << 18  # of params for each number of a record, as in onnx's nets without weights
MOST_NUMBERS, NODE, FUNCTION = 1 << 29, 1 << 16, 16  # that are computed with; a node costs more, and a function times
MOST_FILLED = 1 << 27  # times that one number may be repeated
RENAMING = {"Identity", "Cast", "Transpose", "Reshape", "Squeeze", "Unsqueeze", "Flatten"}  # the same numbers, arranged
TAKING = {"Slice", "Gather", "GatherND", "Split", "Concat"}  # some of the numbers, or several tensors' numbers
# Operators with a result that does not depend on the params' numbers, or with a gradient of 0.
WITHOUT_GRADIENT = {
    "Shape", "Size", "ConstantOfShape", "Equal", "Greater", "GreaterOrEqual", "Less", "LessOrEqual", "Not", "IsNaN",
    "IsInf", "ArgMax", "ArgMin", "NonZero", "Sign", "Floor", "Ceil", "Round", "QuantizeLinear", "DequantizeLinear",
}  # fmt: skip
# Operators with a result of the first input's type, among those that occur next to CastLike.
SAME_TYPE = {"Reshape", "InstanceNormalization", "Mul", "Add", "Sub", "Div", "Transpose"}
FUNCTIONS = {"Pow", "Mod", "Exp", "Log", "Sin", "Cos", "Tanh", "Sigmoid", "Softplus"}
TRUTHS = {"Equal", "Less", "LessOrEqual", "Greater", "GreaterOrEqual", "And", "Or", "Xor", "Not", "IsNaN", "IsInf"}
BY_NUMBER = {
    *("Add", "Sub", "Mul", "Div", "Neg", "Abs", "Sign", "Sqrt", "Reciprocal", "Floor", "Ceil", "Round", "Min", "Max"),
    *("Sum", "Mean", "Where", "Clip", "Relu", *FUNCTIONS, *TRUTHS),
}
NO_LARGER = {  # than the inputs together
    *("Cast", "CastLike", "Concat", "CumSum", "EyeLike", "Flatten", "Identity", "Reshape", "Shape", "Size", "Slice"),
    *("Split", "Squeeze", "Transpose", "Trilu", "Unsqueeze", "ArgMax", "ArgMin"),
    *(f"Reduce{kind}" for kind in ("L1", "L2", "Max", "Mean", "Min", "Prod", "Sum", "SumSquare")),
}


def room_for(graph: Any, constants: Mapping[str, Constant]) -> Room:
    """Limit how much may be computed from a graph's constants, in proportion to the file."""
    tensors = sum(node.ByteSize() for node in graph.node if node.op_type == "Constant")
    held = MOST_TIMES * (sum(x.array.nbytes for x in constants.values()) + tensors)
    shapes = [[dim.dim_value or 1 for dim in info.type.tensor_type.shape.dim[1:]] for info in graph.input]
    record = sum(math.prod(shape) for shape in shapes)
    return Room(MOST_BYTES + held + (RECORD_BYTES * record if record < MOST_RECORD else 0), MOST_NUMBERS + held)


def needs_layers(node: Any, operands: Sequence[Constant | None]) -> bool:
    """Whether a node must become a layer, because it computes with params that are trained."""
    is_kept = node.op_type in RENAMING | TAKING | WITHOUT_GRADIENT
    return not is_kept and any(x is not None and x.is_param for x in operands)


def folded(node: Any, operands: Sequence[Constant | None], version: int, room: Room) -> list[Constant]:
    """Compute a node of constants, and return its outputs; only certain operators are allowed.

    Raises NoLayer for other operators, UserError if too much has been computed.
    """
    from onnx import ValueInfoProto, helper, numpy_helper
    from onnx.reference import ReferenceEvaluator

    if node.op_type == "Constant" and node.attribute[0].name == "value":
        return [Constant(numpy_helper.to_array(node.attribute[0].t))]
    first, second = (*operands[:2], None, None)[:2]
    if node.op_type == "ConstantOfShape" and first is not None:
        return [filled(node, first)]
    if node.op_type == "Expand" and first is not None and second is not None:
        return [expanded(first, second)]
    if node.op_type == "Gather" and first is not None and second is not None and first.is_param:
        return [rows_of_table(node, first, second, room)]
    arrays = {name: x.array for name, x in zip(node.input, operands, strict=True) if x is not None}
    given = [x.array for x in operands if x is not None]
    try:
        size = result_size(node, given)
        taken = sum(array.size for array in given)
        if not size <= max(LARGEST, sum(array.size for array in given if 0 not in array.strides)):
            raise NoLayer(f"that makes more than {LARGEST} numbers")
        bytes_each = 1 if node.op_type in TRUTHS else max((array.itemsize for array in given), default=0)
        needed = size * (8 if node.op_type in ("Cast", "CastLike") else bytes_each)
        room.take(needed, NODE + (size + taken) * (FUNCTION if node.op_type in FUNCTIONS else 1))
        with np.errstate(all="ignore"):
            results: Sequence[Any]
            if node.op_type == "Dense":  # a product and a sum, spelled out
                results = [given[0] @ given[1] + given[2]]
            else:
                inputs, outputs = (
                    [ValueInfoProto(name=name) for name in part if name] for part in (arrays, node.output)
                )
                graph = helper.make_graph([node], "node", inputs, outputs)
                evaluator: Any = ReferenceEvaluator(graph, opsets={node.domain: version})
                results = evaluator.run(None, arrays)
    except (NoLayer, UserError):
        raise
    except Exception as error:  # whatever a wrong graph leads numpy to
        fault = textwrap.shorten(f"{type(error).__name__}: {str(error)[:MOST_LETTERS]}", MOST_LETTERS)
        raise NoLayer(f"whose constants do not fit: {fault}") from None
    results = [np.asarray(array) for array in results]
    if node.op_type != "Constant" and any(array.dtype.kind not in "biuf" for array in results):
        raise NoLayer("that makes other than numbers")
    room.take((0 if node.op_type == "Constant" else sum(x.nbytes for x in results if 0 not in x.strides)) - needed)
    name, kind = _name_of(node, operands), first.kind if first is not None and node.op_type in RENAMING else ""
    made = node.op_type in RENAMING | TAKING and any(x is not None and x.is_param for x in operands)
    made = made and (node.op_type != "Identity" or first is None or name == first.name)
    return [
        Constant(array, name, (node, operands, output) if made else None, kind) for output, array in enumerate(results)
    ]


def result_size(node: Any, arrays: Sequence[np.ndarray]) -> float:
    """Return an upper bound of the size of a node's result, before computing it."""
    kind, shapes = node.op_type, [array.shape for array in arrays]
    if kind in BY_NUMBER:
        return spread(shapes)
    if kind in NO_LARGER and not (kind == "Cast" and any(each.i == STRING for each in node.attribute)):
        return sum(array.size for array in arrays)
    if kind == "Constant":
        return 0  # which the file has
    if kind == "Gather":
        axis = next((attribute.i for attribute in node.attribute), 0)
        return arrays[1].size * arrays[0].size / max(shapes[0][axis], 1)
    if kind == "GatherND":
        return arrays[1].size * math.prod(shapes[0][shapes[1][-1] :])
    if kind == "NonZero":
        return arrays[0].size * max(arrays[0].ndim, 1)
    if kind == "Range":
        start, limit, delta = (float(array.item()) for array in arrays)
        return abs((limit - start) / delta) if delta else math.inf
    if kind == "Tile":
        return arrays[0].size * math.prod(map(float, arrays[1].ravel()))
    if kind == "OneHot":
        return arrays[0].size * float(arrays[1].ravel()[0])
    if kind in ("MatMul", "Dense"):
        return spread([shape[:-2] for shape in shapes[:2]]) * math.prod(shapes[0][-2:]) * shapes[1][-1]
    if kind == "Pad":
        return math.prod(size + float(np.abs(arrays[1].astype(float)).sum()) for size in shapes[0])
    raise NoLayer("of constants, which import computes by few operators only")


def _name_of(node: Any, operands: Sequence[Constant | None]) -> str:
    """Return the name of the param that a node passes on or computes, or "".

    Exporters write equal params once, and for each further one an Identity with its name.
    """
    if node.op_type not in RENAMING or not operands or operands[0] is None:
        return ""
    is_copy = node.op_type == "Identity" and not is_made_up(node.output[0])
    return str(node.output[0]) if is_copy else operands[0].name


def filled(node: Any, shape: Constant) -> Constant:
    """Fill an array with one number, which takes no memory."""
    from onnx import numpy_helper

    sizes = tuple(integers(shape, "shape"))
    if min(sizes, default=0) < 0 or math.prod(map(float, sizes)) > MOST_FILLED:
        raise NoLayer(f"that makes more than {MOST_FILLED} numbers, or none")
    values = [numpy_helper.to_array(attribute.t) for attribute in node.attribute] or [np.zeros(1, np.float32)]
    return Constant(np.broadcast_to(values[0].reshape(()), sizes))


def expanded(x: Constant, shape: Constant) -> Constant:
    """Repeat a constant's axes of length 1, without memory."""
    sizes, arrays, own = tuple(integers(shape, "shape")), [x.array], without_repeats(x.array)
    if (own == own.ravel()[:1]).all():
        arrays.append(x.array[(slice(0, 1),) * x.array.ndim])
    for array in arrays:
        try:
            return replace(x, array=np.broadcast_to(array, np.broadcast_shapes(array.shape, sizes)))
        except ValueError as error:
            fault = error
    raise NoLayer(f"whose constants do not fit: {fault}")


def rows_of_table(node: Any, table: Constant, codes: Constant, room: Room) -> Constant:
    """Look up rows of a param, such as positions; repeated rows need no memory."""
    axis = next((attribute.i for attribute in node.attribute if attribute.name == "axis"), 0) % table.array.ndim
    own = without_repeats(codes.array)
    own = own.ravel()[:1].reshape((1,) * own.ndim) if own.size and (own == own.flat[0]).all() else own
    size = own.size * table.array.size / max(table.array.shape[axis], 1)
    room.take(size * table.array.itemsize, size)
    try:
        array = table.array.take(own, axis)
    except IndexError as error:
        raise NoLayer(f"whose constants do not fit: {error}") from None
    shape = (*table.array.shape[:axis], *codes.array.shape, *table.array.shape[axis + 1 :])
    return Constant(np.broadcast_to(array, shape), made=(node, [table, Constant(own)], 0))


def fold_constants(
    graph: Any, constants: Mapping[str, Constant], version: int, room: Room
) -> tuple[list[Any], dict[str, Constant]]:
    """Compute all nodes that do not depend on a graph's inputs; return the other nodes, and all constants."""
    from onnx import TensorProto

    known, left = dict(constants), []
    has_kinds = any(x.kind for x in constants.values())
    infos = [*graph.input, *graph.value_info]
    floats = {info.name for info in infos if info.type.tensor_type.elem_type == TensorProto.FLOAT}
    for node in graph.node:
        operands = [known.get(name) if name else None for name in node.input]
        if node.op_type == "CastLike" and operands[0] is not None and node.input[1] in floats:
            operands = operands[:1] * 2 if operands[0].array.dtype == np.float32 else operands  # it stays as it is
        if node.op_type in SAME_TYPE and node.input[0] in floats:
            floats.update(node.output)
        is_constant = all(x is not None or not name for x, name in zip(operands, node.input, strict=True))
        has_graphs = any(attribute.HasField("g") or attribute.graphs for attribute in node.attribute)
        if not is_constant or has_graphs or needs_layers(node, operands):
            left.append(node)
            continue
        try:
            results = folded(node, operands, version, room)
        except NoLayer:
            left.append(node)  # which the walk names
            continue
        if node.op_type == "Constant" and results[0].array.size > 1 and not has_kinds:
            results = [replace(results[0], name=node.output[0])]
        known |= dict(zip([name for name in node.output if name], results, strict=False))
    return left, known
