"""The float32 node cases of onnx.backend.test: all of the operators that import pass, but those that cannot be nets."""

from pathlib import Path

import pytest

pytest.importorskip("onnx")

from dsinga.addons.onnx.operators import OPERATORS
from tests.support.onnx_cases import LONG
from tests.support.onnx_table import cells, row_of, rows_in

BUSY = {"Attention", "ConvTranspose", "LayerNormalization", "RMSNormalization", "Resize"}  # a second or more
PAGE = Path(__file__).parents[3] / "docs" / "reference" / "onnx-operators.md"


def marks(operator: str) -> list[pytest.MarkDecorator]:
    """Return the marks of the cases of an operator."""
    return [pytest.mark.slow] if operator in LONG else [pytest.mark.ci] if operator in BUSY else []


@pytest.mark.parametrize("operator", [pytest.param(name, marks=marks(name)) for name in sorted(OPERATORS)])
def test_all_cases_of_an_operator_pass_but_those_that_cannot_be_nets(operator: str) -> None:
    row = row_of(operator)
    assert row.faults == {}
    if row.cases:
        name, cases, passed, error, left_out = rows_in(PAGE.read_text(encoding="utf-8"))[operator]
        now = cells(operator, row)
        assert [name, cases, passed, left_out] == [*now[:3], now[4]]
        assert row.error <= 8 * max(1, int(error.removeprefix("≤ ")))  # other machines add numbers in another order


def test_the_last_row_of_the_table_is_the_sum() -> None:
    *rows, total = rows_in(PAGE.read_text(encoding="utf-8")).values()
    assert total[:3] == [f"all {len(rows)}", *(str(sum(int(row[i]) for row in rows)) for i in (1, 2))]
    assert int(total[2]) >= 290
