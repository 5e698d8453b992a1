"""Exports dense layers, arithmetic, activations, normalisations and layers of shapes as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.addons.onnx.export_graph import FIRST, FLOAT, LAST, ExportedLayer, Refused, WriteLayer
from dsinga.addons.onnx.files import onnx_package
from dsinga.layers.dense.activation import INNER, OUTER
from dsinga.layers.dense.activation_functions import NUMBERS, SELU_ALPHA, SELU_SCALE
from dsinga.layers.dense.arithmetic import COMPARISONS, Operator
from dsinga.layers.dense.combine import SMALLEST_NORM


def inner_product(w: ExportedLayer) -> str:
    """Export a dense layer x·Wᵀ + b: a Gemm for rows, MatMul and Add for steps, which have more axes."""
    x, weight, bias = w.floats(), w.param(0), [w.param(1)] if w.layer.bias else []
    if not w.steps:
        x = w.add("Flatten", x) if w.rank != 2 else x
        return w.add("Gemm", x, weight, *bias, transB=int(not w.layer.transpose))
    weight = weight if w.layer.transpose else w.add("Transpose", weight, perm=[1, 0])
    return w.chain(x, ("MatMul", weight), *(("Add", each) for each in bias))


ACTIVATIONS = {"HARDSIGMOID": "HardSigmoid", "HARDSWISH": "HardSwish"}  # others are called so but for upper case


def activation(w: ExportedLayer, name: str = "") -> str:
    """Export an activation function, by default the layer's."""
    x, numbers = w.floats(), dict[str, float]()
    if not name:
        name = w.settings.type.name
        numbers = {number: getattr(w.layer.function, number) for number in NUMBERS.get(w.settings.type, {})}
    if name == "SELU":
        numbers = {"alpha": SELU_ALPHA, "gamma": SELU_SCALE}
    if name == "SILU":
        return w.add("Mul", x, w.add("Sigmoid", x))
    if name == "STANH":
        return w.chain(x, ("Mul", INNER), ("Tanh",), ("Mul", OUTER))
    operator = ACTIVATIONS.get(name, name.capitalize())
    if not onnx_package().defs.has(operator):
        raise Refused(f"has the activation {name}")
    return w.add(operator, x, **numbers)


def relu(w: ExportedLayer) -> str:
    """Export a rectifier (ReLU)."""
    slope = w.settings.negative_slope
    return w.add("LeakyRelu", w.floats(), alpha=slope) if slope else w.add("Relu", w.floats())


def multiply(w: ExportedLayer) -> str:
    """Export the product of all sources."""
    first, *others = w.all_floats()
    return w.chain(first, *(("Mul", other) for other in others))


def dropout(w: ExportedLayer) -> str:
    """Export dropout as its source, since predictions drop nothing."""
    if w.settings.member and w.settings.dropout_ratio:
        raise Refused("draws a member of an ensemble")
    return w.sources[0]


OPERATORS: Mapping[str, str] = {
    "ADD": "Add", "SUBTRACT": "Sub", "MULTIPLY": "Mul", "DIVIDE": "Div", "POWER": "Pow", "MATMUL": "MatMul",
    "MAXIMUM": "Max", "MINIMUM": "Min", "AVERAGE": "Mean", "EQUAL": "Equal", "NOT_EQUAL": "Equal",
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual",
}  # fmt: skip


def arithmetic(w: ExportedLayer) -> str:
    """Export x op y of two sources, or of a source and a number."""
    number, operator = w.settings.number, w.settings.operator
    operands = w.all_floats() if number is None else [w.floats(), float(number)]
    if operator.name not in OPERATORS:
        raise Refused(f"has the operator {operator.name}")
    result = w.add(OPERATORS[operator.name], *(operands[::-1] if w.settings.swapped else operands))
    if operator not in COMPARISONS:
        return result
    return w.chain(result, *([("Not",)] if operator is Operator.NOT_EQUAL else []), ("Cast", {"to": FLOAT}))


def index(w: ExportedLayer) -> str:
    """Export numpy's basic indexing as Slice, Squeeze and Unsqueeze."""
    key: list[Any] = list(w.layer.key)
    if ... in key:
        taken = sum(item is not None for item in key) - 1
        key[(place := key.index(...)) : place + 1] = [slice(None)] * (w.rank - taken)
    new = [place for place, item in enumerate(item for item in key if not isinstance(item, int)) if item is None]
    axes = list(enumerate(item for item in key if item is not None))
    removed = [axis for axis, item in axes if isinstance(item, int)]
    slices = [(*_bounds(item), axis) for axis, item in axes if item != slice(None)]
    nodes: list[tuple[Any, ...]] = []
    if slices:
        starts, stops, steps, sliced = map(list, zip(*slices, strict=True))
        nodes.append(("Slice", starts, stops, sliced, steps))
    nodes += [("Squeeze", removed)] if removed else []
    nodes += [("Unsqueeze", new)] if new else []
    if (taps := w.layer.taps) is not None:
        nodes.append(("Gather", taps.points[:, 0], {"axis": w.layer.axis}))
    return w.chain(w.floats(), *nodes)


def _bounds(item: int | slice) -> tuple[int, int, int]:
    if isinstance(item, int):
        return item, item + 1 or LAST, 1
    step = item.step or 1
    first, last = (0, LAST) if step > 0 else (LAST, FIRST)
    return first if item.start is None else item.start, last if item.stop is None else item.stop, step


def softmax(w: ExportedLayer) -> str:
    """Export softmax over rows, or over equal parts of a row."""
    shape, width = w.layer.source_shapes[0], w.layer.width
    if w.steps or width == shape[-1]:
        return w.add("Softmax", w.floats(), axis=-1)
    parted = ("Reshape", [0, w.layer.parts, width])
    return w.chain(w.floats(), parted, ("Softmax", {"axis": -1}), ("Reshape", [0, *shape[1:]]))


def normalised(w: ExportedLayer, operator: str, **attributes: Any) -> str:
    """Export a normalisation with the layer's params as inputs of its operator."""
    params = (w.param(role) for role in range(len(w.params)))
    return w.add(operator, w.floats(), *params, epsilon=w.settings.epsilon, **attributes)


def rms_norm(w: ExportedLayer) -> str:
    """Export division by the root mean square."""
    x, axes = w.floats(), [*range(w.settings.first_axis, w.rank)]
    root = w.chain(x, ("Mul", x), ("ReduceMean", axes), ("Add", float(w.settings.epsilon)), ("Sqrt",))
    return w.chain(x, ("Div", root), ("Mul", w.param(0)))


def normalization(w: ExportedLayer) -> str:
    """Export normalisation by given moments, or its inverse."""
    shapes = ((*spec.shape, *[1] * (w.rank - 1 - len(spec.shape))) for spec in w.layer.params)
    mean, std = (w.param(role, shape) for role, shape in enumerate(shapes))
    nodes = (("Mul", std), ("Add", mean)) if w.settings.inverse else (("Sub", mean), ("Div", std))
    return w.chain(w.floats(), *nodes)


def distribution_params(w: ExportedLayer) -> str:
    """Export log(1 + exp(x)) + 1e-6 for a distribution's positive parameters."""
    positive = w.layer.positive.reshape(-1, *[1] * (w.rank - 1 - w.settings.axis))
    return w.add("Where", positive, w.chain(w.floats(), ("Softplus",), ("Add", 1e-6)), w.floats())


def cosine_similarity(w: ExportedLayer) -> str:
    """Export the scaled cosine of two rows."""
    rows = [w.add("Flatten", x) for x in w.all_floats()]
    units = [w.add("Div", x, w.chain(x, ("ReduceL2", [1]), ("Max", SMALLEST_NORM))) for x in rows]
    return w.chain(units[0], ("Mul", units[1]), ("ReduceSum", [1]), ("Mul", float(w.settings.scale)))


def dueling(w: ExportedLayer) -> str:
    """Export v + a - mean(a) of a value v and advantages a."""
    value, advantages = w.all_floats()
    return w.add("Add", advantages, w.add("Sub", value, w.add("ReduceMean", advantages, [1])))


def learned_vector(w: ExportedLayer) -> str:
    """Export a param that all rows share."""
    rows = w.size(w.sources[0], 0)
    return w.add("Expand", w.param(0), w.add("Concat", rows, [*w.layer.shape[1:]], axis=0))


def concate(w: ExportedLayer) -> str:
    """Export the sources joined along an axis of rows."""
    if not w.layer.axis:
        raise Refused("joins batches")
    return w.add("Concat", *w.all_floats(), axis=w.layer.axis)


def slice_parts(w: ExportedLayer) -> list[str]:
    """Export the parts of the source along an axis of rows."""
    axis = w.layer.axis
    if not axis:
        raise Refused("cuts the batch")
    sizes = [shape[axis] for shape in w.layer.part_shapes]
    return w.parts("Split", w.floats(), sizes, outputs=len(sizes), axis=axis)


DENSE: Mapping[str, WriteLayer] = {
    "kInnerProduct": inner_product,
    "kReLU": relu,
    "kPReLU": lambda w: w.add("PRelu", w.floats(), w.param(0, (-1, *[1] * (w.rank - 2)))),
    "kSigmoid": lambda w: activation(w, "SIGMOID"),
    "kSTanh": lambda w: activation(w, "STANH"),
    "kActivation": activation,
    "kDropout": dropout,
    "kAdd": lambda w: w.add("Add" if len(w.sources) == 2 else "Sum", *w.all_floats()),
    "kMultiply": multiply,
    "kArithmetic": arithmetic,
    "kIndex": index,
    "kSoftmax": softmax,
    "kBM": lambda w: normalised(w, "BatchNormalization", momentum=1 - w.settings.momentum),
    "kGroupNorm": lambda w: normalised(w, "GroupNormalization", num_groups=w.layer.groups),
    "kLayerNorm": lambda w: normalised(w, "LayerNormalization", axis=w.settings.first_axis),
    "kRMSNorm": rms_norm,
    "kNormalization": normalization,
    "kCosineSimilarity": cosine_similarity,
    "kDistributionParams": distribution_params,
    "kDueling": dueling,
    "kLearnedVector": learned_vector,
    "kRepeat": lambda w: w.chain(w.floats(), ("Unsqueeze", [1]), ("Tile", [1, w.settings.times, *[1] * (w.rank - 1)])),
    "kReshape": lambda w: w.add("Reshape", w.floats(), [0, *(w.settings.shape or [-1])]),
    "kPermute": lambda w: w.add("Transpose", w.floats(), perm=[*w.layer.order]),
    "kConcate": concate,
    "kSlice": slice_parts,
    "kSplit": lambda w: w.sources * len(w.layer.part_shapes),
}
