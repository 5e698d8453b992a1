"""What the files of the package define, import, look up and reach: read from their syntax trees, without importing."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from functools import cache
from pathlib import Path
from typing import NamedTuple

import numpy as np
from scipy.sparse import coo_array
from scipy.sparse.csgraph import connected_components

ROOT = Path(__file__).parents[2]
# Names that begin with "_", and yet are anybody's: of tuples, of IPython, of os.
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_repr_html_", "_exit"}
PATCHES = {"setattr", "delattr", "getattr", "object", "patch"}  # take the name of an attribute


class Source(NamedTuple):
    """What a file has, each with its line where that is needed."""

    classes: list[str]  # nested and private ones, too
    docstrings: list[tuple[int, str]]
    imports: list[tuple[str, str]]  # modules, and the names in them; in functions and for annotations, too
    relative_imports: list[int]
    lookups: list[tuple[str, ...]]  # the literal arguments of lookups of components
    decorated: list[tuple[str, list[str]]]  # functions with their decorators
    private: set[str]  # private names that it defines
    reached: list[tuple[int, str]]  # names of attributes that it reads, imports, or gives to a function that patches


@cache
def sources() -> dict[str, Source]:
    """Return each file of the package by its path; made once, since it takes seconds, without the 90 MB of trees."""
    paths = sorted((ROOT / "dsinga").rglob("*.py"))
    return {path.relative_to(ROOT).as_posix(): source_of(path.read_text(encoding="utf-8")) for path in paths}


def source_of(text: str) -> Source:
    """Return what a file with this text has."""
    source = Source([], [], [], [], [], [], set(), [])
    for node in ast.walk(ast.parse(text)):
        if isinstance(node, ast.Module | ast.ClassDef | ast.FunctionDef | ast.AsyncFunctionDef):
            if (docstring := ast.get_docstring(node)) is not None:
                source.docstrings.append((node.body[0].lineno, docstring))
        if isinstance(node, ast.ClassDef):
            source.classes.append(node.name)
        elif isinstance(node, ast.FunctionDef) and node.decorator_list:
            source.decorated.append((node.name, list(map(ast.unparse, node.decorator_list))))
        elif isinstance(node, ast.Import):
            source.imports.extend((alias.name, "") for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            source.imports.extend((node.module or "", alias.name) for alias in node.names)
            source.relative_imports.extend([node.lineno] if node.level else [])
        elif isinstance(node, ast.Call) and name_of(node.func) in ("lookup", "find"):
            source.lookups.append(tuple(each.value for each in node.args if isinstance(each, ast.Constant)))
        if is_private(name := defined(node)):
            source.private.add(name)
        source.reached.extend((getattr(node, "lineno", 0), name) for name in names_reached(node))
    return source


def module_name(path: str) -> str:
    """Return the dotted name of a file."""
    return path.removesuffix(".py").removesuffix("/__init__").replace("/", ".")


def import_graph(files: dict[str, Source]) -> dict[str, set[str]]:
    """Return the other files of the package that each file imports, anywhere in it."""
    homes = {module_name(name): name for name in files}  # a name of a package may be one of its files
    return {
        name: {homes.get(f"{module}.{attribute}") or homes.get(module, name) for module, attribute in source.imports}
        - {name}
        for name, source in files.items()
    }


def lookup_graph(files: dict[str, Source], table: Path) -> dict[str, set[str]]:
    """Return the files of the components that each file looks up by a literal kind and name."""
    rows = [line.split(",") for line in table.read_text(encoding="utf-8").splitlines()[1:]]
    paths = {module_name(name): name for name in files}
    homes = {(row[0], row[1]): paths[row[3]] for row in rows}
    return {name: {homes[key] for key in source.lookups if key in homes} for name, source in files.items()}


def closing_lookups(imports: dict[str, set[str]], lookups: dict[str, set[str]]) -> list[str]:
    """Return the lookups, as "FILE -> FILE", of components that import the file which asks, if not directly."""
    both = {name: imports[name] | lookups[name] for name in imports}
    group_of = {name: number for number, group in enumerate(circular(both)) for name in group}
    edges = ((name, target) for name in sorted(lookups) for target in sorted(lookups[name]))
    return [f"{name} -> {target}" for name, target in edges if group_of.get(name, -1) == group_of.get(target, -2)]


def circular(graph: dict[str, set[str]]) -> list[list[str]]:
    """Return the groups of files each of which imports all others of its group, if not directly."""
    names = sorted(graph)
    places = {name: place for place, name in enumerate(names)}
    groups = cycles([[places[target] for target in graph[name]] for name in names])
    return [[names[place] for place in group] for group in groups]


def cycles(links: list[list[int]]) -> list[list[int]]:
    """Return the strongly connected parts of a graph: of several nodes, or of one that is linked to itself."""
    starts = [node for node, targets in enumerate(links) for _ in targets]
    ends = [target for targets in links for target in targets]
    graph = coo_array((np.ones(len(starts), bool), (starts, ends)), shape=(len(links), len(links)))
    parts: dict[int, list[int]] = {}
    for node, part in enumerate(connected_components(graph, connection="strong")[1]):
        parts.setdefault(part, []).append(node)
    return [part for part in parts.values() if len(part) > 1 or part[0] in links[part[0]]]


def is_private(name: str) -> bool:
    """Whether a name is for its own file or class."""
    return name.startswith("_") and not name.startswith("__") and name != "_" and name not in PUBLIC


def defined(node: ast.AST) -> str:
    """Return the name that a statement or assignment defines, "" if none."""
    if isinstance(node, (ast.FunctionDef, ast.AsyncFunctionDef, ast.ClassDef)):
        return node.name
    if isinstance(node, (ast.Attribute, ast.Name)) and isinstance(node.ctx, ast.Store):
        return name_of(node)
    return ""


def names_reached(node: ast.AST) -> Iterator[str]:
    """Yield the names of attributes that a node reads, imports, or gives to a function that patches."""
    if isinstance(node, ast.Attribute) and not is_own(node.value):
        yield node.attr
    elif isinstance(node, ast.ImportFrom) and (node.module or "").startswith("dsinga"):
        yield from (alias.name for alias in node.names)
    elif isinstance(node, ast.Call) and name_of(node.func) in PATCHES and not any(map(is_own, node.args[:1])):
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        yield from (text.rpartition(".")[2] for text in texts if isinstance(text, str))


def is_own(node: ast.expr) -> bool:
    """Whether an expression is the object whose method it is in, or its class."""
    return isinstance(node, ast.Name) and node.id in ("self", "cls")


def name_of(node: ast.expr) -> str:
    """Return the last name of an expression such as ``a.b.c``, "" where it has none."""
    return node.attr if isinstance(node, ast.Attribute) else node.id if isinstance(node, ast.Name) else ""
