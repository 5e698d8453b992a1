"""docs/settings.md lists every setting of dsinga, as its schema describes it."""

import json

from dsinga.base.settings import defaults, schema, variable
from tests.support.executed_pages import ROOT

PAGE = ROOT / "docs" / "settings.md"


def row(name: str) -> str:
    """The row of the page's table for a setting."""
    value = defaults()[name]
    shown = value if isinstance(value, str) else json.dumps(value)
    description = " ".join(schema()[name]["description"].split())
    return f"| `dsinga.{name}` | `{shown}` | `{variable(name)}` | {description} |"


def test_the_table_has_a_row_for_each_setting():
    rows = [line for line in PAGE.read_text(encoding="utf-8").splitlines() if line.startswith("| `dsinga.")]
    expected = [row(name) for name in schema()]
    assert rows == expected, "the table of docs/settings.md should be\n" + "\n".join(expected)
