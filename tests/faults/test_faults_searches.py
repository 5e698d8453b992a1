"""A search with halving that is killed, whenever it is, and resumed, is the one that nothing has disturbed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
def test_killed_and_resumed_searches_have_the_same_rows_and_bits(in_memory: dict[str, str]) -> None:
    """tools/faults/searches.py compares rows, the metrics of all runs and the params of the best one."""
    command = [sys.executable, "-m", "tools.faults.searches", "--count=4"]
    folder = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=folder, env=in_memory, capture_output=True, text=True, timeout=290)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.count(": right bits\n") == 4
