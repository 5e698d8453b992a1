"""A module that the first test which uses it imports, not every process that collects the test."""

import ast
import importlib
from pathlib import Path
from typing import Any

import pytest


class LaterImport:
    """Stands for a module in a test file; the test that uses it is skipped where the module is not installed."""

    def __init__(self, name: str):
        self._name = name

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_"):  # pytest looks whether it is a fixture
            raise AttributeError(name)
        pytest.importorskip(self._name.partition(".")[0])
        return getattr(importlib.import_module(self._name), name)


def keys_of(module: str, table: str) -> list[str]:
    """Return the keys of a table that a module of this folder, which imports much, writes out."""
    statements = ast.parse(Path(__file__).with_name(f"{module}.py").read_text()).body
    tables = {ast.unparse(each.target): each.value for each in statements if isinstance(each, ast.AnnAssign)}
    return [ast.literal_eval(key) for key in tables[table].keys]  # type: ignore[union-attr,arg-type]


torch = LaterImport("torch")
functional = LaterImport("torch.nn.functional")
