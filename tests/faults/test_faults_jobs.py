"""Damaged jobs give the right bits or one message: a few of those of ``python -m tests.faults jobs``."""

import subprocess
import sys


def test_damaged_jobs_give_the_right_bits_or_one_message():
    command = [sys.executable, "-m", "tests.faults", "jobs", "--count", "8", "--seed", "7", "--processes", "2"]
    ended = subprocess.run(command, capture_output=True, text=True, timeout=100)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert "8 cases in" in ended.stdout
