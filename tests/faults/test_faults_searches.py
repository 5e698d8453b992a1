"""A search with halving that is killed, whenever it is, and resumed, is the one that nothing has disturbed."""

import pytest

from tests.support.programs import ROOT, python


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("options", "ends"), [("--count=4", 4 * ["right bits"]), ("--count=0 --pairs=3 --early=2", 5 * ["nothing lost"])]
)
def test_killed_searches_lose_no_setting_and_no_bit(in_memory: dict[str, str], options: str, ends: list[str]) -> None:
    """tools/faults/searches.py compares rows, the metrics of all runs and the params of the best one."""
    words = "-m", "tools.faults.searches", *options.split()
    printed = python(*words, environment=in_memory, cwd=ROOT, timeout=290).stdout
    assert printed.count(f": {ends[0]}\n") == len(ends)
