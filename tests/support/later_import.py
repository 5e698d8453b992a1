"""A module that the first test which uses it imports, not every process that collects the test."""

from __future__ import annotations

import importlib
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


torch = LaterImport("torch")
functional = LaterImport("torch.nn.functional")
