"""Runs programs of tests by a Python of their own."""

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

ROOT = Path(__file__).parents[2]


def python(
    *arguments: object,
    environment: Mapping[str, str] | None = None,
    cwd: Path | None = None,
    timeout: float = 100,
    fails: bool = False,
) -> subprocess.CompletedProcess[str]:
    """Return what a Python with these arguments has printed; it ends well, unless ``fails``.

    ``environment`` is added to that of this process.
    """
    ended = subprocess.run(
        [sys.executable, *map(str, arguments)], env={**os.environ, **(environment or {})}, cwd=cwd,
        capture_output=True, text=True, timeout=timeout,
    )  # fmt: skip
    assert (ended.returncode != 0) == fails, ended.stdout[-2000:] + ended.stderr[-2000:]
    return ended
