"""Layers written as ONNX nodes compute in ONNX Runtime what they compute in dsinga: all cases of the layer contract."""

from typing import Any

import numpy as np
import pytest

from dsinga.addons.onnx.export_graph import ExportedLayer, GraphWriter, Refused
from dsinga.addons.onnx.export_layers_records import lengths_of_codes
from dsinga.addons.onnx.export_net import LAYERS, SAME, finished, write_layer
from dsinga.job import Phase
from dsinga.layers.interface.layer import Layer
from dsinga.ops.interface import NumpyOps
from dsinga.testing import LayerCase
from tests.support.layer_cases import CASES, context
from tests.support.onnx_nets import session_of
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
pytest.importorskip("onnxruntime")

REFUSED = {
    "kConcate-rows": "joins batches", "kSlice-rows": "cuts the batch", "kDropout-member": "draws a member",
    "kDummy-input": "makes random numbers", "kRNNDummy-codes": "makes random numbers",
    "kPooling1D-FIRST windows": "by lengths", "kPooling1D-LAST windows": "by lengths",
}  # fmt: skip
WITHOUT = REFUSED.keys() | {"kDropout-member image", "kDropout-member rows", "kRNNDummy-numbers"}
WITHOUT |= {"kGRU-carry", "kLSTM-carry", "kRNN-carry"}  # a state that training alone has
assert LAYERS.keys() >= {"kInnerProduct", "kConvolution", "kGRU", "kArgSort"}
EXPORTED = [case for case in CASES if SAME.get(case.kind, case.kind) in LAYERS and str(case) not in WITHOUT]


def run(net: Any, feeds: dict[str, np.ndarray]) -> list[np.ndarray]:
    """Return what ONNX Runtime computes of a net."""
    proto = net.model
    proto.graph.initializer.extend(onnx.numpy_helper.from_array(array, name) for name, array in net.weights.items())
    session = session_of(proto)
    return list(session.run(None, {each.name: feeds[each.name] for each in session.get_inputs()}))


def written(case: LayerCase, layer: Layer, params: list[np.ndarray], sources: list[np.ndarray]) -> Any:
    """Return the net of one layer, whose inputs are its sources."""
    names = [spec.role for spec in layer.params]
    graph = GraphWriter(dict(zip(names, params, strict=True)))
    inputs = [graph.unique(f"source{k}") for k in range(len(sources))]
    graph.integers.update(name for name, x in zip(inputs, sources, strict=True) if x.dtype == np.int64)
    w = ExportedLayer(graph, layer, names, inputs, [None] * len(inputs), sources[0].ndim if sources else 0)
    w.lengths = [lengths_of_codes(w, name) if k == layer.labels.source else None for k, name in enumerate(inputs)]
    parts = write_layer(w)
    outputs = parts if isinstance(parts, list) else [parts]
    outputs = [graph.node("Identity", [value], f"output{k}")[0] for k, value in enumerate(outputs)]
    graph.integers.update(f"output{k}" for k, value in enumerate(parts if isinstance(parts, list) else [parts])
                          if value in graph.integers)  # fmt: skip
    graph.keep(outputs)
    shapes = layer.part_shapes or [layer.shape]
    ends = [(name, x.shape[1:]) for name, x in zip(inputs, sources, strict=True) if graph.takes(name)]
    return finished(graph, ends, [(name, shape[1:]) for name, shape in zip(outputs, shapes, strict=True)])


@pytest.mark.parametrize("case", EXPORTED, ids=str)
def test_a_layer_computes_the_same_in_onnxruntime(case):
    layer, ops = case.layer(), NumpyOps()
    params, sources = case.inputs(ops, np.float32)
    expected = layer.compute_feature(params, sources, context(ops, Phase.kTest)).feature
    results = run(written(case, layer, params, sources), {f"source{k}": x for k, x in enumerate(sources)})
    for result, feature in zip(results, expected if isinstance(expected, tuple) else [expected], strict=True):
        assert result.dtype == feature.dtype
        np.testing.assert_allclose(result, feature, rtol=1e-5, atol=1e-5)


@pytest.mark.parametrize("case", [case for case in CASES if str(case) in REFUSED], ids=str)
def test_a_layer_that_is_refused_says_why(case):
    layer = case.layer()
    params, sources = case.inputs(NumpyOps(), np.float32)
    refused(lambda: written(case, layer, params, sources), REFUSED[str(case)], error=Refused)
