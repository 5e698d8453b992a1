"""Operators of ONNX on shapes, and arithmetic, as layers: outputs are those of onnx's reference evaluator."""

import numpy as np
import pytest

from tests.support.onnx_nets import graph_of, loaded, node
from tests.support.refusals import refused

onnx = pytest.importorskip("onnx")
reference = pytest.importorskip("onnx.reference")
RANDOM = np.random.default_rng(0)
X = RANDOM.normal(size=(4, 3, 5)).astype(np.float32)
MATRIX = RANDOM.normal(size=(5, 2)).astype(np.float32)
ROW, ONES = MATRIX[:, 0].copy(), np.ones((3, 5), np.float32)


def imported(folder, nodes, inputs, arrays, version=21):
    """Return the model of nodes, of inputs (arrays by name) and initializers, and the outputs that onnx computes.

    A node is its operator, its inputs and attributes; its output is "n" and its number, that of the last one "y".
    """
    made = []
    for number, (op_type, names, attributes) in enumerate(nodes):
        output = "y" if number == len(nodes) - 1 else f"n{number}"
        made.append(node(op_type, names, output, **attributes))
    net = graph_of(made, inputs, arrays=arrays, opset=version)
    return loaded(net, folder), reference.ReferenceEvaluator(net).run(None, inputs)[0]


CASES = {
    "numbers at both sides": [("Sub", "one x", {}), ("Div", "n0 two", {}), ("Pow", "n1 two", {})],
    "a param of fewer axes": [("Mul", "x row", {}), ("Max", "n0 ones row", {}), ("Sum", "n1 x x", {})],
    "masks": [("Greater", "x row", {}), ("Where", "n0 x one", {}), ("LessOrEqual", "n1 two", {}), ("Not", "n2", {})],
    "a number in place of what a mask hides": [("Where", "seen x low", {})],
    "reductions": [("ReduceMean", "x last", {}), ("Sub", "x n0", {}), ("ReduceMin", "n1 last", {"keepdims": 0})],
    "norms": [("ReduceL2", "x first", {}), ("ReduceSumSquare", "n0 last", {"keepdims": 0})],
    "softmax of an inner axis": [("Softmax", "x", {"axis": 1})],
    "attention by products": [("Transpose", "x", {"perm": [0, 2, 1]}), ("MatMul", "x n0", {}), ("Softmax", "n1", {})],
    "steps first": [("Transpose", "x", {"perm": [1, 0, 2]}), ("MatMul", "n0 matrix", {}), ("Add", "n1 two", {}),
                    ("ReduceMax", "n2 none", {"keepdims": 0})],
    "shapes of the batch": [("Shape", "x", {"end": 1}), ("Concat", "n0 minus", {"axis": 0}), ("Reshape", "x n1", {})],
    "further axes": [("Unsqueeze", "x first", {}), ("Expand", "n0 shape", {}), ("Flatten", "n1", {"axis": 1})],
    "records and steps as one axis": [("Reshape", "x rows", {}), ("MatMul", "n0 matrix", {}),
                                      ("Softmax", "n1", {"axis": 1}), ("Reshape", "n2 steps_of_2", {})],
    "a norm that is not of the last axis": [
        ("Mul", "x x", {}), ("ReduceMean", "n0 first", {}), ("Add", "n1 two", {}), ("Sqrt", "n2", {}),
        ("Div", "x n3", {}), ("Mul", "n4 inner", {})],
    "equal numbers, expanded": [("Expand", "ones minimal", {}), ("Add", "x n0", {})],
    "parts": [("Slice", "x none two_ends last steps", {}), ("Gather", "n0 first", {"axis": 1}),
              ("Squeeze", "n1 first", {})],
    "parts in any order": [("Gather", "x order", {"axis": 1}), ("Tile", "n0 times", {}),
                           ("Concat", "n1 x", {"axis": 1})],
    "logarithms of a softmax": [("LogSoftmax", "x", {"axis": 1})],
    "running sums": [("CumSum", "x axis2", {}), ("CumSum", "n0 axis1", {"exclusive": 1, "reverse": 1})],
    "products of axes": [("Einsum", "x cube", {"equation": "bti,hio->bhto"}),
                         ("Einsum", "n0 x", {"equation": "bhto,bti->bhio"})],
    "products of records": [("Einsum", "x x", {"equation": "bij,bkj->bik"})],
    "exponents of tensors": [("Abs", "x", {}), ("Pow", "n0 row", {})],
    "points of a param": [("GatherND", "ones points", {}), ("Mul", "x n0", {})],
    "params of params": [("Exp", "row", {}), ("Mul", "x n0", {}), ("Concat", "row row", {"axis": 0}),
                         ("Slice", "n2 none five none", {}), ("Add", "n1 n3", {})],
}  # fmt: skip
ARRAYS = {
    **{"one": np.float32(1), "two": np.float32(2), "row": ROW, "ones": ONES, "matrix": MATRIX},
    **{"first": np.array([1]), "last": np.array([2]), "none": np.array([0]), "minus": np.array([-1])},
    **{"seen": ROW > 0, "low": np.float32(-1e4)},
    **{"inner": ROW[:3, None], "minimal": np.array([1, 1])},
    **{"rows": np.array([-1, 5]), "steps_of_2": np.array([-1, 3, 2])},
    **{"shape": np.array([1, 2, 3, 5]), "two_ends": np.array([-1]), "steps": np.array([2])},
    **{"order": np.array([2, 0]), "times": np.array([1, 2, 1]), "cube": MATRIX.reshape(1, 5, 2), "five": np.array([5])},
    **{f"axis{axis}": np.array(axis) for axis in range(3)},
    **{"points": np.array([[[0, 1], [2, 3], [1, -1], [0, 0], [1, 1]]])},
}


@pytest.mark.parametrize("case", CASES)
def test_operators_compute_what_onnx_computes(case, tmp_path):
    model, expected = imported(tmp_path, CASES[case], {"x": X}, ARRAYS)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)


def test_named_arrays_are_params_and_numbers_are_not(tmp_path):
    nodes = [
        ("Mul", "x scale", {}), ("Add", "n0 onnx::Add_3", {}), ("Slice", "table none first", {}), ("Add", "n1 n2", {}),
    ]  # fmt: skip
    table = RANDOM.normal(size=(3, 5)).astype(np.float32)
    arrays = {**ARRAYS, "scale": ROW, "onnx::Add_3": ROW + 1, "table": table}
    model, expected = imported(tmp_path, nodes, {"x": X}, arrays)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)
    trained = {variable.name for variable in model.trainable_variables}
    assert trained == {"scale_vector", "table_vector"}
    np.testing.assert_array_equal(model.params["table_vector"], table)


def test_a_table_of_codes_is_an_embedding(tmp_path):
    codes = np.array([[0, 3, 1], [2, 2, 0]])
    table = RANDOM.normal(size=(4, 6)).astype(np.float32)
    nodes = [("Gather", "words.weight codes", {})]
    model, expected = imported(tmp_path, nodes, {"codes": codes}, {"words.weight": table})
    np.testing.assert_array_equal(model.predict(codes), expected)
    assert list(model.params) == ["words_weight"]


def test_positions_taken_from_a_param_are_part_of_it(tmp_path):
    table = RANDOM.normal(size=(7, 5)).astype(np.float32)
    nodes = [("Gather", "positions.weight codes", {}), ("Add", "x n0", {})]
    arrays = {"positions.weight": table, "codes": np.arange(3)[None]}
    model, expected = imported(tmp_path, nodes, {"x": X}, arrays)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-6)
    assert {v.name: v.shape for v in model.trainable_variables} == {"positions.weight_vector": (7, 5)}


HALF = {"const_h": np.float32(0.5), "root": np.float32(np.sqrt(2)), "tiny": np.float32(1e-6)}
NORMS = {"norm.weight": ROW, "norm.bias": ROW - 1}
SPELLED_OUT = {
    "InnerProduct": [("MatMul", "x fc.weight", {}), ("Add", "fc.bias n0", {})],
    "Activation": [("Div", "x root", {}), ("Erf", "n0", {}), ("Add", "n1 one", {}), ("Mul", "x const_h", {}),
                   ("Mul", "n3 n2", {})],
    "LayerNorm": [("ReduceMean", "x ends", {}), ("Sub", "x n0", {}), ("Pow", "n1 two", {}),
                  ("ReduceMean", "n2 ends", {}), ("Add", "n3 tiny", {}), ("Sqrt", "n4", {}), ("Div", "n1 n5", {}),
                  ("Mul", "n6 norm.weight", {}),
                  ("Add", "n7 norm.bias", {})],
    "RMSNorm": [("Mul", "x x", {}), ("ReduceMean", "n0 ends", {}), ("Add", "n1 tiny", {}), ("Sqrt", "n2", {}),
                ("Reciprocal", "n3", {}), ("Mul", "x n4", {}), ("Mul", "norm.weight n5", {})],
    "Attention": [("Reshape", "x heads", {}), ("Transpose", "n0", {"perm": [0, 2, 1, 3]}),
                  ("Transpose", "n0", {"perm": [0, 2, 3, 1]}), ("Mul", "n1 const_h", {}), ("Mul", "n2 const_h", {}),
                  ("MatMul", "n3 n4", {}), ("Softmax", "n5", {}), ("MatMul", "n6 n1", {})],
}  # fmt: skip


@pytest.mark.parametrize("kind", SPELLED_OUT)
def test_layers_that_a_file_spells_out_are_one(kind, tmp_path):
    weights = {"fc.weight": MATRIX, "fc.bias": np.array([1, 2], np.float32), "ends": np.array([-1])}
    arrays = {**ARRAYS, **HALF, **NORMS, **weights, "heads": np.array([0, 0, 1, 5])}
    model, expected = imported(tmp_path, SPELLED_OUT[kind], {"x": X}, arrays)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)
    kinds = [type(node.layer).__name__ for node in model.predicting_net().nodes]
    assert kind in kinds or kind == "InnerProduct" and "TimeDistributed" in kinds
    assert not {"Softmax", "Arithmetic", "Pooling1D"} & {*kinds} - ({"Arithmetic"} if kind == "Attention" else set())


def test_results_that_other_nodes_take_stay(tmp_path):
    nodes = [("Sigmoid", "x", {}), ("Mul", "x n0", {}), ("Add", "n1 n0", {})]
    model, expected = imported(tmp_path, nodes, {"x": X}, ARRAYS)
    np.testing.assert_allclose(model.predict(X), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    ("nodes", "reason"),
    [
        ([("Reshape", "x minus", {})], "mixes the records of a batch"),
        ([("ReduceMean", "x none", {})], "over the records of a batch"),
        ([("CumSum", "x axis0", {})], "over the records of a batch"),
        ([("Einsum", "x x", {"equation": "bij,cij->bc"})], "over the records of a batch"),
        ([("Einsum", "x x", {"equation": "bij,bkl->bk"})], "that sums over an axis of one tensor"),
        ([("Transpose", "x", {"perm": [1, 0, 2]})], "moves the batch"),
    ],
)
def test_what_mixes_records_is_refused(nodes, reason, tmp_path):
    refused(lambda: imported(tmp_path, nodes, {"x": X}, ARRAYS), reason)
