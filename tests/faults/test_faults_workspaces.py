"""One workspace in which runs are trained, killed, damaged, deleted and resumed in any order."""

import os
import subprocess
import sys
from pathlib import Path

import pytest


@pytest.mark.parametrize(
    ("examples", "steps"), [(0, 0), pytest.param(60, 15, marks=[pytest.mark.slow, pytest.mark.timeout(1800)])]
)
def test_whatever_happens_to_a_workspace(examples, steps):
    options = ["--examples", str(examples), "--steps", str(steps)]
    command = [sys.executable, "-m", "tests.faults.workspaces", *options]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, env=os.environ, capture_output=True, text=True, timeout=1700, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
