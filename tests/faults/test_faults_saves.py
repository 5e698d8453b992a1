"""What dsinga writes over an older one is the old or the new, whenever the process is killed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]


MEMORY = Path("/dev/shm")  # where nothing waits for a disk

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
def test_killed_before_every_operation_on_files_and_at_random_moments(arguments: list[str], tmp_path: Path) -> None:
    """tools/faults/saves.py compares what is read afterwards, and what the next save leaves in the folder."""
    command = [sys.executable, "-m", "tools.faults.saves", *arguments]
    folder = MEMORY if os.access(MEMORY, os.W_OK) else tmp_path
    ended = subprocess.run(
        command, cwd=ROOT, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, timeout=290,
        check=False,
    )  # fmt: skip
    assert ended.returncode == 0, ended.stdout + ended.stderr
    assert ended.stdout.endswith("\n0 wrong\n")
