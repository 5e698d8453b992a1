"""A search with halving that is killed, whenever it is, and resumed, is the one that nothing has disturbed."""

import pytest

from tests.support.programs import ROOT, python


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
def test_killed_and_resumed_searches_have_the_same_rows_and_bits(in_memory: dict[str, str]) -> None:
    """tools/faults/searches.py compares rows, the metrics of all runs and the params of the best one."""
    assert searches(in_memory, "--count=4").count(": right bits\n") == 4


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
def test_shared_and_early_killed_searches_lose_no_setting(in_memory: dict[str, str]) -> None:
    assert searches(in_memory, "--count=0", "--pairs=3", "--early=2").count(": nothing lost\n") == 5


def searches(environment: dict[str, str], *options: str) -> str:
    """Return what the tool prints."""
    return python("-m", "tools.faults.searches", *options, environment=environment, cwd=ROOT, timeout=290).stdout
