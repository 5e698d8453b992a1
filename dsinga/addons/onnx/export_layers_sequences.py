"""Exports embedding, one-hot, recurrent, 1-d convolution and pooling layers to ONNX."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import FLOAT, INT32, INT64, ExportedLayer, Refused, WriteLayer
from dsinga.addons.onnx.export_layers_records import lengths_of_codes
from dsinga.layers.sequences.convolution1d import CHOOSING
from dsinga.layers.sequences.steps import StepWindows

ORDER = {"gru": (0, 1, 2), "lstm": (0, 3, 1, 2), "rnn": (0,)}  # dsinga's gates in ONNX's order
PARTS = {"gru": ("gate", "candidate"), "lstm": ("gate", "candidate", "cell"), "rnn": ("candidate",)}
FUNCTIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "identity": "Affine"}
LOWEST = float(np.finfo(np.float32).min)


def step_codes(w: ExportedLayer) -> str:
    """Return the codes of the source that a layer uses: the first steps, or one step."""
    codes = w.codes()
    if w.rank == 2 and w.layer.step is not None:
        return w.add("Gather", codes, int(w.layer.step), axis=1)
    if w.rank == 2 and w.layer.codes_shape[1] != w.layer.source_shapes[0][1]:
        return w.add("Slice", codes, [0], [w.layer.codes_shape[1]], [1])
    return codes


def embedding(w: ExportedLayer) -> str:
    """Export an embedding: rows of a table; 0 for steps after the end, with the code -1."""
    codes = step_codes(w)
    rows = w.add("Gather", w.param(0), w.add("Max", codes, 0))
    real = w.chain(codes, ("GreaterOrEqual", 0), ("Cast", {"to": FLOAT}), ("Unsqueeze", [len(w.layer.codes_shape)]))
    return w.add("Mul", rows, real)


def one_hot(w: ExportedLayer) -> str:
    """Export one-hot vectors of codes; 0 for the code -1."""
    axis, vocabulary = len(w.layer.codes_shape), np.arange(w.layer.vocab_size)
    return w.chain(step_codes(w), ("Unsqueeze", [axis]), ("Equal", vocabulary), ("Cast", {"to": FLOAT}))


def sequence_length(w: ExportedLayer) -> str:
    """Export the codes that end sequences, or features where they end, and their lengths."""
    mask, end = w.settings.mask_value, w.settings.end
    if mask is None:
        x = codes = w.codes()
        if end is not None:
            x = codes = w.as_integers(w.add("Where", w.add("Equal", codes, end), -1, codes))
    else:
        x, is_mask = w.floats(), ("Equal", float(mask))
        codes = w.chain(x, is_mask, ("Cast", {"to": INT64}), ("ReduceMin", [2], {"keepdims": 0}), ("Neg",))
    w.ends = lengths_of_codes(w, codes)
    if not w.settings.anywhere:
        return x
    late = w.add("Mul", w.chain(codes, ("Less", 0), ("Cast", {"to": INT64})), w.size(codes))
    keys = w.add("Add", late, w.places(codes))  # valid steps are smaller, both in their order
    _, order = w.parts("TopK", keys, w.size(codes), outputs=2, axis=1, largest=0)
    if mask is None:
        return w.as_integers(w.add("GatherElements", x, order, axis=1))
    return w.add("GatherElements", x, w.chain(order, ("Unsqueeze", [2]), ("Expand", w.add("Shape", x))), axis=1)


def recurrent(w: ExportedLayer) -> str:
    """Export kGRU, kLSTM and kRNN: ONNX's operator, with steps first, between Transposes."""
    layer, is_step = w.layer, not w.layer.sequences
    weights = [w.joined(k, _roles(layer, n), partial(_ordered, layer)) for n, k in enumerate(("hx", "hh"))]
    bias = _biases(w) if layer.settings.bias_term else ""
    functions = [FUNCTIONS[getattr(layer.activations, part)] for part in PARTS[layer.cell]] * layer.directions
    attributes: dict[str, Any] = {"activations": functions, "hidden_size": layer.size}
    if count := functions.count("Affine"):  # α·x + β
        attributes |= {"activation_alpha": [1.0] * count, "activation_beta": [0.0] * count}
    attributes |= {"linear_before_reset": 1} if layer.cell == "gru" else {}
    attributes |= {"direction": "bidirectional"} if layer.directions == 2 else {}
    lengths = "" if w.labels is None else w.add("Cast", w.labels, to=INT32)
    x = w.add("Unsqueeze", w.floats(), [0]) if is_step else w.add("Transpose", w.floats(), perm=[1, 0, 2])
    inputs = x, *weights, bias, lengths, *_initial(w)
    features, *states = w.parts(layer.cell.upper(), *inputs, outputs=1 + layer.state_parts, **attributes)
    if is_step or layer.settings.last_state:
        return w.add("Concat", *(w.add("Squeeze", state, [0]) for state in states), axis=1)
    features = w.add("Transpose", features, perm=[2, 0, 1, 3])
    return w.add("Reshape", features, [0, 0, layer.directions * layer.size])


def _roles(layer: Any, kind: int) -> list[int]:
    arrays = 3 if layer.cell == "gru" else 1
    return [back * layer.count + kind * arrays + gate for back in range(layer.directions) for gate in range(arrays)]


def _ordered(layer: Any, given: list[np.ndarray]) -> np.ndarray:
    """Join all directions' params of a kind, (directions, gates·H, ...), with gates in ONNX's order."""
    order, shape = list(ORDER[layer.cell]), given[0].shape[1:]
    gates = np.concatenate(given).reshape(layer.directions, len(order), layer.size, *shape)[:, order]
    return gates.reshape(layer.directions, len(order) * layer.size, *shape)


def _biases(w: ExportedLayer) -> str:
    """Join both biases of all gates and directions, (directions, 2·gates·H), 0 for missing second ones."""
    first = _roles(w.layer, 2)
    second = _roles(w.layer, 3) if w.settings.recurrent_bias else []

    def join(given: list[np.ndarray]) -> np.ndarray:
        biases = [_ordered(w.layer, part) for part in (given[: len(first)], given[len(first) :]) if part]
        return np.concatenate([*biases, np.zeros_like(biases[0])][:2], axis=1)

    return w.joined("b", [*first, *second], join)


def _initial(w: ExportedLayer) -> list[str]:
    source = w.layer.state_source if w.layer.sequences else (1 if len(w.sources) > 1 else None)
    if source is None:
        return []
    parts = w.layer.state_parts
    states = [w.floats(source)]
    if parts > 1:
        states = w.parts("Split", *states, [w.layer.size] * parts, outputs=parts, axis=1)
    return [w.add("Unsqueeze", state, [0]) for state in states]


def window_ends(w: ExportedLayer, windows: StepWindows, lengths: str) -> str:
    """Add nodes that count the windows in sequences of these lengths, (B,) int64."""
    room = windows.before + windows.after - windows.extent
    strides = [("Div", windows.stride)] if windows.stride > 1 else []
    counts = w.chain(lengths, ("Add", room), ("Max", 0), *strides, ("Add", 1))
    return w.add("Where", w.add("Greater", lengths, 0), counts, 0)


def over_steps(w: ExportedLayer, x: str, operator: str, *inputs: str, **attributes: Any) -> str:
    """Export an operator of images along the steps of sequences (B, T, n), between Transposes."""
    y = w.add(operator, w.add("Transpose", x, perm=[0, 2, 1]), *inputs, **attributes)
    return w.add("Transpose", y, perm=[0, 2, 1])


def convolution1d(w: ExportedLayer) -> str:
    """Export a convolution over steps, with zeros after sequences' ends."""
    layer, windows = w.layer, w.layer.windows

    def by_feature(given: list[np.ndarray]) -> np.ndarray:
        return given[0].reshape(len(given[0]), windows.kernel, -1).transpose(0, 2, 1)

    params = w.joined("weight", [0], by_feature), *([w.param(1)] if layer.bias else [])
    y = over_steps(
        w, w.masked(w.floats(), w.labels), "Conv", *params, group=layer.groups, kernel_shape=[windows.kernel],
        strides=[windows.stride], dilations=[windows.dilation], pads=[windows.before, windows.after],
    )  # fmt: skip
    w.ends = None if w.labels is None else window_ends(w, windows, w.labels)
    return w.masked(y, w.ends)


def pooling1d(w: ExportedLayer) -> str:
    """Export the maximum, mean, sum, first or last step of all steps or windows."""
    windows, method, lengths = w.layer.windows, w.layer.method.name, w.labels
    if w.layer.method in CHOOSING:
        return _chosen_steps(w, method)
    x = w.masked(w.floats(), lengths, LOWEST if method == "MAX" else 0.0)
    if w.layer.over_all and (method != "AVG" or lengths is None):
        return w.add({"MAX": "ReduceMax", "AVG": "ReduceMean", "SUM": "ReduceSum"}[method], x, [1], keepdims=0)
    if w.layer.over_all:
        count = w.chain(lengths, ("Max", 1), ("Cast", {"to": FLOAT}), ("Unsqueeze", [1]))
        return w.add("Div", w.add("ReduceSum", x, [1], keepdims=0), count)
    operator = "MaxPool" if method == "MAX" else "AveragePool"
    y = over_steps(w, x, operator, kernel_shape=[windows.kernel], strides=[windows.stride])
    if method == "SUM":
        y = w.add("Mul", y, float(windows.kernel))
    if lengths is None:
        return y
    w.ends = window_ends(w, windows, lengths)
    if method == "AVG":  # over the steps of a window that count
        left = w.add("Sub", w.add("Unsqueeze", lengths, [1]), w.add("Mul", w.places(y), windows.stride))
        counts = w.chain(left, ("Clip", 1, windows.kernel), ("Cast", {"to": FLOAT}), ("Unsqueeze", [2]))
        y = w.chain(y, ("Mul", float(windows.kernel)), ("Div", counts))
    return w.masked(y, w.ends)


def _chosen_steps(w: ExportedLayer, method: str) -> str:
    x, windows, lengths = w.floats(), w.layer.windows, w.labels
    if not w.layer.over_all:
        if lengths is not None:
            raise Refused("takes steps of windows by lengths")
        first = windows.kernel - 1 if method == "LAST" else 0
        end = first + (w.layer.shape[1] - 1) * windows.stride + 1
        return w.add("Slice", x, [first], [end], [1], [windows.stride])
    halves = [x] if method != "ENDS" else w.parts("Split", x, [w.layer.shape[1] // 2] * 2, outputs=2, axis=2)
    if method != "FIRST" and lengths is None:
        halves[0] = w.add("Gather", halves[0], -1, axis=1)
    elif method != "FIRST":
        last = w.chain(lengths, ("Max", 1), ("Sub", 1), ("Unsqueeze", [1]))
        halves[0] = w.add("GatherND", halves[0], last, batch_dims=1)
    if method != "LAST":
        halves[-1] = w.add("Gather", halves[-1], 0, axis=1)
    return halves[0] if len(halves) == 1 else w.add("Concat", *halves, axis=1)


def next_codes(w: ExportedLayer) -> str:
    """Export the code of the next step, for each step."""
    if w.layer.step is not None:
        return w.as_integers(w.add("Gather", w.codes(), int(w.layer.step) + 1, axis=1))
    return w.as_integers(w.add("Slice", w.codes(), [1], [w.layer.stop], [1]))


SEQUENCES: Mapping[str, WriteLayer] = {
    "kEmbedding": embedding,
    "kOneHot": one_hot,
    "kSequenceLength": sequence_length,
    "kGRU": recurrent,
    "kLSTM": recurrent,
    "kRNN": recurrent,
    "kConvolution1D": convolution1d,
    "kPooling1D": pooling1d,
    "kRNNLabel": next_codes,
}
