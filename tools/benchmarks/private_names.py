"""Finds the places in tests/ that name what a file of the package keeps to itself; for tools.benchmarks.counts."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from pathlib import Path

# Names that begin with "_", and yet are anybody's: of tuples, of IPython, of os.
PUBLIC = {"_replace", "_asdict", "_fields", "_make", "_repr_html_", "_exit"}
PATCHES = {"setattr", "delattr", "getattr", "object", "patch"}  # take the name of an attribute


def private_reaches(tree: Path, modules: dict[str, ast.Module]) -> list[str]:
    """Return the places in tests/ that name what a file of the package keeps to itself."""
    private = {name for module in modules.values() for node in ast.walk(module) if is_private(name := defined(node))}
    reaches = []
    for path in sorted((tree / "tests").rglob("*.py")):
        module = ast.parse(path.read_text(encoding="utf-8"))
        known = private - {defined(node) for node in ast.walk(module)}
        for node in ast.walk(module):
            names = {*names_reached(node)} & known
            reaches += [f"{path.relative_to(tree)}:{getattr(node, 'lineno', 0)} {name}" for name in sorted(names)]
    return reaches


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
