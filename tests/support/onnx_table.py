"""What onnx.backend.test says of the operators that import: ``python -m tests.support.onnx_table [OPERATOR ...]``.

Prints for each operator its float32 cases, how many pass, the greatest error, and why the others do not.
``--write`` puts the table between the marks of a page, in which errors are given as powers of eight.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass, field
from pathlib import Path

import click

from dsinga.addons.onnx.operators import OPERATORS
from tests.support.onnx_cases import cases_of, modules
from tests.support.onnx_excluded import excluded, without_layers
from tests.support.onnx_runs import outcome

BEGIN = "<!-- operators: written by python -m tests.support.onnx_table -->\n\n"
END = "\n\n<!-- end of operators -->"


@dataclass
class Row:
    """What the cases of an operator gave.

    Attributes:
        cases: how many there are.
        ways: how many passed in each way.
        error: the greatest error of those that passed, in units of the last place.
        excluded: how many are left out for each reason.
        faults: why others do not pass, by the name of the case.
    """

    cases: int
    ways: Counter[str] = field(default_factory=Counter)
    error: float = 0.0
    excluded: Counter[str] = field(default_factory=Counter)
    faults: dict[str, str] = field(default_factory=dict)


def row_of(operator: str) -> Row:
    """Return what the cases of an operator give."""
    cases = cases_of(operator)
    row = Row(len(cases))
    for case in cases:
        reason = excluded(case)
        if reason:
            row.excluded[reason] += 1
            continue
        result = outcome(case)
        if result.fault:
            row.faults[case.name] = result.fault
        else:
            row.ways[result.way] += 1
            row.error = max(row.error, result.error)
    return row


def operators() -> list[str]:
    """Return the operators that import and have cases."""
    return sorted(name for name in OPERATORS if name.lower() in modules() and name not in without_layers())


def bound(error: float) -> str:
    """Return the power of eight that an error does not exceed, 0 for none."""
    power = 1
    while power < error:
        power *= 8
    return f"≤ {power}" if error else "0"


def table(rows: dict[str, Row]) -> str:
    """Return the table as Markdown."""
    lines = ["| operator | cases | pass | error | left out |", "|---" * 5 + "|"]
    for operator, row in rows.items():
        reasons = "; ".join(f"{count}: {reason}" for reason, count in row.excluded.items())
        lines.append(f"| {operator} | {row.cases} | {row.ways.total()} | {bound(row.error)} | {reasons} |")
    counts = sum(row.cases for row in rows.values()), sum(row.ways.total() for row in rows.values())
    lines.append(f"| all {len(rows)} | {counts[0]} | {counts[1]} | {bound(max(r.error for r in rows.values()))} | |")
    return "\n".join(lines)


@click.command()
@click.argument("names", nargs=-1)
@click.option("--write", type=click.Path(exists=True, path_type=Path), help="The page whose table is written anew.")
def main(names: tuple[str, ...], write: Path | None) -> None:
    """Print what onnx.backend.test says of operators, of all that import by default."""
    rows = {operator: row_of(operator) for operator in names or operators()}
    for operator, row in rows.items():
        click.echo(f"{operator}: {row.ways.total()} of {row.cases} pass, error {row.error:.2f}, {dict(row.ways)}")
        for text, faults in (("left out", row.excluded), ("FAILS", row.faults)):
            for name, fault in faults.items():
                click.echo(f"    {text}: {name}: {fault}")
    if write is not None:
        before, _, rest = write.read_text(encoding="utf-8").partition(BEGIN)
        write.write_text(before + BEGIN + table(rows) + END + rest.partition(END)[2], encoding="utf-8")


if __name__ == "__main__":
    main()
