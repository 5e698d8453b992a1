"""The order of tests for several processes: long ones first, and those that import PyTorch in a single process.

A long test that begins last would leave the other processes idle, and PyTorch takes 180 MB of each process.
"""

from __future__ import annotations

import re
from collections.abc import Iterable
from itertools import cycle, groupby, islice
from operator import attrgetter
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
LONG = {FOLDER / "docs" / "test_docs.py", *(FOLDER / "notebooks").glob("test_*.py")}
TORCH = re.compile(r"\b(torch|tensorboardX)\b")


def ordered(items: Iterable[pytest.Item], processes: int) -> list[pytest.Item]:
    """Return the tests as pytest-xdist divides them, in equal parts; each part begins with its share of long ones."""
    parts: list[list[pytest.Item]] = [[] for _ in range(processes)]
    next_part = cycle(parts)
    rest: list[pytest.Item] = []
    for path, tests in groupby(items, attrgetter("path")):
        if TORCH.search(path.read_text(encoding="utf-8")):
            parts[0] += tests
        elif path in LONG:
            for _, unit in groupby(tests, lambda item: item.name if hasattr(item, "callspec") else ""):
                next(next_part).extend(unit)
        else:
            rest += tests
    size = (len(rest) + sum(map(len, parts))) // processes
    others = iter(rest)
    return [item for part in parts for item in [*part, *islice(others, max(size - len(part), 0))]] + [*others]
