"""Names of a package that are imported when they are first used, so that a process imports only what it needs."""

from __future__ import annotations

import ast
import functools
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any, NoReturn

from dsinga.base.components import import_component


def lazy_names(
    package: str, otherwise: Callable[[str], Any] | None = None
) -> tuple[Callable[[str], Any], Callable[[], list[str]]]:
    """Return the ``__getattr__`` and ``__dir__`` of a package that import its names when they are first used.

    The names, and the module of each, are read where type checkers read them: in the block ``if TYPE_CHECKING:`` of
    ``__init__.py``, or else in ``__init__.pyi``, where the core has the names of add-ons, since it imports none.
    ``otherwise`` is called for any other name.
    """
    module = sys.modules[package]

    def no_name(name: str) -> NoReturn:
        raise AttributeError(f"module {package!r} has no attribute {name!r}")

    @functools.cache
    def names() -> dict[str, tuple[str, str]]:
        return _names_for_type_checkers(Path(str(module.__file__)))

    def find(name: str) -> Any:
        if name == "__all__":
            return sorted(names())
        if name.startswith("_") or name not in names():
            return (otherwise or no_name)(name)
        path, attribute = names()[name]
        value: Any = import_component(f"{package}.{name}", path)
        value = getattr(value, attribute) if attribute else value
        setattr(module, name, value)
        return value

    return find, lambda: sorted({*vars(module), *names()})


def _names_for_type_checkers(file: Path) -> dict[str, tuple[str, str]]:
    """Return the module, and the name there, of each name that a package imports for type checkers."""
    blocks = [block for block in ast.parse(file.read_bytes()).body if isinstance(block, ast.If)]
    lines = [line for block in blocks if ast.unparse(block.test) == "TYPE_CHECKING" for line in block.body]
    lines = lines or ast.parse(file.with_suffix(".pyi").read_bytes()).body
    names = {}
    for line in lines:
        for alias in line.names if isinstance(line, (ast.Import, ast.ImportFrom)) else ():
            imported = (line.module or "", alias.name) if isinstance(line, ast.ImportFrom) else (alias.name, "")
            names[alias.asname or alias.name] = imported
    return names
