"""Writes an estimator's steps before and after its net as ONNX nodes: scaling, classes, probabilities, targets.

Inputs and outputs have skl2onnx's names: "X" for an array, or each column of a frame; "label" and "probabilities" of a
classifier (as without ZipMap), "variable" of a regressor or transformer.
"""

from __future__ import annotations

from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import DOUBLE, FLOAT, INT64, STRING, ExportedLayer, GraphWriter
from dsinga.addons.onnx.export_steps import Values
from dsinga.addons.onnx.export_tables import TYPES, add_inputs, encoded_columns, served_columns, writer_of
from dsinga.base.errors import UserError
from dsinga.nn.model.predictable import Predictable
from dsinga.nn.model.records import unlabelled

CLASSES = {**dict.fromkeys("biu", (INT64, np.int64)), "f": (DOUBLE, np.float64)}  # by kind of dtype; others are texts
ARRAY, LABEL, PROBABILITIES, NUMBERS = "X", "label", "probabilities", "variable"


def write_records(graph: GraphWriter, model: Predictable) -> Values:
    """Export the preprocessing that makes records of an estimator's inputs; return these inputs."""
    columns, served, inputs = served_columns(model), model.served, Values()
    for definitions in model.trained_definitions().values() if served is None else ():
        if (scaled := definitions.get("scaled")) is not None:
            scaled.check_source(None)  # raises UserError: the estimator is to be exported
    for name, each in columns.items():
        if served is None or served.cells is None:
            inputs += add_inputs(graph, {column: TYPES[kind] for column, kind in each.kinds.items()})
            graph.encoded[name] = encoded_columns(graph, each, {column: column for column in each.kinds})
    if served is None or graph.encoded or (served.names is served.scaling is served.cells is None):
        return inputs
    (name,) = model.input_names()
    w, x, shape = writer_of(graph, "records"), ARRAY, model.record_shapes[name]
    if served.names is None:
        shape = shape if served.cells is None else (len(served.cells),)
        inputs = add_inputs(graph, {ARRAY: DOUBLE}, shape)
    else:
        inputs = add_inputs(graph, dict.fromkeys(served.names, DOUBLE))
        x = w.add("Concat", *served.names, axis=1)
    if served.cells is not None:
        values = {cell: w.add("Gather", x, [place], axis=1) for place, cell in enumerate(served.cells)}
        graph.encoded[name] = encoded_columns(graph, columns[name], values)
        return inputs
    if served.scaling is not None:
        x = w.chain(x, ("Sub", served.scaling.offset), ("Div", served.scaling.scale))
    x = w.add("Cast", x, to=FLOAT)
    graph.encoded[name] = w.chain(x, ("Clip", 0.0, 1.0)) if served.clips else x
    return inputs


def write_predictions(graph: GraphWriter, served: Any, scores: str, shape: tuple[int, ...]) -> Values:
    """Export an estimator's steps after the output (N, ...) of its net; return the outputs."""
    w = writer_of(graph, "predictions")
    if (classes := served.classes) is None:
        return [named(graph, NUMBERS, *numbers(w, served, scores, shape))]
    tempered = w.add("Div", scores, float(served.temperature))
    if served.multilabel:
        label = w.chain(scores, ("Greater", 0.0), ("Cast", {"to": INT64}))
        probabilities = w.add("Sigmoid", tempered)
        return [named(graph, LABEL, label, INT64, shape), named(graph, PROBABILITIES, probabilities, FLOAT, shape)]
    kind, dtype = CLASSES.get(classes.dtype.kind, (STRING, object))
    if kind == STRING and not all(isinstance(each, str) for each in classes):
        raise UserError(f"ONNX has no classes such as {classes[0]!r}; train on texts of them, as by y.astype(str)")
    place = w.chain(scores, ("ArgMax", {"axis": 1, "keepdims": 0}))
    label, probabilities = w.add("Gather", np.array(classes.tolist(), dtype), place), w.add("Softmax", tempered, axis=1)
    return [named(graph, LABEL, label, kind, ()), named(graph, PROBABILITIES, probabilities, FLOAT, shape)]


def numbers(w: ExportedLayer, served: Any, x: str, shape: tuple[int, ...]) -> tuple[str, int, tuple[int, ...]]:
    """Export the point predictions of targets, or features; return their value, type and row shape."""
    if not served.targets:
        return w.add("Flatten", x), FLOAT, (int(np.prod(shape)),)
    x = w.add("Cast", x, to=DOUBLE)
    if (form := served.form) is not None:
        x = point(w, form, w.add("Reshape", x, [0, served.targets, form.count]))
    x = w.add("Reshape", x, [0, served.targets])
    if served.target_scaling is not None:
        offset, scale = (np.reshape(part, (1, -1)) for part in served.target_scaling)
        x = w.chain(x, ("Mul", scale), ("Add", offset))
    return x, DOUBLE, (served.targets,)


def point(w: ExportedLayer, form: Any, x: str) -> str:
    """Export the mean, or the middle quantile, of each prediction (N, k, numbers)."""
    if form.dim == "member":
        return w.add("ReduceMean", x, [2], keepdims=0)
    if form.dim == "quantile":  # sorted, since quantiles may cross
        place = int(np.abs(np.array(form.points) - 0.5).argmin())
        ordered = w.parts("TopK", x, [form.count], outputs=2, axis=2, largest=0)[0]
        return w.add("Gather", ordered, place, axis=2)
    first = w.add("Gather", x, 0, axis=2)
    if form.name.name != "lognormal":
        return first
    scale = w.add("Gather", x, 1, axis=2)
    half = w.chain(scale, ("Mul", scale), ("Div", np.array(2.0)))
    return w.chain(first, ("Add", half), ("Exp",))


def named(graph: GraphWriter, name: str, value: str, kind: int, shape: tuple[int, ...]) -> tuple[str, tuple[int, ...]]:
    """Name an output uniquely; return it with its row shape."""
    graph.types[name := graph.copy(value, name)] = kind
    return name, shape


def given_records(model: Predictable, x: Any) -> dict[str, np.ndarray]:
    """Convert records or a data frame to the arrays, by input, that ONNX Runtime needs to predict them."""
    columns, served = served_columns(model), model.served
    if served is None:
        records = {name: array for name, (array, _) in unlabelled(model, x).items()}
        for name, each in columns.items():
            records |= each.given(records.pop(name))
        return records
    if served.names is None:
        return {ARRAY: np.asarray(x.toarray() if hasattr(x, "toarray") else x)}  # of scipy.sparse
    if columns:
        return columns[model.input_names()[0]].given(x)
    return {name: np.asarray(x[name])[:, None] for name in served.names}
