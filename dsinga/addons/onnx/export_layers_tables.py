"""Exports layers of nets for tables as ONNX nodes: embeddings of numbers and categories, members of ensembles."""

from __future__ import annotations

import math
from collections.abc import Mapping

import numpy as np

from dsinga.addons.onnx.export_graph import FLOAT, ExportedLayer, WriteLayer

FLT_MIN = float(np.finfo(np.float32).tiny)  # the least mean probability of members with a finite logarithm


def categories(w: ExportedLayer) -> str:
    """Export columns with few categories as one-hot vectors, other columns as embeddings."""
    layer, codes, parts = w.layer, w.codes(), []
    if len(layer.few):
        chosen = w.add("Gather", codes, layer.column_of_unit.astype(np.int64), axis=1)
        parts.append(w.chain(chosen, ("Equal", layer.code_of_unit.astype(np.int64)), ("Cast", {"to": FLOAT})))
    if len(layer.many):
        rows = w.chain(codes, ("Gather", layer.many.astype(np.int64), {"axis": 1}), ("Add", layer.starts))
        vectors = w.add("Gather", w.param(0), rows)
        parts.append(w.add("Reshape", vectors, [0, len(layer.many) * w.settings.width]))
    return parts[0] if len(parts) == 1 else w.add("Concat", *parts, axis=1)


def piecewise_linear(w: ExportedLayer) -> str:
    """Export piecewise-linear functions of each number."""
    layer, x = w.layer, w.add("Unsqueeze", w.floats(), [2])
    factor, shift, low, high = (
        array.astype(np.float32) for array in (layer.factor, layer.shift, layer.low, layer.high)
    )
    code = w.chain(x, ("Mul", factor), ("Add", shift), ("Max", low), ("Min", high))
    y, added = own_products(w, code, w.param(0)), [w.param(1)]
    if w.settings.rectified:
        y = w.add("Relu", y if w.settings.linear else w.add("Add", y, added.pop()))
    added += [w.add("Mul", x, w.param(2))] if w.settings.linear else []
    return w.chain(y, *(("Add", each) for each in added), ("Reshape", [0, layer.shape[1]]))


def periodic(w: ExportedLayer) -> str:
    """Export sums of waves of each number."""
    frequency, *phase, weight, bias = map(w.param, range(len(w.params)))
    turns = w.add("Mul", frequency, 2 * math.pi)
    angle = w.chain(w.floats(), ("Unsqueeze", [2]), ("Mul", turns), *(("Add", each) for each in phase))
    code = w.add("Cos", angle)
    code = code if phase else w.add("Concat", code, w.add("Sin", angle), axis=2)
    y = w.add("Add", own_products(w, code, weight), bias)
    return w.add("Reshape", w.add("Relu", y) if w.settings.rectified else y, [0, w.layer.shape[1]])


def own_products(w: ExportedLayer, x: str, weight: str) -> str:
    """Export x (B, k, n) times a weight (k, n, m), a matrix for each k: (B, k, m)."""
    swapped = {"perm": [1, 0, 2]}
    return w.chain(x, ("Transpose", swapped), ("MatMul", weight), ("Transpose", swapped))


def batch_ensemble(w: ExportedLayer) -> str:
    """Export members' dense layers, which share a weight: s·(W (r·x)) + b."""
    x = w.floats()
    x = x if len(w.layer.source_shapes[0]) == 3 else w.add("Unsqueeze", x, [1])
    weight, r, s, bias = map(w.param, range(4))
    weight = w.add("Transpose", weight, perm=[1, 0])
    return w.chain(x, ("Mul", r), ("MatMul", weight), ("Mul", s), ("Add", bias))


def member_mean(w: ExportedLayer) -> str:
    """Export the mean of an ensemble's members: of numbers, or of probabilities as scores."""
    x, kind = w.floats(), w.settings.of.name
    if kind == "NUMBERS":
        return w.add("ReduceMean", x, [1], keepdims=0)

    def logarithm(probabilities: str) -> str:
        return w.chain(probabilities, ("ReduceMean", [1], {"keepdims": 0}), ("Max", FLT_MIN), ("Log",))

    if kind == "CLASSES":
        return logarithm(w.add("Softmax", x, axis=2))
    return w.add("Sub", logarithm(w.add("Sigmoid", x)), logarithm(w.chain(x, ("Neg",), ("Sigmoid",))))


TABLES: Mapping[str, WriteLayer] = {
    "kCategories": categories,
    "kPiecewiseLinear": piecewise_linear,
    "kPeriodic": periodic,
    "kColumnScale": lambda w: w.add("Mul", w.floats(), w.param(0)),
    "kBatchEnsemble": batch_ensemble,
    "kMemberDense": lambda w: w.add("Add", own_products(w, w.floats(), w.param(0)), w.param(1)),
    "kMemberMean": member_mean,
}
