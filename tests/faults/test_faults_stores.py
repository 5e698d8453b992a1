"""Some damaged stores, given to dsinga by the runner of this folder."""

import os
import subprocess
import sys
from pathlib import Path


def test_damaged_stores():
    command = [sys.executable, "-m", "tests.faults", "stores", "--count", "6", "--processes", "2"]
    root = Path(__file__).parents[2]
    ended = subprocess.run(command, cwd=root, env=os.environ, capture_output=True, text=True, timeout=100, check=False)
    assert ended.returncode == 0, ended.stdout + ended.stderr
