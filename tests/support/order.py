"""The order of tests: those that import PyTorch, then those that wait long for other processes, then all others.

pytest-xdist divides the tests in equal parts, and a process that has done its part takes the last ones of another's. So
the first process waits while the others compute, no long test begins last, and PyTorch takes 180 MB of one process.
"""

import functools
import re
from pathlib import Path

import pytest

FOLDER = Path(__file__).parents[1]
WAITING = {FOLDER / "docs" / "test_docs.py", *(FOLDER / "notebooks").glob("test_*.py")}
PAGE_WITH_TORCH = "test_page[tracking]"


def rank(item: pytest.Item) -> int:
    """Return the number by which tests are sorted."""
    if uses_torch(item.path) or item.name == PAGE_WITH_TORCH:
        return 0
    return 1 if item.path in WAITING else 2


@functools.cache
def uses_torch(path: Path) -> bool:
    """Whether a file of tests names PyTorch, or a logger whose package imports it or much else."""
    return re.search(r"\b(torch|tensorboardX|TensorBoard|MLflow)\b", path.read_text(encoding="utf-8")) is not None
