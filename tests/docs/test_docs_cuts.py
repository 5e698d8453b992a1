"""docs/reference/cuts.md has every type of layer, with its class's cuts."""

from tests.support import cut_table


def test_the_table_of_cuts_agrees_with_the_classes():
    assert cut_table.PATH.read_text(encoding="utf-8") == cut_table.page(), (
        "write it again: python -m tests.support.cut_table"
    )
