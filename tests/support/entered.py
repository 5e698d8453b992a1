"""Finds which functions of ``dsinga/`` are called, in this process and in those that it starts.

:func:`install` has each function that is imported from then on set a byte of a file as it begins: the one of its line.
It costs next to nothing, while a tracer doubles what tests take. Processes find the file in the environment.
"""

from __future__ import annotations

import ast
import functools
import importlib.abc
import importlib.machinery
import importlib.util
import itertools
import marshal
import mmap
import os
import sys
from pathlib import Path
from types import CodeType, ModuleType
from typing import Any

ROOT = Path(__file__).parents[2]
VARIABLE = "DSINGA_ENTERED"
NAME = "__entered__"  # in each module: the file's bytes, from the module's first line on


@functools.cache
def modules() -> dict[str, int]:
    """Return where in the file the lines of each module of ``dsinga/`` begin, by its path below the checkout.

    Without ``dsinga/testing/``, most of which pytest loads, to rewrite its assertions.
    """
    paths = [path for path in sorted((ROOT / "dsinga").rglob("*.py")) if "testing" not in path.parts]
    sizes = [path.read_bytes().count(b"\n") + 2 for path in paths]
    starts = itertools.accumulate(sizes, initial=0)
    return {str(path.relative_to(ROOT)): start for path, start in zip(paths, starts, strict=False)}


@functools.cache
def marks() -> mmap.mmap:
    """Return the bytes of the file, shared with other processes."""
    with open(os.environ[VARIABLE], "r+b") as file:
        return mmap.mmap(file.fileno(), 0)


def install(folder: Path) -> None:
    """Note functions of modules that are imported from now on, also in processes that are started with PYTHONPATH.

    Args:
        folder: where the file is made, and the module that Python imports as a process begins.
    """
    end = list(modules().values())[-1] + 10_000
    (folder / "entered").write_bytes(bytes(end))
    (folder / "sitecustomize.py").write_text(f"import sys; sys.path.append({str(ROOT)!r})\nimport {__name__}\n")
    os.environ[VARIABLE] = str(folder / "entered")
    os.environ["PYTHONPATH"] = os.pathsep.join([str(folder), os.environ.get("PYTHONPATH", "")])
    sys.meta_path.insert(0, Finder())


def taken() -> list[tuple[str, int]]:
    """Return module and line of the functions that began since the last call."""
    found = marks()[:]
    marks()[:] = bytes(len(found))
    starts = [*modules().items()]
    lines = []
    for (module, start), (_, end) in zip(starts, [*starts[1:], ("", len(found))], strict=True):
        lines += [(module, line) for line in range(end - start) if found[start + line]]
    return lines


@functools.cache
def functions(module: str) -> dict[int, str]:
    """Return the functions of a module by line, with the names of classes and functions that they are in."""
    tree = ast.parse((ROOT / module).read_text(encoding="utf-8"))
    found: dict[int, str] = {}

    def visit(node: ast.AST, outer: str) -> None:
        for child in ast.iter_child_nodes(node):
            name = outer
            if isinstance(child, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
                name = f"{outer}.{child.name}".lstrip(".")
                if not isinstance(child, ast.ClassDef):
                    found[child.lineno] = name
            visit(child, name)

    visit(tree, "")
    return found


class Finder(importlib.abc.MetaPathFinder):
    """Finds modules of ``dsinga`` with a loader that has their functions noted."""

    def find_spec(self, name: str, path: Any, target: ModuleType | None = None) -> Any:
        """Return the module's spec; None if it is of another package, or not of this checkout."""
        if name.partition(".")[0] != "dsinga":
            return None
        spec = importlib.machinery.PathFinder.find_spec(name, path, target)
        if spec and spec.origin and spec.origin.startswith(f"{ROOT}/dsinga/"):
            spec.loader = Loader(name, spec.origin)
            return spec
        return None


class Loader(importlib.machinery.SourceFileLoader):
    """Loads a module with a statement at the beginning of each function."""

    def get_code(self, name: str) -> CodeType:
        """Return the module's code, from a file of its own in ``__pycache__`` if it was compiled before."""
        source = Path(self.path)
        cached = Path(importlib.util.cache_from_source(source, optimization="entered"))
        if cached.exists() and cached.stat().st_mtime > source.stat().st_mtime:
            return marshal.loads(cached.read_bytes())
        code = compile(noting(source.read_bytes()), self.path, "exec", dont_inherit=True)
        cached.parent.mkdir(exist_ok=True)
        written = cached.with_suffix(f".{os.getpid()}")
        written.write_bytes(marshal.dumps(code))
        written.replace(cached)
        return code

    def exec_module(self, module: ModuleType) -> None:
        """Execute the module with the bytes that its functions set."""
        start = modules().get(str(Path(self.path).relative_to(ROOT)))
        if start is not None:
            setattr(module, NAME, memoryview(marks())[start:])
        else:
            setattr(module, NAME, {})
        super().exec_module(module)


def noting(source: bytes) -> ast.Module:
    """Return a module whose functions begin by setting the byte of their line."""
    tree = ast.parse(source)
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            statement = ast.parse(f"{NAME}[{node.lineno}] = 1").body[0]
            for part in ast.walk(statement):
                ast.copy_location(part, node)
            node.body.insert(0 if ast.get_docstring(node) is None else 1, statement)
    return tree


if VARIABLE in os.environ:
    sys.meta_path.insert(0, Finder())
