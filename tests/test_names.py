"""Names, docstrings and imports of the package are unambiguous; read from its source, without importing it."""

import ast
import re
from collections import defaultdict
from functools import cache
from pathlib import Path
from typing import NamedTuple

PACKAGE = Path(__file__).parents[1] / "dsinga"

LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME = {"GRU", "LSTM", "RNN"}
PUBLIC_NAMES_OF_TWO_PACKAGES = {"Model": ["nn/model/model.py", "rl/model.py"]}  # as in Keras, and as in PARL


class Names(NamedTuple):
    """What a file defines and imports."""

    classes: list[str]  # nested and private ones, too
    docstrings: list[tuple[int, str]]  # each with its line
    imports: list[str]  # such as a.b for a module b or a name in a module a; in functions and for annotations, too
    relative_imports: list[int]  # their lines


@cache
def files() -> dict[str, Names]:
    """Return the names of each file of the package, by its path in the package."""
    return {path.relative_to(PACKAGE).as_posix(): names_of(path) for path in sorted(PACKAGE.rglob("*.py"))}


def names_of(path: Path) -> Names:
    """Return the names of a file; its syntax tree is not kept, since those of all files take 90 MB."""
    result = Names([], [], [], [])
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.ClassDef):
            result.classes.append(node.name)
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (text := ast.get_docstring(node)) is not None:
                result.docstrings.append((node.body[0].lineno, text))
        elif isinstance(node, ast.Import):
            result.imports.extend(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            result.imports.extend(f"{node.module}.{alias.name}" for alias in node.names)
            if node.level:
                result.relative_imports.append(node.lineno)
    return result


def classes() -> dict[str, list[str]]:
    """Return the files that define a class of a name, by the name."""
    places = defaultdict(list)
    for file, defined in files().items():
        for name in defined.classes:
            if name != "Conf":  # the settings of a component, in its class
                places[name].append(file)
    return places


def test_no_two_classes_share_a_name():
    clashes = {name: files for name, files in classes().items() if len(files) > 1}
    for name in LAYERS_WITH_A_KERNEL_OF_THE_SAME_NAME:
        assert sorted(file.split("/")[0] for file in clashes.pop(name)) == ["layers", "ops"]
    for name, files in PUBLIC_NAMES_OF_TWO_PACKAGES.items():
        assert clashes.pop(name) == files
    assert not clashes


def test_every_docstring_says_what_its_object_does():
    """A docstring that begins with a reference to another one says too little."""
    texts = [(f"{file}:{line}", text) for file, names in files().items() for line, text in names.docstrings]
    assert not [place for place, text in texts if re.match(r"See :\w+:", text)]


def test_no_import_is_relative():
    assert not [f"{file}:{line}" for file, names in files().items() for line in names.relative_imports]


def file_of(name: str) -> str | None:
    """Return the file that defines what is imported as ``name``, such as a.b for a module b or a name in a module a."""
    path = name.removeprefix("dsinga").replace(".", "/").lstrip("/")
    if name.split(".")[0] != "dsinga":
        return None
    for candidate in (f"{path}.py", f"{path}/__init__.py".lstrip("/")):
        if candidate in files():
            return candidate
    return file_of(name.rpartition(".")[0])


def test_no_files_import_each_other():
    graph = {file: {file_of(name) for name in names.imports} - {None, file} for file, names in files().items()}

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
