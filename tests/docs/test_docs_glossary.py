"""docs/reference/glossary.md is short enough to be read, and defines each word once."""

import re
from pathlib import Path

PAGE = (Path(__file__).parents[2] / "docs" / "reference" / "glossary.md").read_text(encoding="utf-8")
ENTRY = re.compile(r"^- \*\*(.+?)\*\*.*$", re.MULTILINE)


def test_the_glossary_has_at_most_58_terms_of_one_line_each():
    entries = list(ENTRY.finditer(PAGE))
    terms = [entry[1] for entry in entries]
    assert 30 < len(terms) <= 58
    assert len(set(terms)) == len(terms)
    assert all(len(entry[0]) <= 160 for entry in entries), max(entries, key=lambda entry: len(entry[0]))[0]
    assert not re.search(r"^  \S", PAGE, re.MULTILINE), "an entry goes on in a second line"
