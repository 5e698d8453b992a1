"""A folder in memory for the programs that kill processes, which write thousands of files."""

import os
from pathlib import Path

import pytest

MEMORY = Path("/dev/shm")


@pytest.fixture
def in_memory(tmp_path: Path) -> dict[str, str]:
    """An environment whose temporary files are where nothing waits for a disk, if the system has such a folder."""
    return os.environ | {"TMPDIR": str(MEMORY if os.access(MEMORY, os.W_OK) else tmp_path)}
