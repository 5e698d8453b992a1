"""A plugin of pytest for CI: leaves out the tests that passed in another environment.

``$DSINGA_PASSED`` is the file that ``--junitxml`` wrote there. Without it all tests run.
"""

import os
import xml.etree.ElementTree as tree
from pathlib import Path

import pytest

NOT_PASSED = {"skipped", "failure", "error"}


def passed(report: Path) -> set[tuple[str, str]]:
    """Return the class and the name of each test that passed, as the report writes them."""
    found, others = set(), set()
    for case in tree.parse(report).iter("testcase"):
        key = case.get("classname", ""), case.get("name", "")
        (others if any(child.tag in NOT_PASSED for child in case) else found).add(key)
    return found - others


def key_of(name: str) -> tuple[str, str]:
    """Return the class and the name that a report has for a test, such as "tests/test_a.py::Names::test_one[2]"."""
    path, bracket, params = name.partition("[")
    file, *inner = path.split("::")
    words = [file.removesuffix(".py").replace("/", "."), *inner]
    return ".".join(words[:-1]), words[-1] + bracket + params


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leave out what passed."""
    report = Path(os.environ.get("DSINGA_PASSED", ""))
    if not report.is_file():
        return
    known = passed(report)
    left_out = [item for item in items if key_of(item.nodeid) in known]
    items[:] = [item for item in items if key_of(item.nodeid) not in known]
    config.hook.pytest_deselected(items=left_out)
