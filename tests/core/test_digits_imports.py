"""What training the digits imports: the core alone, and how much of it."""

from __future__ import annotations

import pytest

from tests.support.imported_modules import COMMAND, LISTED, NN, imported

CORE = set(
    "__main__ api base checkpoint commands data engine extensions job layers loop monitor net nn ops passes reading "
    "training".split()
)


@pytest.mark.parametrize(
    ("program", "most_files", "most_lines"), [(COMMAND, 214, 32_400), (NN, 240, 37_600)], ids=["command", "nn"]
)
def test_training_the_digits_imports_the_core_alone_and_not_all_of_it(program, most_files, most_lines, tmp_path):
    modules = imported(program, tmp_path)
    new = ", ".join(sorted(modules.keys() - set(LISTED.read_text("utf-8").split()))) or "none"
    files, lines = len(modules), sum(modules.values())
    assert (files <= most_files, lines <= most_lines) == (True, True), (
        f"{files} files, {lines} lines; not in {LISTED.name}: {new}"
    )
    outside = [name for name in modules if name.count(".") and name.split(".")[1] not in CORE]
    assert not outside, "the core imports neither the cluster nor an add-on"
