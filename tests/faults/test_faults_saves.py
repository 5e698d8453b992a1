"""What dsinga writes over an older one is the old or the new, whenever the process is killed."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]

SAVED = ["model", "weights", "callback", "callback's weights", "weights for Hugging Face", "estimator", "checkpoint"]
STORED = ["store", "import", "predictions"]
OTHERS = ["numbers as text", "rates", "text", "example"]
EXPORTED = ["ONNX files", "Triton's model"]


@pytest.mark.ci
@pytest.mark.process
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    "arguments", [["--count=32"], *(["--every", "--only", *names] for names in (SAVED, STORED, OTHERS, EXPORTED))]
)
def test_killed_before_every_operation_on_files_and_at_random_moments(
    arguments: list[str], in_memory: dict[str, str]
) -> None:
    """tools/faults/saves.py compares what is read afterwards, and what the next save leaves in the folder."""
    command = [sys.executable, "-m", "tools.faults.saves", *arguments]
    ended = subprocess.run(command, cwd=ROOT, env=in_memory, capture_output=True, text=True, timeout=290)
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\n0 wrong\n")
