"""Names, docstrings and imports of the package are unambiguous; read from its source, without importing it."""

from __future__ import annotations

import ast
import re
from collections import defaultdict
from collections.abc import Iterator
from functools import cache
from pathlib import Path

import pytest

PACKAGE = Path(__file__).parents[1] / "dsinga"

LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME = {"GRU", "LSTM", "RNN"}
PUBLIC_NAMES_OF_TWO_PACKAGES = {"Model": ["nn/model.py", "rl/model.py"]}  # as in Keras, and as in PARL


@cache
def trees() -> dict[str, ast.Module]:
    """Return the syntax tree of each file of the package, by its path in the package."""
    return {
        path.relative_to(PACKAGE).as_posix(): ast.parse(path.read_text(encoding="utf-8"))
        for path in sorted(PACKAGE.rglob("*.py"))
    }


@pytest.fixture(autouse=True, scope="module")
def forgotten_trees() -> Iterator[None]:
    """Free the trees, 90 MB, after the tests of this file."""
    yield
    trees.cache_clear()


def classes() -> dict[str, list[str]]:
    """Return the files that define a class of a name, by the name; nested and private classes included."""
    files = defaultdict(list)
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.ClassDef) and node.name != "Conf":  # the settings of a component, in its class
                files[node.name].append(file)
    return files


def test_no_two_classes_share_a_name():
    clashes = {name: files for name, files in classes().items() if len(files) > 1}
    for name in LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME:
        assert sorted(file.split("/")[0] for file in clashes.pop(name)) == ["layers", "ops"]
    for name, files in PUBLIC_NAMES_OF_TWO_PACKAGES.items():
        assert clashes.pop(name) == files
    assert not clashes


def docstrings() -> Iterator[tuple[str, str]]:
    """Yield the file and line, and the text, of every docstring."""
    for file, tree in trees().items():
        for node in ast.walk(tree):
            if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
                text = ast.get_docstring(node)
                if text is not None:
                    yield f"{file}:{node.body[0].lineno}", text


def test_every_docstring_says_what_its_object_does():
    """A docstring that begins with a reference to another one says too little."""
    assert not [place for place, text in docstrings() if re.match(r"See :\w+:", text)]


def imports(file: str, tree: ast.Module) -> set[str]:
    """Return the files of the package that ``file`` imports, in functions and for annotations, too."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{file}:{node.lineno} has a relative import"
            names.update(f"{node.module}.{alias.name}" for alias in node.names)
    return {target for name in names if (target := file_of(name)) not in (None, file)}


def file_of(name: str) -> str | None:
    """Return the file that defines what is imported as ``name``, such as a.b for a module b or a name in a module a."""
    path = name.removeprefix("dsinga").replace(".", "/").lstrip("/")
    if name.split(".")[0] != "dsinga":
        return None
    for candidate in (f"{path}.py", f"{path}/__init__.py".lstrip("/")):
        if candidate in trees():
            return candidate
    return file_of(name.rpartition(".")[0])


def test_no_files_import_each_other():
    graph = {file: imports(file, tree) for file, tree in trees().items()}

    def reachable(start: str) -> set[str]:
        seen, pending = set(), [start]
        while pending:
            new = graph[pending.pop()] - seen
            seen |= new
            pending += new
        return seen

    reach = {file: reachable(file) for file in graph}
    in_cycles = [file for file in graph if file in reach[file]]
    cycles = {frozenset(other for other in reach[file] if file in reach[other]) for file in in_cycles}
    assert not cycles
