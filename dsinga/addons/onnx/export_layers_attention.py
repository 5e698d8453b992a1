"""Writes attention, and encodings of the positions of steps, as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np

from dsinga.addons.onnx.export_graph import DOUBLE, FLOAT, ExportedLayer, WriteLayer
from dsinga.addons.onnx.export_layers_sequences import LOWEST
from dsinga.layers.sequences.attention import BASE


def attention(w: ExportedLayer, is_weights: bool = False) -> str:
    """Export attention: products of queries' and keys' heads, a softmax, and products with the values' heads."""
    queries, keys = (_by_head(w, _rotated(w, w.floats(source))) for source in range(2))
    if w.params:  # v·tanh(q + k) of each query and key
        sums = w.add("Tanh", w.add("Add", w.add("Unsqueeze", queries, [3]), w.add("Unsqueeze", keys, [2])))
        vector = w.param(0, (w.layer.heads, 1, 1, -1))
        scores = w.chain(sums, ("Mul", vector), ("ReduceSum", [-1], {"keepdims": 0}))
    else:
        keys = w.add("Transpose", keys, perm=[0, 1, 3, 2])
        scores = w.chain(queries, ("MatMul", keys), ("Mul", w.layer.factor))
    if seen := _seen(w):
        scores = w.add("Where", seen, scores, LOWEST)
    weights = w.add("Softmax", scores, axis=-1)
    if is_weights:
        return weights
    values = _by_head(w, w.floats(2 if w.layer.has_values else 1))
    joined = ("Transpose", {"perm": [0, 2, 1, 3]}), ("Reshape", [0, 0, w.layer.shape[2]])
    return w.chain(weights, ("MatMul", values), *joined)


def _by_head(w: ExportedLayer, x: str) -> str:
    return w.chain(x, ("Reshape", [0, 0, w.layer.heads, -1]), ("Transpose", {"perm": [0, 2, 1, 3]}))


def _rotated(w: ExportedLayer, x: str) -> str:
    if not w.settings.rotary:
        return x
    size = w.layer.source_shapes[0][2] // w.layer.heads
    angles = _angles(w, x, BASE ** (-np.arange(0, size, 2) / size))
    cos, sin = (w.chain(angles, (name,), ("Cast", {"to": FLOAT}), ("Unsqueeze", [1, 3])) for name in ("Cos", "Sin"))
    pairs = w.add("Reshape", x, [0, 0, w.layer.heads, size // 2, 2])
    first, second = w.parts("Split", pairs, [1, 1], outputs=2, axis=-1)
    real = w.add("Sub", w.add("Mul", first, cos), w.add("Mul", second, sin))
    imaginary = w.add("Add", w.add("Mul", first, sin), w.add("Mul", second, cos))
    return w.add("Reshape", w.add("Concat", real, imaginary, axis=-1), [0, 0, w.layer.heads * size])


def _angles(w: ExportedLayer, x: str, frequencies: np.ndarray) -> str:
    return w.chain(w.places(x), ("Unsqueeze", [1]), ("Cast", {"to": DOUBLE}), ("Mul", frequencies))


def _seen(w: ExportedLayer) -> str:
    """Export the mask of the keys that a query sees, broadcast with (B, heads, Tq, Tk); "" for all."""
    seen = [] if w.labels is None else [w.add("Unsqueeze", w.counted(w.floats(1), w.labels), [1, 2])]
    if w.settings.causal:
        queries = w.add("Unsqueeze", w.places(w.floats()), [1])
        seen.append(w.add("GreaterOrEqual", queries, w.places(w.floats(1))))
    return w.add("And", *seen) if len(seen) == 2 else (seen or [""])[0]


def positional_encoding(w: ExportedLayer) -> str:
    """Export x·scale plus sines and cosines of the positions."""
    columns, x = np.arange(w.layer.shape[2]), w.floats()
    angles = _angles(w, x, BASE ** (-(columns // 2 * 2) / len(columns)))
    quarters = columns % 2 * (np.pi / 2)  # the cosine is the sine of an angle that is a quarter larger
    encoding = w.chain(angles, ("Add", quarters), ("Sin",), ("Cast", {"to": FLOAT}))
    return w.add("Add", w.add("Mul", x, float(w.settings.scale)), encoding)


ATTENTION: Mapping[str, WriteLayer] = {
    "kAttention": attention,
    "kAttentionWeights": lambda w: attention(w, is_weights=True),
    "kPositionalEncoding": positional_encoding,
}
