"""Writes dense layers, arithmetic, activations, normalisations and layers of shapes as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from dsinga.addons.onnx.export_graph import FIRST, LAST, LayerWriter, Refused, WriteLayer
from dsinga.layers.dense.activation import INNER, OUTER
from dsinga.layers.dense.activation_functions import NUMBERS, SELU_ALPHA, SELU_SCALE
from dsinga.layers.dense.combine import SMALLEST_NORM


def inner_product(w: LayerWriter) -> str:
    """Write x·Wᵀ + b: one Gemm of rows, and of steps, which have more axes, a MatMul and an Add."""
    layer: Any = w.layer
    x, weight, bias = w.floats(), w.param(0), [w.param(1)] if layer.bias else []
    if not w.steps:
        x = w.add("Flatten", x, what="flat") if w.rank != 2 else x
        return w.add("Gemm", x, weight, *bias, transB=int(not layer.transpose))
    weight = weight if layer.transpose else w.add("Transpose", weight, what="transposed", perm=[1, 0])
    return w.chain(x, ("MatMul", weight), *(("Add", each) for each in bias))


ACTIVATIONS: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "RELU": ("Relu", {}),
    "SIGMOID": ("Sigmoid", {}),
    "TANH": ("Tanh", {}),
    "GELU": ("Gelu", {}),
    "ELU": ("Elu", {}),
    "SELU": ("Selu", {"alpha": SELU_ALPHA, "gamma": SELU_SCALE}),
    "SOFTPLUS": ("Softplus", {}),
    "CELU": ("Celu", {}),
    "SOFTSIGN": ("Softsign", {}),
    "MISH": ("Mish", {}),
    "HARDSIGMOID": ("HardSigmoid", {}),
    "HARDSWISH": ("HardSwish", {}),
}


def activation(w: LayerWriter, name: str = "") -> str:
    """Write an activation function, by default that of the layer's settings."""
    given, x = {}, w.floats()
    if not name:
        layer: Any = w.layer
        name = layer.settings.type.name
        given = {number: getattr(layer.function, number) for number in NUMBERS.get(layer.settings.type, {})}
    if name == "SILU":
        return w.add("Mul", x, w.add("Sigmoid", x, what="sigmoid"))
    if name == "STANH":
        return w.chain(x, ("Mul", INNER), ("Tanh",), ("Mul", OUTER))
    if name not in ACTIVATIONS:
        raise Refused(f"has the activation {name}")
    operator, numbers = ACTIVATIONS[name]
    return w.add(operator, x, **numbers, **given)


def relu(w: LayerWriter) -> str:
    """Write a rectifier."""
    slope = w.settings.negative_slope
    return w.add("LeakyRelu", w.floats(), alpha=slope) if slope else w.add("Relu", w.floats())


def prelu(w: LayerWriter) -> str:
    """Write a rectifier with learnt slopes, one for each channel."""
    return w.add("PRelu", w.floats(), w.param(0, (-1, *[1] * (w.rank - 2))))


def add(w: LayerWriter) -> str:
    """Write the sum of all sources."""
    sources = [w.floats(k) for k in range(len(w.sources))]
    return w.add("Add" if len(sources) == 2 else "Sum", *sources)


def multiply(w: LayerWriter) -> str:
    """Write the product of all sources."""
    sources = [w.floats(k) for k in range(len(w.sources))]
    return w.chain(sources[0], *(("Mul", source) for source in sources[1:]))


def dropout(w: LayerWriter) -> str:
    """Return the source, of which predictions drop nothing. Raises Refused for a member of an ensemble."""
    if w.settings.member and w.settings.dropout_ratio:
        raise Refused("draws a member of an ensemble")
    return w.sources[0]


OPERATORS: Mapping[str, str] = {
    "ADD": "Add", "SUBTRACT": "Sub", "MULTIPLY": "Mul", "DIVIDE": "Div", "POWER": "Pow", "MATMUL": "MatMul",
    "MAXIMUM": "Max", "MINIMUM": "Min", "AVERAGE": "Mean", "EQUAL": "Equal", "NOT_EQUAL": "Equal",
    "GREATER": "Greater", "GREATER_EQUAL": "GreaterOrEqual",
}  # fmt: skip


def arithmetic(w: LayerWriter) -> str:
    """Write x op y of two sources, or of a source and a number."""
    settings, x = w.settings, w.floats()
    operands: list[Any] = [x, w.floats(1) if settings.number is None else float(settings.number)]
    operands = operands[::-1] if settings.swapped else operands
    name = settings.operator.name
    if name not in OPERATORS:
        raise Refused(f"has the operator {name}")
    if "EQUAL" not in name and name != "GREATER":
        return w.add(OPERATORS[name], *operands)
    holds = w.add(OPERATORS[name], *operands, what="holds")
    return w.chain(holds, *([("Not",)] if name == "NOT_EQUAL" else []), ("Cast", {"to": 1}))


def index(w: LayerWriter) -> str:
    """Write numpy's basic indexing as Slice, Squeeze and Unsqueeze."""
    key: list[Any] = list(w.layer.key)  # type: ignore[attr-defined]
    if ... in key:
        place = key.index(...)
        taken = sum(item is not None for item in key) - 1
        key[place : place + 1] = [slice(None)] * (w.rank - taken)
    sliced: list[Any] = []
    removed, new, axis, place = [], [], 0, 0
    for item in key:
        if item is None:
            new.append(place)
        elif isinstance(item, int):
            sliced.append((item, item + 1 or LAST, axis, 1))
            removed.append(axis)
        elif item != slice(None):
            step = item.step or 1
            ends = (0, LAST) if step > 0 else (LAST, FIRST)
            given = (end if value is None else value for value, end in zip((item.start, item.stop), ends, strict=True))
            sliced.append((*given, axis, step))
        axis, place = axis + (item is not None), place + (not isinstance(item, int))
    nodes: list[tuple[Any, ...]] = []
    nodes += [("Slice", *map(list, zip(*sliced, strict=True)))] if sliced else []
    nodes += [("Squeeze", removed)] if removed else []
    nodes += [("Unsqueeze", new)] if new else []
    if (taps := w.layer.taps) is not None:  # type: ignore[attr-defined]
        nodes.append(("Gather", taps.points[:, 0], {"axis": w.layer.axis}))  # type: ignore[attr-defined]
    return w.chain(w.floats(), *nodes)


def softmax(w: LayerWriter) -> str:
    """Write softmax over rows, or over equal parts of a row."""
    layer: Any = w.layer
    shape, x = layer.source_shapes[0], w.floats()
    if w.steps or layer.width == shape[-1]:
        return w.add("Softmax", x, axis=-1)
    parted = w.add("Reshape", x, [0, layer.parts, layer.width], what="parts")
    return w.chain(parted, ("Softmax", {"axis": -1}), ("Reshape", [0, *shape[1:]]))


def batch_norm(w: LayerWriter) -> str:
    """Write normalisation by the running statistics."""
    params = [w.param(role) for role in range(4)]
    return w.add("BatchNormalization", w.floats(), *params, epsilon=w.settings.epsilon)


def group_norm(w: LayerWriter) -> str:
    """Write normalisation of groups of channels."""
    settings = {"num_groups": w.layer.groups, "epsilon": w.settings.epsilon}  # type: ignore[attr-defined]
    return w.add("GroupNormalization", w.floats(), w.param(0), w.param(1), **settings)


def layer_norm(w: LayerWriter) -> str:
    """Write layer normalisation."""
    settings = {"axis": w.settings.first_axis, "epsilon": w.settings.epsilon}
    return w.add("LayerNormalization", w.floats(), w.param(0), w.param(1), **settings)


def rms_norm(w: LayerWriter) -> str:
    """Write division by the root mean square."""
    x, axes = w.floats(), [*range(w.settings.first_axis, w.rank)]
    mean = w.add("ReduceMean", w.add("Mul", x, x, what="squares"), axes, what="mean")
    root = w.add("Sqrt", w.add("Add", mean, float(w.settings.epsilon), what="above"), what="root")
    return w.chain(x, ("Div", root), ("Mul", w.param(0)))


def normalization(w: LayerWriter) -> str:
    """Write normalisation by given moments, or its inverse."""
    mean, std = (w.param(k, (*s.shape, *[1] * (w.rank - 1 - len(s.shape)))) for k, s in enumerate(w.layer.params))
    return w.chain(
        w.floats(), *([("Mul", std), ("Add", mean)] if w.settings.inverse else [("Sub", mean), ("Div", std)])
    )


def distribution_params(w: LayerWriter) -> str:
    """Write log(1 + exp(x)) + 1e-6 in place of the parameters of a distribution that are above 0."""
    above = w.add("Add", w.add("Softplus", w.floats(), what="softplus"), 1e-6, what="above")
    positive = w.layer.positive.reshape(-1, *[1] * (w.rank - 1 - w.settings.axis))  # type: ignore[attr-defined]
    return w.add("Where", positive, above, w.floats())


def cosine_similarity(w: LayerWriter) -> str:
    """Write the scaled cosine of two rows."""
    x, y = (w.add("Flatten", w.floats(k), what=f"flat{k}") for k in range(2))

    def scaled(row: str, what: str) -> str:
        norm = w.add("ReduceL2", row, [1], what=f"norm_{what}")
        return w.add("Div", row, w.add("Max", norm, SMALLEST_NORM, what=f"length_{what}"), what=f"unit_{what}")

    product = w.add("Mul", scaled(x, "x"), scaled(y, "y"), what="product")
    return w.chain(product, ("ReduceSum", [1]), ("Mul", float(w.settings.scale)))


def dueling(w: LayerWriter) -> str:
    """Write v + a - mean(a) of a value and advantages."""
    value, advantages = w.floats(), w.floats(1)
    mean = w.add("ReduceMean", advantages, [1], what="mean")
    return w.add("Add", advantages, w.add("Sub", value, mean, what="shift"))


def learned_vector(w: LayerWriter) -> str:
    """Write a param that is the same for each row."""
    rows = w.size(w.sources[0], 0)
    return w.add("Expand", w.param(0), w.add("Concat", rows, [*w.layer.shape[1:]], what="shape", axis=0))


def repeat(w: LayerWriter) -> str:
    """Write the source at each of several steps."""
    return w.chain(w.floats(), ("Unsqueeze", [1]), ("Tile", [1, w.settings.times, *[1] * (w.rank - 1)]))


def concate(w: LayerWriter) -> str:
    """Write the sources joined along an axis of rows."""
    axis = w.layer.axis  # type: ignore[attr-defined]
    if not axis:
        raise Refused("joins batches")
    return w.add("Concat", *(w.floats(k) for k in range(len(w.sources))), axis=axis)


def slice_parts(w: LayerWriter) -> list[str]:
    """Write the parts of the source along an axis of rows."""
    layer: Any = w.layer
    if not layer.axis:
        raise Refused("cuts the batch")
    sizes = [shape[layer.axis] for shape in layer.part_shapes]
    return w.several("Split", w.floats(), sizes, outputs=len(sizes), axis=layer.axis)


DENSE: Mapping[str, WriteLayer] = {
    "kInnerProduct": inner_product,
    "kReLU": relu,
    "kPReLU": prelu,
    "kSigmoid": lambda w: activation(w, "SIGMOID"),
    "kSTanh": lambda w: activation(w, "STANH"),
    "kActivation": activation,
    "kDropout": dropout,
    "kAdd": add,
    "kMultiply": multiply,
    "kArithmetic": arithmetic,
    "kIndex": index,
    "kSoftmax": softmax,
    "kBM": batch_norm,
    "kGroupNorm": group_norm,
    "kLayerNorm": layer_norm,
    "kRMSNorm": rms_norm,
    "kNormalization": normalization,
    "kCosineSimilarity": cosine_similarity,
    "kDistributionParams": distribution_params,
    "kDueling": dueling,
    "kLearnedVector": learned_vector,
    "kRepeat": repeat,
    "kReshape": lambda w: w.add("Reshape", w.floats(), [0, *(w.settings.shape or [-1])]),
    "kPermute": lambda w: w.add("Transpose", w.floats(), perm=[*w.layer.order]),  # type: ignore[attr-defined]
    "kConcate": concate,
    "kSlice": slice_parts,
    "kSplit": lambda w: w.sources * len(w.layer.part_shapes),
}
