"""Exports the inputs of a net, its output layers, and restricted Boltzmann machines as ONNX nodes."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import FLOAT, INT64, ExportedLayer, Refused, WriteLayer
from dsinga.job import Phase
from dsinga.layers import RecordInfo
from dsinga.reading.open_layer import augmented_info


def lengths_of_codes(w: ExportedLayer, codes: str) -> str:
    """Add nodes that count codes (B, T) before the end, marked by -1: (B,) int64."""
    return w.chain(codes, ("GreaterOrEqual", 0), ("Cast", {"to": INT64}), ("ReduceSum", [1], {"keepdims": 0}))


def record_input(w: ExportedLayer) -> str:
    """Export the normalisation of records; channels-last images become channels-first."""
    layer: Any = w.layer
    x, record = w.sources[0], getattr(layer, "record", layer.shape[1:])
    mean, std = getattr(layer, "mean", None), getattr(layer, "std", None)
    if (shape := w.graph.records.get(layer.name)) is not None:
        x = fitted_records(w, x, shape)
    if mean is None and std is None and w.sources[0] in w.graph.integers:
        w.ends = lengths_of_codes(w, x) if len(record) == 1 else None
        return w.as_integers(x)
    x = w.add("Cast", x, to=FLOAT) if w.sources[0] in w.graph.integers else x
    if tuple(record) != tuple(getattr(layer, "stored", record)):
        x = w.add("Reshape", x, [0, *record])
    if getattr(layer, "channels_last", False):
        x = w.add("Transpose", x, perm=[0, len(record), *range(1, len(record))])
    if mean is not None:
        x = w.add("Sub", x, np.asarray(mean, np.float32))
    return x if std is None else w.add("Div", x, np.asarray(std, np.float32))


def fitted_records(w: ExportedLayer, x: str, shape: tuple[int, ...]) -> str:
    """Fit records of another shape as predictions do: cut sequences, crop or resize images.

    Cropping and resizing are linear along rows and columns; their matrices come from images of a single row or column.
    """
    info = RecordInfo(shape, 1, has_labels=False)
    fit = augmented_info(w.layer.conf, info, np.float32, 0, Phase.kTest)[0].fit
    if len(shape) == 1:
        return w.add("Slice", x, [0], [fit.shape[0]], [1])
    if len(shape) != 3:
        raise Refused("augments records that are no images with channels")
    axes = (0, 1) if w.layer.channels_last else (1, 2)
    matrices = []
    for axis in axes:
        images = np.zeros((shape[axis], *shape), np.float32)
        np.moveaxis(images, axis + 1, 1)[np.arange(shape[axis]), np.arange(shape[axis])] = 1
        results = np.moveaxis(fit.evaluate(images), [axis + 1], [1])  # (one for each, points, ...)
        matrices.append(results.reshape(*results.shape[:2], -1)[:, :, results[0, 0].size // 2].T)
    return w.add("Einsum", *matrices, x, equation="ih,jw,nhwc->nijc" if w.layer.channels_last else "ih,jw,nchw->ncij")


def unchanged(w: ExportedLayer) -> str:
    """Export a layer that changes nothing as its source."""
    if not w.sources:
        raise Refused("makes random numbers")
    return w.sources[0]


def largest_indices(w: ExportedLayer) -> str:
    """Export the indices of a row's largest numbers."""
    rows = w.add("Flatten", w.floats())
    return w.as_integers(w.parts("TopK", rows, [w.layer.topk], outputs=2, axis=1)[1])


def hidden_units(w: ExportedLayer) -> str:
    """Export the means of a restricted Boltzmann machine's hidden units."""
    product = w.add("Gemm", w.floats(), w.param(0), *([w.param(1)] if w.layer.bias else []), transB=1)
    return product if w.layer.gaussian else w.add("Sigmoid", product)


RECORDS: Mapping[str, WriteLayer] = {
    "kMnist": lambda w: w.chain(w.floats(), ("Div", float(w.settings.norm_a)), ("Sub", float(w.settings.norm_b))),
    "kDummy": unchanged,
    "kRNNDummy": unchanged,
    "kArgSort": largest_indices,
    "kRBMVis": lambda w: w.add("Flatten", w.floats()),
    "kRBMHid": hidden_units,
    "kCSVOutput": unchanged,
    "kRecordOutput": unchanged,
    "kCharRNNOutput": unchanged,
}
