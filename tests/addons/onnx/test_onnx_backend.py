"""The float32 node cases of onnx.backend.test: all of the operators that import pass, but those that cannot be nets."""

from __future__ import annotations

import pytest

pytest.importorskip("onnx")

from dsinga.addons.onnx.operators import OPERATORS
from tests.support.onnx_cases import LONG, modules
from tests.support.onnx_excluded import without_layers
from tests.support.onnx_table import row_of


@pytest.mark.parametrize(
    "operator", [pytest.param(name, marks=pytest.mark.slow if name in LONG else ()) for name in sorted(OPERATORS)]
)
def test_all_cases_of_an_operator_pass_but_those_that_cannot_be_nets(operator: str) -> None:
    if operator.lower() not in modules() or operator in without_layers():
        pytest.skip("onnx.backend.test has no case of it that can be a net")
    assert row_of(operator).faults == {}
