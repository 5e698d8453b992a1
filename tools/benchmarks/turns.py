"""Runs of a benchmark's frameworks in turn, each in a process of its own on one core with one thread."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import Any

THREADS = dict.fromkeys(("OMP_NUM_THREADS", "MKL_NUM_THREADS", "OPENBLAS_NUM_THREADS"), "1")


def take_turn(module: str, *arguments: str) -> dict[str, Any]:
    """Run ``python -m module`` on one core, and return the JSON of the last line that it prints.

    Raises RuntimeError with what it says where it fails.
    """
    core = str(min(os.sched_getaffinity(0)))
    command = ["taskset", "-c", core, sys.executable, "-m", module, *arguments]
    done = subprocess.run(
        command, capture_output=True, text=True, env={**os.environ, **THREADS}, check=False, timeout=7200
    )
    if done.returncode:
        raise RuntimeError(done.stderr)
    return json.loads(done.stdout.splitlines()[-1])
