"""Graphs of onnx.backend.test as nets of records: as they are, with an axis of records in front, or steps turned."""

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from onnx import TensorProto, helper, numpy_helper

from tests.support.onnx_cases import Case

# Operators of several inputs that records may bring; of the others only the first input does.
OF_RECORDS = {
    "Add", "Sub", "Mul", "Div", "Pow", "Max", "Min", "Mean", "Sum", "Mod", "Where", "Greater", "GreaterOrEqual", "Less",
    "LessOrEqual", "Equal", "Concat", "MatMul", "Attention", "GatherElements", "GatherND", "GridSample", "SwiGLU",
    "RotaryEmbedding", "LinearAttention",
}  # fmt: skip
RECURRENT = {"GRU", "LSTM", "RNN"}
# Operators for which an axis in front changes nothing else.
UNCHANGED = {
    "Abs", "Acos", "Acosh", "Add", "And", "Asin", "Asinh", "Atan", "Atanh", "Cast", "CastLike", "Ceil", "Celu", "Clip",
    "Constant", "Cos", "Cosh", "Det", "Div", "Dropout", "Elu", "Equal", "Erf", "Exp", "Floor", "Gelu", "Greater",
    "GreaterOrEqual", "HardSigmoid", "HardSwish", "Identity", "IsInf", "IsNaN", "LeakyRelu", "Less", "LessOrEqual",
    "Log", "MatMul", "Max", "Mean", "Min", "Mish", "Mod", "Mul", "Neg", "Not", "Or", "PRelu", "Pow", "Reciprocal",
    "Relu", "Round", "Selu", "Sigmoid", "Sign", "Sin", "Sinh", "Softplus", "Softsign", "Sqrt", "Sub", "Sum",
    "SwiGLU", "Swish", "Tan", "Tanh", "ThresholdedRelu", "Trilu", "Where", "Xor",
}  # fmt: skip
# The attribute "axis" of operators, and what it is where it is left out.
WITH_AXIS = {
    "ArgMax": 0, "ArgMin": 0, "Concat": 0, "Gather": 0, "GatherElements": 0, "Hardmax": -1, "LayerNormalization": -1,
    "LogSoftmax": -1, "OneHot": -1, "RMSNormalization": -1, "Softmax": -1, "Split": 0,
}  # fmt: skip
REDUCTIONS = {
    "ReduceL1", "ReduceL2", "ReduceLogSum", "ReduceLogSumExp", "ReduceMax", "ReduceMean", "ReduceMin", "ReduceProd",
    "ReduceSum", "ReduceSumSquare",
}  # fmt: skip


@dataclass(frozen=True)
class Net:
    """A graph whose inputs are batches of records."""

    way: str  # how it was made of the case
    model: Any
    records: list[np.ndarray]  # of its inputs
    results: list[np.ndarray]  # what its outputs have to be


def nets_of(case: Case) -> list[Net]:
    """Return the graphs to try for a case, first the one that is next to it."""
    if case.operator in RECURRENT and not case.is_spelled_out:
        node = case.model.graph.node[0]
        if not any(attribute.name == "layout" and attribute.i for attribute in node.attribute):
            return [steps_first(case)]
    ways = [as_it_is(case), with_axis_in_front(case)]
    nets = [net for net in ways if net is not None]
    return nets + [of_first_result(net) for net in nets if len(net.results) > 1]


def brought_by_records(case: Case, have_axis: bool) -> list[bool]:
    """Return for each input whether records bring it; ``have_axis``: whether its first axis is that of the records."""
    reference = max((x for x in case.inputs if x.dtype == np.float32), key=lambda x: x.ndim, default=np.zeros(()))
    size = reference.shape[:1]
    return [
        position == 0 and (x.ndim > 0 or not have_axis)
        if case.operator not in OF_RECORDS
        else x.ndim == reference.ndim and (not have_axis or x.shape[:1] == size)
        for position, x in zip(case.positions, case.inputs, strict=True)
    ]


def with_records(
    model: Any, names: Sequence[str], arrays: Sequence[np.ndarray], are_records: Sequence[bool]
) -> list[np.ndarray]:
    """Make inputs of a graph batches of any number of records, and the others its initializers; return the former."""
    infos = list(model.graph.input)
    del model.graph.input[:], model.graph.output[:]
    records = []
    for info, name, array, is_record in zip(infos, names, arrays, are_records, strict=True):
        if is_record:
            shape = ["N", *array.shape[1:]]
            model.graph.input.append(helper.make_tensor_value_info(name, info.type.tensor_type.elem_type, shape))
            records.append(array)
        else:
            model.graph.initializer.append(numpy_helper.from_array(array, name))
    return records


def outputs_of(case: Case) -> list[Any]:
    """Return the outputs of a graph without their shapes."""
    return [
        helper.make_tensor_value_info(info.name, info.type.tensor_type.elem_type, None)
        for info in case.model.graph.output
    ]


def as_it_is(case: Case) -> Net | None:
    """Return the graph whose records are along the first axis of what the case has."""
    are_records = brought_by_records(case, have_axis=True)
    if not any(are_records):
        return None
    model = copied(case.model)
    names = [info.name for info in model.graph.input]
    records = with_records(model, names, case.inputs, are_records)
    model.graph.output.extend(outputs_of(case))
    if any(y.shape[:1] != records[0].shape[:1] for y in case.outputs[:1]):
        return None
    return Net("as it is", model, records, list(case.outputs))


def with_axis_in_front(case: Case) -> Net | None:
    """Return the graph with an axis of records in front of all axes, None where this is another operator's matter."""
    if len(case.model.graph.node) > 1 and not all(node.op_type in UNCHANGED for node in case.model.graph.node):
        return None
    model = copied(case.model)
    are_records = brought_by_records(case, have_axis=False)
    names = [info.name for info in model.graph.input]
    arrays = dict(zip(names, case.inputs, strict=True))
    for node in model.graph.node if len(model.graph.node) == 1 else ():
        shifted = changed_for_axis(node.op_type)
        if shifted is None:
            return None
        shifted(node, arrays)
    constants = dict(zip(names, are_records, strict=True))
    for name in [name for name in arrays if name not in constants]:  # what a change has added
        model.graph.initializer.append(numpy_helper.from_array(arrays[name], name))
    values = [
        np.stack([arrays[name]] * 2) if is_record else arrays[name]
        for name, is_record in zip(names, are_records, strict=True)
    ]
    records = with_records(model, names, values, are_records)
    model.graph.output.extend(outputs_of(case))
    return Net("axis in front", model, records, [np.stack([y] * 2) for y in case.outputs]) if records else None


def of_first_result(net: Net) -> Net:
    """Return a graph whose only output is the first one."""
    model = copied(net.model)
    del model.graph.output[1:]
    return Net(f"{net.way}, first result", model, net.records, net.results[:1])


def steps_first(case: Case) -> Net:
    """Return the graph of a recurrent node that takes (T, N, n) for records (N, T, n): with Transpose around it."""
    model = copied(case.model)
    node = model.graph.node[0]
    names = ["records", *(info.name for info in model.graph.input[1:])]
    arrays = [np.swapaxes(case.inputs[0], 0, 1), *case.inputs[1:]]
    turned_input = helper.make_node("Transpose", ["records"], ["turned"], perm=[1, 0, 2])
    node.input[0] = "turned"
    records = with_records(model, names, arrays, [True] + [False] * (len(names) - 1))
    nodes, results = [turned_input, node], []
    for info, y in zip(case.model.graph.output, case.outputs, strict=True):
        axes = [2, 0, 1, 3] if y.ndim == 4 else [1, 0, 2]
        nodes.append(helper.make_node("Transpose", [info.name], [f"{info.name}_turned"], perm=axes))
        model.graph.output.append(helper.make_tensor_value_info(f"{info.name}_turned", TensorProto.FLOAT, None))
        results.append(np.transpose(y, axes))
    copies = [copied(each) for each in nodes]
    del model.graph.node[:]
    model.graph.node.extend(copies)
    return Net("steps turned", model, records, results)


def copied(message: Any) -> Any:
    """Return a copy of a message of ONNX."""
    result = type(message)()
    result.CopyFrom(message)
    return result


def changed_for_axis(operator: str) -> Callable[[Any, dict[str, np.ndarray]], None] | None:
    """Return what changes a node of an operator, and its constants, for tensors with an axis in front."""
    if operator in UNCHANGED:
        return lambda node, arrays: None
    if operator in WITH_AXIS:
        return lambda node, arrays: set_attribute(node, "axis", moved(attribute(node, "axis", WITH_AXIS[operator])))
    if operator in REDUCTIONS:
        return reduced
    return {"Transpose": transposed, "Slice": sliced, "Squeeze": squeezed, "Unsqueeze": squeezed, "Pad": padded,
            "Tile": tiled, "Expand": expanded, "Reshape": reshaped}.get(operator)  # fmt: skip


def moved(axis: int) -> int:
    """Return an axis of a tensor with one more in front."""
    return axis + 1 if axis >= 0 else axis


def attribute(node: Any, name: str, default: Any) -> Any:
    """Return an attribute of a node."""
    return next((helper.get_attribute_value(each) for each in node.attribute if each.name == name), default)


def set_attribute(node: Any, name: str, value: Any) -> None:
    """Set an attribute of a node."""
    others = [copied(each) for each in node.attribute if each.name != name]
    del node.attribute[:]
    node.attribute.extend([*others, helper.make_attribute(name, value)])


def set_input(node: Any, position: int, arrays: dict[str, np.ndarray], value: Any) -> None:
    """Set an input of a node to integers."""
    while len(node.input) <= position:
        node.input.append("")
    node.input[position] = node.input[position] or f"added_{position}"
    arrays[node.input[position]] = np.asarray(value, np.int64)


def given(node: Any, position: int, arrays: dict[str, np.ndarray]) -> list[int] | None:
    """Return the integers of an input of a node, None where it is left out."""
    name = node.input[position] if len(node.input) > position else ""
    return arrays[name].tolist() if name else None


def reduced(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Move the axes of a reduction; all axes are all but the first one."""
    axes = given(node, 1, arrays)
    if axes:
        set_input(node, 1, arrays, [moved(axis) for axis in axes])
    elif not attribute(node, "noop_with_empty_axes", 0):
        set_input(node, 1, arrays, list(range(1, arrays[node.input[0]].ndim + 1)))


def transposed(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Move the axes of a Transpose."""
    rank = arrays[node.input[0]].ndim
    set_attribute(node, "perm", [0, *(axis + 1 for axis in attribute(node, "perm", range(rank)[::-1]))])


def sliced(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Move the axes of a Slice."""
    axes = given(node, 3, arrays)
    axes = list(range(len(given(node, 1, arrays) or []))) if axes is None else axes
    set_input(node, 3, arrays, [moved(axis) for axis in axes])


def squeezed(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Move the axes of a Squeeze or an Unsqueeze."""
    set_input(node, 1, arrays, [moved(axis) for axis in given(node, 1, arrays) or []])


def padded(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Move the axes of a Pad, or pad the records by nothing."""
    axes, pads = given(node, 3, arrays), given(node, 1, arrays) or []
    if axes is None:
        half = len(pads) // 2
        set_input(node, 1, arrays, [0, *pads[:half], 0, *pads[half:]])
    else:
        set_input(node, 3, arrays, [moved(axis) for axis in axes])


def tiled(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Repeat the records once."""
    set_input(node, 1, arrays, [1, *(given(node, 1, arrays) or [])])


def expanded(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Expand all axes but that of the records; the records have as many axes as the result."""
    shape, x = given(node, 1, arrays) or [], arrays[node.input[0]]
    set_input(node, 1, arrays, [1, *shape])
    arrays[node.input[0]] = x.reshape((1,) * (len(shape) - x.ndim) + x.shape)


def reshaped(node: Any, arrays: dict[str, np.ndarray]) -> None:
    """Reshape each record."""
    set_input(node, 1, arrays, [0, *(given(node, 1, arrays) or [])])
