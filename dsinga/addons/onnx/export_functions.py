"""Exports a layer that calls a PyTorch function: torch.onnx traces it, and its nodes are inlined."""

from __future__ import annotations

import warnings
from typing import Any

import numpy as np

from dsinga.addons.onnx.export_graph import ExportedLayer, Refused
from dsinga.addons.onnx.files import first_line, onnx_package

OPSET = 21


def traced_function(w: ExportedLayer) -> str:
    """Export a user's PyTorch function: trace it with PyTorch's exporter, and insert its nodes."""
    onnx, function = onnx_package(), w.layer.probed.function
    if function.package != "torch":
        raise Refused(f"calls a function of {function.library}; write it in PyTorch")
    remedy = "for any number of rows; write it without len, if and for"
    try:
        model = onnx.inliner.inline_local_functions(_trace(w, function.function))
        is_same = all(_computes(w, model, rows) for rows in (1, 5))
    except Exception as error:  # of many kinds, including the function's own
        raise Refused(f"calls a function that PyTorch does not export {remedy} ({first_line(error)})") from error
    if not is_same or any(attribute.HasField("g") for node in model.graph.node for attribute in node.attribute):
        raise Refused(f"calls a function that PyTorch does not export {remedy}")
    graph = model.graph
    given = [*(w.param(role) for role in range(len(w.params))), *w.all_floats()]
    names = dict(zip((value.name for value in graph.input), given, strict=True))
    names |= {tensor.name: w.graph.constant(onnx.numpy_helper.to_array(tensor)) for tensor in graph.initializer}
    for node in graph.node:
        inputs = [names[name] if name else "" for name in node.input]
        attributes = {each.name: onnx.helper.get_attribute_value(each) for each in node.attribute}
        path = f"{w.layer.name}/{node.op_type.lower()}"
        names |= zip(node.output, w.graph.node(node.op_type, inputs, path, len(node.output), **attributes), strict=True)
    return names[graph.output[0].name]


def _computes(w: ExportedLayer, model: Any, rows: int) -> bool:
    from onnx.reference import ReferenceEvaluator

    random = np.random.default_rng(rows)
    sources = [random.random((rows, *shape[1:]), np.float32) for shape in w.layer.source_shapes]
    arrays = [*(w.graph.params[name] for name in w.params), *sources]
    names = [value.name for value in model.graph.input]
    results: Any = ReferenceEvaluator(model).run(None, dict(zip(names, arrays, strict=True)))
    expected = w.layer.probed.function.value(arrays)
    return results[0].shape == expected.shape and np.allclose(results[0], expected, 1e-3, 1e-4, equal_nan=True)


def _trace(w: ExportedLayer, function: Any) -> Any:
    """Trace a function to an ONNX net for any number of rows."""
    import torch

    class Module(torch.nn.Module):
        def forward(self, *arrays: Any) -> Any:
            return function(*arrays)

    params = [torch.tensor(w.graph.params[name]) for name in w.params]
    sources = [torch.rand(3, *shape[1:]) for shape in w.layer.source_shapes]
    rows = [{0: torch.export.Dim("N")}] * len(sources)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # PyTorch's about itself
        program: Any = torch.onnx.export(
            Module().eval(), (*params, *sources), dynamo=True, opset_version=OPSET, verbose=False,
            dynamic_shapes=((*[None] * len(params), *rows),),
        )  # fmt: skip
    return program.model_proto
