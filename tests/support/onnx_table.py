"""What onnx.backend.test says of the operators that import: ``python -m tests.support.onnx_table [OPERATOR ...]``.

Prints for each operator its float32 cases, how many pass, the greatest error, and why the others do not.
``--write`` puts the table between the marks of a page, in which errors are given as powers of eight.
"""

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
    """What the cases of an operator gave."""

    cases: int  # how many there are
    ways: Counter[str] = field(default_factory=Counter)  # how many passed in each way
    error: float = 0.0  # the greatest of those that passed, in units of the last place
    excluded: Counter[str] = field(default_factory=Counter)  # how many are left out for each reason
    faults: dict[str, str] = field(default_factory=dict)  # why others do not pass, by the name of the case


def row_of(operator: str) -> Row:
    """Return what the cases of an operator give."""
    is_run = operator.lower() in modules() and operator not in without_layers()
    cases = cases_of(operator) if is_run else ()
    row = Row(len(cases))
    for case in cases:
        result = outcome(case)
        if not result.fault:
            row.ways[result.way] += 1
            row.error = max(row.error, result.error)
        elif reason := excluded(case, result.is_refused):
            row.excluded[reason] += 1
        else:
            row.faults[case.name] = result.fault
    return row


def operators() -> list[str]:
    """Return the operators that import and have cases."""
    return sorted(OPERATORS)


def bound(error: float) -> str:
    """Return the power of eight that an error does not exceed, 0 for none."""
    power = 1
    while power < error:
        power *= 8
    return f"≤ {power}" if error else "0"


def cells(operator: str, row: Row) -> list[str]:
    """Return the cells of the row of an operator."""
    reasons = "; ".join(f"{count}: {reason}" for reason, count in row.excluded.items())
    return [operator, str(row.cases), str(row.ways.total()), bound(row.error), reasons]


def table(rows: dict[str, Row]) -> str:
    """Return the table as Markdown."""
    lines = [cells(operator, row) for operator, row in rows.items() if row.cases]
    counts = [str(sum(int(line[column]) for line in lines)) for column in (1, 2)]
    total = [f"all {len(lines)}", *counts, bound(max(row.error for row in rows.values())), ""]
    head = ["| operator | cases | pass | error | left out |", "|---" * 5 + "|"]
    return "\n".join([*head, *(f"| {' | '.join(line)} |" for line in [*lines, total])])


def rows_in(page: str) -> dict[str, list[str]]:
    """Return the cells of the rows of the table in a page, by operator."""
    lines = page.partition(BEGIN)[2].partition(END)[0].splitlines()[2:]
    found = [[cell.strip() for cell in line.strip("|").split("|")] for line in lines]
    return {line[0]: line for line in found}


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
