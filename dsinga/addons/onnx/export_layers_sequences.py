"""Writes layers of codes, steps and attention as ONNX nodes, for sequences of any length where the layers allow it."""

from __future__ import annotations

from collections.abc import Mapping
from functools import partial
from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import LayerWriter, Refused, WriteLayer
from dsinga.addons.onnx.export_layers_records import lengths_of_codes
from dsinga.job import StepPoolMethod
from dsinga.layers.sequences.attention import BASE
from dsinga.layers.sequences.convolution1d import CHOOSING
from dsinga.layers.sequences.steps import StepWindows

ORDER = {"gru": (0, 1, 2), "lstm": (0, 3, 1, 2), "rnn": (0,)}  # of ONNX's gates in those of dsinga
PARTS = {"gru": ("gate", "candidate"), "lstm": ("gate", "candidate", "cell"), "rnn": ("candidate",)}
FUNCTIONS = {"sigmoid": "Sigmoid", "tanh": "Tanh", "relu": "Relu", "identity": "Affine"}
LOWEST = float(np.finfo(np.float32).min)


def step_codes(w: LayerWriter) -> str:
    """Return the codes that a layer takes of those of its source: the first steps, or one step."""
    layer: Any = w.layer
    codes = w.codes()
    if w.rank == 2 and layer.step is not None:
        return w.add("Gather", codes, np.array(layer.step), what="step", axis=1)
    if w.rank == 2 and layer.codes_shape[1] != layer.source_shapes[0][1]:
        return w.add("Slice", codes, [0], [layer.codes_shape[1]], [1], what="first_steps")
    return codes


def embedding(w: LayerWriter) -> str:
    """Write the rows of a table; those of steps after the end, of the code -1, are 0."""
    codes = step_codes(w)
    real = w.add("Cast", w.add("GreaterOrEqual", codes, np.array(0), what="real"), what="counts", to=1)
    rows = w.add("Gather", w.param(0), w.add("Max", codes, np.array(0), what="codes"), what="rows")
    return w.add("Mul", rows, w.add("Unsqueeze", real, [-1], what="factor"))


def one_hot(w: LayerWriter) -> str:
    """Write one-hot vectors of codes; those of the code -1 are 0."""
    codes = w.add("Unsqueeze", step_codes(w), [-1], what="codes")
    return w.chain(codes, ("Equal", np.arange(w.layer.size)), ("Cast", {"to": 1}))  # type: ignore[attr-defined]


def sequence_length(w: LayerWriter) -> str:
    """Write the codes that end sequences, and how many steps these have."""
    settings, x = w.settings, w.sources[0]
    if settings.mask_value is not None:
        other = w.add("Equal", w.floats(), float(settings.mask_value), what="masked")
        empty = w.add("ReduceMin", w.add("Cast", other, what="ones", to=7), [2], what="empty", keepdims=0)
        codes = w.add("Neg", empty, what="codes")
    else:
        codes = w.codes()
        if settings.end is not None:
            codes = w.add("Where", w.add("Equal", codes, settings.end, what="end"), -1, codes, what="codes")
    w.ends = lengths_of_codes(w, codes)
    if not settings.anywhere:
        return x if settings.mask_value is not None else w.as_integers(codes)
    first = _steps_in_order(w, codes)
    if settings.mask_value is None:
        return w.as_integers(w.add("GatherElements", codes, first, axis=1))
    places = w.add("Unsqueeze", first, [2], what="places_of_features")
    return w.add("GatherElements", x, w.add("Expand", places, w.add("Shape", x, what="shape"), what="whole"), axis=1)


def _steps_in_order(w: LayerWriter, codes: str) -> str:
    """Return the places (B, T) of the steps that count, in their order, then those of the others."""
    steps, size = w.places(codes), w.size(codes)
    after = w.add("Mul", w.add("Cast", w.add("Less", codes, 0, what="left_out"), what="after", to=7), size, what="late")
    keys = w.add("Add", after, steps, what="keys")
    return w.several("TopK", keys, size, outputs=2, what="order", axis=1, largest=0)[1]


def recurrent(w: LayerWriter) -> str:
    """Write kGRU, kLSTM and kRNN: ONNX's operator between Transposes, as it has the steps first."""
    layer: Any = w.layer
    cell, settings, one_step = layer.cell, layer.settings, not layer.sequences
    weights = [w.joined(k, _roles(layer, n), partial(_ordered, layer)) for n, k in enumerate(("hx", "hh"))]
    bias = _biases(w) if settings.bias_term else ""
    parts = [getattr(layer.activations, part) for part in PARTS[cell]]
    attributes: dict[str, Any] = {"activations": [FUNCTIONS[part] for part in parts] * layer.directions}
    if "identity" in parts:  # α·x + β
        count = parts.count("identity") * layer.directions
        attributes |= {"activation_alpha": [1.0] * count, "activation_beta": [0.0] * count}
    attributes |= {"linear_before_reset": 1} if cell == "gru" else {}
    direction = "bidirectional" if layer.directions == 2 else "forward"
    lengths = None if layer.labels.source is None else w.lengths[layer.labels.source]
    ends = "" if lengths is None else w.add("Cast", lengths, what="lengths", to=6)
    x = w.add("Unsqueeze", w.floats(), [0], what="step") if one_step else w.add("Transpose", w.floats(), what="steps",
                                                                               perm=[1, 0, 2])  # fmt: skip
    outputs = w.several(
        cell.upper(), x, *weights, bias, ends, *_initial(w), outputs=2 + (cell == "lstm"), hidden_size=layer.size,
        direction=direction, **attributes,
    )  # fmt: skip
    if one_step or settings.last_state:
        last = [w.add("Squeeze", each, [0], what=f"last{number}") for number, each in enumerate(outputs[1:])]
        return w.add("Concat", *last, what="state", axis=1)
    features = w.add("Transpose", outputs[0], what="rows", perm=[2, 0, 1, 3])
    return w.add("Reshape", features, [0, 0, layer.directions * layer.size], what="features")


def _roles(layer: Any, kind: int) -> list[int]:
    """Return the numbers of the params of a kind (hx, hh, b, hb), of all gates and directions."""
    arrays = 3 if layer.cell == "gru" else 1
    return [back * layer.count + kind * arrays + gate for back in range(layer.directions) for gate in range(arrays)]


def _ordered(layer: Any, given: list[np.ndarray]) -> np.ndarray:
    """Return the params of a kind of all directions, (directions, gates·H, ...), with the gates in ONNX's order."""
    order, shape = list(ORDER[layer.cell]), given[0].shape[1:]
    gates = np.concatenate(given).reshape(layer.directions, len(order), layer.size, *shape)[:, order]
    return gates.reshape(layer.directions, len(order) * layer.size, *shape)


def _biases(w: LayerWriter) -> str:
    """Return both biases of all gates and directions, (directions, 2·gates·H), 0 for second ones that are not there.

    ONNX's second bias is that of the product with the state, as PyTorch's.
    """
    layer: Any = w.layer
    first = _roles(layer, 2)
    second = _roles(layer, 3) if layer.settings.recurrent_bias else []

    def join(given: list[np.ndarray]) -> np.ndarray:
        biases = [_ordered(layer, part) for part in (given[: len(first)], given[len(first) :]) if part]
        return np.concatenate([*biases, np.zeros_like(biases[0])][:2], axis=1)

    return w.joined("b", [*first, *second], join)


def _initial(w: LayerWriter) -> list[str]:
    """Return the states before the first step, as ONNX takes them; nothing for zeros."""
    layer: Any = w.layer
    source = layer.state_source if layer.sequences else (1 if len(w.sources) > 1 else None)
    if source is None:
        return []
    states = [w.floats(source)]
    if layer.state_parts == 2:
        states = w.several("Split", states[0], [layer.size] * 2, outputs=2, what="states", axis=1)
    return [w.add("Unsqueeze", state, [0], what=f"begin{number}") for number, state in enumerate(states)]


def window_ends(w: LayerWriter, windows: StepWindows, lengths: str) -> str:
    """Return how many windows of steps sequences of these lengths have, (B,) int64."""
    room = w.add("Add", lengths, windows.before + windows.after - windows.extent, what="room")
    whole = w.add("Div", w.add("Max", room, 0, what="whole_room"), windows.stride, what="further")
    return w.add("Where", w.add("Greater", lengths, 0, what="filled"), w.add("Add", whole, 1, what="windows"), 0,
                 what="ends_of_windows")  # fmt: skip


def convolution1d(w: LayerWriter) -> str:
    """Write a convolution over steps: a Conv of (B, n, T) between Transposes, of zeros after the ends."""
    layer: Any = w.layer
    windows, x = layer.windows, w.floats()
    lengths = None if layer.labels.source is None else w.lengths[layer.labels.source]
    x = x if lengths is None else w.masked(x, lengths)

    def by_feature(given: list[np.ndarray]) -> np.ndarray:
        return given[0].reshape(len(given[0]), windows.kernel, -1).transpose(0, 2, 1)

    weight, bias = w.joined("weight", [0], by_feature), [w.param(1)] if layer.bias else []
    y = w.add(
        "Conv", w.add("Transpose", x, what="features_first", perm=[0, 2, 1]), weight, *bias, group=layer.groups,
        kernel_shape=[windows.kernel], strides=[windows.stride], dilations=[windows.dilation],
        pads=[windows.before, windows.after],
    )  # fmt: skip
    y = w.add("Transpose", y, what="steps_first", perm=[0, 2, 1])
    if lengths is None:
        return y
    w.ends = window_ends(w, windows, lengths)
    return w.masked(y, w.ends)


def pooling1d(w: LayerWriter) -> str:
    """Write the maximum, mean, sum, first or last step of all steps or of windows of steps."""
    layer: Any = w.layer
    lengths = None if layer.labels.source is None else w.lengths[layer.labels.source]
    if layer.method in CHOOSING:
        return _chosen_steps(w, lengths)
    is_max = layer.method is StepPoolMethod.MAX
    x = w.floats() if lengths is None else w.masked(w.floats(), lengths, LOWEST if is_max else 0.0)
    if layer.over_all:
        if layer.method is not StepPoolMethod.AVG or lengths is None:
            return w.add({"MAX": "ReduceMax", "AVG": "ReduceMean", "SUM": "ReduceSum"}[layer.method.name], x, [1],
                         keepdims=0)  # fmt: skip
        count = w.add("Cast", w.add("Max", lengths, 1, what="count"), what="count_as_float", to=1)
        total = w.add("ReduceSum", x, [1], what="sum", keepdims=0)
        return w.add("Div", total, w.add("Unsqueeze", count, [1], what="divisor"))
    kernel, stride = layer.windows.kernel, layer.windows.stride
    x = w.add("Transpose", x, what="features_first", perm=[0, 2, 1])
    y = w.add("MaxPool" if is_max else "AveragePool", x, kernel_shape=[kernel], strides=[stride])
    y = w.add("Transpose", y, what="steps_first", perm=[0, 2, 1])
    if layer.method is StepPoolMethod.SUM:
        y = w.add("Mul", y, float(kernel), what="sums")
    if lengths is None:
        return y
    w.ends = window_ends(w, layer.windows, lengths)
    if layer.method is StepPoolMethod.AVG:  # over the steps of a window that count
        starts = w.add("Mul", w.places(y), stride, what="starts")
        left = w.add("Sub", w.add("Unsqueeze", lengths, [1], what="column"), starts, what="left")
        counts = w.add(
            "Cast", w.add("Clip", left, np.array(1), np.array(kernel), what="counts"), what="counted_as_float", to=1
        )
        factor = w.add("Div", float(kernel), w.add("Unsqueeze", counts, [2], what="divisors"), what="factors")
        y = w.add("Mul", y, factor, what="means")
    return w.masked(y, w.ends)


def _chosen_steps(w: LayerWriter, lengths: str | None) -> str:
    """Write the first or last steps of windows."""
    layer: Any = w.layer
    x, windows, method = w.floats(), layer.windows, layer.method.name
    if not layer.over_all:
        if lengths is not None:
            raise Refused("takes steps of windows by lengths")
        first = windows.kernel - 1 if method == "LAST" else 0
        return w.add("Slice", x, [first], [first + (layer.shape[1] - 1) * windows.stride + 1], [1], [windows.stride])

    def last(x: str) -> str:
        if lengths is None:
            return w.add("Gather", x, np.array(-1), what="last", axis=1)
        step = w.add("Sub", w.add("Max", lengths, 1, what="count"), 1, what="last_step")
        return w.add("GatherND", x, w.add("Unsqueeze", step, [1], what="place"), what="last", batch_dims=1)

    if method == "LAST":
        return last(x)
    if method == "FIRST":
        return w.add("Gather", x, np.array(0), axis=1)
    halves = w.several("Split", x, [layer.shape[1] // 2] * 2, outputs=2, what="halves", axis=2)
    return w.add("Concat", last(halves[0]), w.add("Gather", halves[1], np.array(0), what="first", axis=1), axis=1)


def attention(w: LayerWriter, is_weights: bool = False) -> str:
    """Write attention: products of the heads of queries and keys, a softmax, and products with those of values."""
    layer: Any = w.layer
    heads = [_heads(w, k) for k in range(2)]
    if w.params:
        scores = _additive_scores(w, heads)
    else:
        keys = w.add("Transpose", heads[1], what="keys_last", perm=[0, 1, 3, 2])
        scores = w.add("Mul", w.add("MatMul", heads[0], keys, what="products"), layer.factor, what="scores")
    seen = _seen(w)
    if seen:
        scores = w.add("Where", seen, scores, LOWEST, what="seen_scores")
    if is_weights:
        return w.add("Softmax", scores, axis=-1)
    weights = w.add("Softmax", scores, what="weights", axis=-1)
    values = _heads(w, 2 if layer.has_values else 1, what="values", rotary=False)
    means = w.add("Transpose", w.add("MatMul", weights, values, what="means"), what="steps_first", perm=[0, 2, 1, 3])
    return w.add("Reshape", means, [0, 0, layer.shape[2]])


def _heads(w: LayerWriter, source: int, what: str = "", rotary: bool = True) -> str:
    """Return a source (B, T, n) as (B, heads, T, n/heads), rotated by the positions of its steps if ``rotary``."""
    layer: Any = w.layer
    x, what, size = w.floats(source), what or ("queries", "keys")[source], layer.source_shapes[source][2] // layer.heads
    if rotary and layer.settings.rotary:
        x = _rotated(w, x, what, size)
    parted = w.add("Reshape", x, [0, 0, layer.heads, size], what=f"{what}_of_heads")
    return w.add("Transpose", parted, what=f"{what}_by_head", perm=[0, 2, 1, 3])


def _rotated(w: LayerWriter, x: str, what: str, size: int) -> str:
    """Return x with each pair of neighbouring features of a head rotated by an angle that grows with the step."""
    layer: Any = w.layer
    angles = _angles(w, x, BASE ** (-np.arange(0, size, 2) / size))
    turns = [w.add("Unsqueeze", w.add("Cast", w.add(function, angles, what=f"{what}_{function}"), what="turn", to=1),
                   [1, 3], what=f"{what}_{function.lower()}") for function in ("Cos", "Sin")]  # fmt: skip
    pairs = w.add("Reshape", x, [0, 0, layer.heads, size // 2, 2], what=f"{what}_pairs")
    first, second = w.several("Split", pairs, [1, 1], outputs=2, what=f"{what}_parts", axis=-1)

    def product(part: str, turn: int) -> str:
        return w.add("Mul", part, turns[turn], what=f"{what}_product")

    real = w.add("Sub", product(first, 0), product(second, 1), what=f"{what}_first")
    imaginary = w.add("Add", product(first, 1), product(second, 0), what=f"{what}_second")
    turned = w.add("Concat", real, imaginary, what=f"{what}_turned", axis=-1)
    return w.add("Reshape", turned, [0, 0, layer.heads * size], what=f"{what}_rotated")


def _angles(w: LayerWriter, x: str, frequencies: np.ndarray) -> str:
    """Return the positions of the steps of x times frequencies, (T, n) float64."""
    steps = w.add("Cast", w.add("Unsqueeze", w.places(x), [1], what="column"), what="positions", to=11)
    return w.add("Mul", steps, frequencies.astype(np.float64), what="angles")


def _additive_scores(w: LayerWriter, heads: list[str]) -> str:
    """Return the scores v·tanh(q + k) of each query and key, (B, heads, Tq, Tk)."""
    layer: Any = w.layer
    queries, keys = (w.add("Unsqueeze", each, [3 - k], what=f"{'qk'[k]}_pairs") for k, each in enumerate(heads))
    sums = w.add("Tanh", w.add("Add", queries, keys, what="sums"), what="tanh")
    return w.chain(sums, ("Mul", w.param(0, (layer.heads, 1, 1, -1))), ("ReduceSum", [-1], {"keepdims": 0}))


def _seen(w: LayerWriter) -> str:
    """Return which keys a query sees, to broadcast with (B, heads, Tq, Tk); the empty string for all."""
    layer: Any = w.layer
    seen = []
    if layer.labels.source is not None:
        lengths = w.lengths[layer.labels.source]
        assert lengths is not None, layer.name
        seen.append(w.add("Unsqueeze", w.counted(w.floats(1), lengths), [1, 2], what="keys_that_count"))
    if layer.settings.causal:
        queries = w.add("Unsqueeze", w.places(w.floats()), [1], what="query_places")
        seen.append(w.add("GreaterOrEqual", queries, w.places(w.floats(1)), what="before"))
    return w.add("And", *seen, what="seen") if len(seen) == 2 else (seen or [""])[0]


def positional_encoding(w: LayerWriter) -> str:
    """Write x·scale plus sines and cosines of the positions."""
    columns = w.layer.shape[2]
    even = np.arange(columns) // 2 * 2
    angles = _angles(w, w.floats(), BASE ** (-even / columns))
    turned = w.add("Add", angles, np.arange(columns) % 2 * (np.pi / 2), what="turned")  # cos is sin, a quarter further
    encoding = w.add("Cast", w.add("Sin", turned, what="sines"), what="encoding", to=1)
    scaled = w.floats() if w.settings.scale == 1 else w.add("Mul", w.floats(), float(w.settings.scale), what="scaled")
    return w.add("Add", scaled, encoding)


def next_codes(w: LayerWriter) -> str:
    """Write the next code of each step."""
    layer: Any = w.layer
    if layer.step is not None:
        return w.as_integers(w.add("Gather", w.codes(), np.array(layer.step + 1), axis=1))
    return w.as_integers(w.add("Slice", w.codes(), [1], [layer.stop], [1]))


SEQUENCES: Mapping[str, WriteLayer] = {
    "kEmbedding": embedding,
    "kOneHot": one_hot,
    "kSequenceLength": sequence_length,
    "kGRU": recurrent,
    "kLSTM": recurrent,
    "kRNN": recurrent,
    "kConvolution1D": convolution1d,
    "kPooling1D": pooling1d,
    "kAttention": attention,
    "kAttentionWeights": lambda w: attention(w, is_weights=True),
    "kPositionalEncoding": positional_encoding,
    "kRNNLabel": next_codes,
}
