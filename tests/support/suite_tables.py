"""Writes the tables of docs/dev/testing.md: what tests take, and what covers the modules that have no test file.

``python -m tests.support.suite_tables FILE...`` takes the files that :mod:`tests.support.measured` has written.
"""

from __future__ import annotations

import ast
import collections
import json
import re
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path

from tests.support import entered
from tests.support.entered import ROOT

PAGE = ROOT / "docs" / "dev" / "testing.md"
SLOWEST = 30
MOST = 3  # files of tests that are named for a module
Seconds = dict[str, float]  # by test, setting up and what follows included
Calls = dict[str, set[str]]  # what each file of tests calls, as "module:function"


def read(files: Iterable[str]) -> tuple[Seconds, Calls]:
    """Return what measured runs have written."""
    seconds: Seconds = {}
    calls: Calls = collections.defaultdict(set)
    for file in files:
        for line in Path(file).read_text(encoding="utf-8").splitlines():
            row = json.loads(line)
            calls[row["file"]] |= set(row["entered"])
            seconds |= {test: sum(laps) for test, laps in row["seconds"].items() if test != "collection"}
    return seconds, calls


def folder_table(seconds: Seconds) -> str:
    """Return the table of seconds by folder of tests."""
    folders: dict[str, Seconds] = collections.defaultdict(dict)
    for test, took in seconds.items():
        folders[test.partition("::")[0].rpartition("/")[0]][test] = took
    rows = ["| folder | tests | seconds |", "| --- | ---: | ---: |"]
    for folder, tests in sorted(folders.items(), key=lambda item: -sum(item[1].values())):
        rows.append(f"| `{folder}/` | {len(tests)} | {sum(tests.values()):.1f} |")
    return "\n".join([*rows, f"| all | {len(seconds)} | {sum(seconds.values()):.1f} |"])


def slowest_table(seconds: Seconds) -> str:
    """Return the table of the slowest tests."""
    slowest = sorted(seconds.items(), key=lambda item: -item[1])[:SLOWEST]
    rows = [f"| `{test.removeprefix('tests/')}` | {took:.1f} |" for test, took in slowest]
    return "\n".join(["| test | seconds |", "| --- | ---: |", *rows])


def is_stub(function: ast.FunctionDef | ast.AsyncFunctionDef) -> bool:
    """Whether a function does nothing: an interface, an overload."""
    body = function.body[1:] if ast.get_docstring(function) is not None else function.body
    return all(
        isinstance(statement, ast.Pass | ast.Raise)
        or (isinstance(statement, ast.Expr) and isinstance(statement.value, ast.Constant))
        for statement in body
    )


def functions_of(module: str) -> set[str]:
    """Return the names of a module's functions that do something."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    stubs = {
        node.lineno
        for node in ast.walk(tree)
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and is_stub(node)
    }
    return {name for line, name in entered.functions(module).items() if line not in stubs}


def has_test_file(module: str, names: set[str]) -> bool:
    """Whether a file of tests has the name of a module, ``test_NAME`` or ``test_ROOM_NAME``."""
    name = Path(module).stem if Path(module).stem != "__init__" else Path(module).parent.name
    return any(re.fullmatch(f"test_(.*_)?{re.escape(name.strip('_'))}", test) for test in names)


def cover(functions: set[str], calls: Mapping[str, set[str]]) -> list[str]:
    """Return a few files of tests that call as many of these functions as possible, those that call most first."""
    left, chosen = set(functions), []
    while len(chosen) < MOST:
        count, best = max(((len(called & left), file) for file, called in calls.items()), default=(0, ""))
        if not count:
            break
        chosen.append(best)
        left -= calls[best]
    return chosen


def cover_table(calls: Calls) -> str:
    """Return the table of modules without a test file of their name: how many functions are called, and by what."""
    names = {path.stem for path in (ROOT / "tests").rglob("test_*.py")}
    by_module: dict[str, dict[str, set[str]]] = collections.defaultdict(lambda: collections.defaultdict(set))
    for file, called in calls.items():
        for name in called:
            module, _, function = name.partition(":")
            by_module[module][file].add(function)
    rows = ["| module | functions called | by |", "| --- | ---: | --- |"]
    for module in entered.modules():
        functions = functions_of(module)
        if not functions or has_test_file(module, names):
            continue
        found = by_module[module]
        count = len(functions & set().union(*found.values()))
        files = ", ".join(f"`{file.removeprefix('tests/')}`" for file in cover(functions, found))
        rows.append(f"| `{module.removeprefix('dsinga/')}` | {count} of {len(functions)} | {files} |")
    return "\n".join(rows)


def uncalled(calls: Calls) -> str:
    """Return the list of the functions that no test has called, by module."""
    called = set().union(*calls.values())
    lines = []
    for module in entered.modules():
        missing = sorted(name for name in functions_of(module) if f"{module}:{name}" not in called)
        if missing:
            lines.append(f"- `{module.removeprefix('dsinga/')}`: {', '.join(f'`{name}`' for name in missing)}")
    return "\n".join(lines)


def written(page: str, tables: Mapping[str, str]) -> str:
    """Return the text of a page with the tables between its comments, ``<!-- NAME -->`` to ``<!-- end -->``."""
    for name, table in tables.items():
        before, begin, rest = page.partition(f"<!-- {name} -->\n\n")
        assert begin, name
        page = before + begin + table + rest[rest.index("\n\n<!-- end -->") :]
    return page


def main() -> None:
    """Write the tables of the page."""
    seconds, calls = read(sys.argv[1:])
    tables = {
        "folders": folder_table(seconds), "slowest": slowest_table(seconds), "covered by": cover_table(calls),
        "called by none": uncalled(calls),
    }  # fmt: skip
    PAGE.write_text(written(PAGE.read_text(encoding="utf-8"), tables), encoding="utf-8")


if __name__ == "__main__":
    main()
