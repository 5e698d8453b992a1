"""A process that reads or writes chunks leaves no semaphore behind, however it ends."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

SCRIPT = """
import multiprocessing
import os
import signal


def write_and_die():
    import numpy as np
    from dsinga.data import write_store

    write_store("records.zarr", [(np.zeros((10, 4), np.float32), np.zeros(10, int))])
    os.kill(os.getpid(), signal.SIGKILL)


if __name__ == "__main__":
    process = multiprocessing.get_context("spawn").Process(target=write_and_die)
    process.start()
    process.join()
    print(process.exitcode)
"""


def test_a_killed_process_leaves_no_semaphore(tmp_path: Path) -> None:
    (tmp_path / "script.py").write_text(SCRIPT)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "-9\n"
    assert (tmp_path / "records.zarr").exists()
    assert ended.stderr == ""  # the tracker of semaphores has nothing to warn of
