"""Imports in a process of their own: killed while they write, or of sources larger than the allowed memory."""

import os
import signal
import struct
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest

from dsinga.base.errors import UserError
from dsinga.data import RecordStore, import_records
from tests.support.data_sources import SOURCES, idx, pair, pixels

WAITING = """
import sys
from dsinga.data import import_records

def stop_midway(done, total):
    print("midway", flush=True)
    sys.stdin.read()

import_records(sys.argv[1], sys.argv[2], sys.argv[3], stop_midway)
"""

MEASURED = """
import sys
from dsinga.data import import_records, write_store  # with all that they import

def peak():
    with open("/proc/self/status") as status:
        return next(int(line.split()[1]) for line in status if line.startswith("VmHWM")) // 1024

before = peak()
import_records(sys.argv[1], sys.argv[2], sys.argv[3])
print(peak() - before)
"""

MB = 1_000_000


def start(script: str, *arguments: object) -> subprocess.Popen[str]:
    return subprocess.Popen(
        [sys.executable, "-c", script, *map(str, arguments)], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True,
        env=os.environ | {"PYTHONPATH": os.pathsep.join(sys.path)},
    )  # fmt: skip


@pytest.mark.parametrize("kind", ["kvfile", pytest.param("csv", marks=pytest.mark.ci)])
def test_a_killed_import_leaves_no_complete_store(kind: str, tmp_path: Path) -> None:
    source = SOURCES[kind](tmp_path)
    destination = tmp_path / "out" / "x.zarr"
    with start(WAITING, kind, source.path, destination) as process:
        assert process.stdout is not None
        assert process.stdout.readline() == "midway\n"
        process.send_signal(signal.SIGKILL)
        assert process.wait(60) == -signal.SIGKILL
    (draft,) = destination.parent.iterdir()
    assert draft != destination
    for path in (*draft.iterdir(), destination):
        with pytest.raises(UserError, match="no store at|is incomplete"):
            RecordStore(path)
    import_records(kind, source.path, destination)
    assert [*destination.parent.iterdir()] == [destination]
    np.testing.assert_array_equal(RecordStore(destination).read([0, 5])[0], source.expected[""][0][[0, 5]])


# Imports again and again, with an interrupt after another call of zarr has begun: first, second, and so on.
INTERRUPTED = """
import itertools, signal, sys
from pathlib import Path
from zarr.core import sync
from dsinga.data import import_records

def wait_after_signal(*arguments, **options):
    if next(calls) == number:
        signal.raise_signal(signal.SIGINT)
    return wait(*arguments, **options)

wait, sync.wait = sync.wait, wait_after_signal
signal.signal(signal.SIGINT, signal.default_int_handler)
folder = Path(sys.argv[2])
for number in itertools.count():
    calls = itertools.count()
    try:
        import_records("npz", sys.argv[1], folder / "new" / "x.zarr")
        break
    except KeyboardInterrupt:
        assert not list(folder.iterdir()), (number, *folder.rglob("*"))
print(number)
"""


def test_an_interrupt_while_zarr_writes_leaves_nothing(tmp_path: Path) -> None:
    source = SOURCES["npz"](tmp_path)
    (tmp_path / "out").mkdir()
    with start(INTERRUPTED, source.path, tmp_path / "out") as process:
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert int(output) > 5


def large_idx(folder: Path) -> Path:
    rows = 100 * MB // 784
    tile = np.random.default_rng(0).integers(0, 256, MB, np.uint8).tobytes()
    for prefix in ("train", "t10k"):
        count = rows if prefix == "train" else 1
        with (folder / f"{prefix}-images-idx3-ubyte").open("wb") as file:
            file.write(struct.pack(">4I", 2051, count, 28, 28))
            for start_byte in range(0, count * 784, MB):
                file.write(tile[: count * 784 - start_byte])
        (folder / f"{prefix}-labels-idx1-ubyte").write_bytes(idx(np.zeros(count, np.uint8)))
    return folder


def large_kvfile(folder: Path) -> Path:
    image = np.random.default_rng(0).integers(0, 256, (3, 100, 100), np.uint8)
    block = b"".join(pair(b"%06d" % number, pixels(image, number)) for number in range(100))
    with (folder / "x.bin").open("wb") as file:
        for _ in range(100 * MB // len(block)):
            file.write(block)
    return folder / "x.bin"


def large_npz(folder: Path) -> Path:
    path = folder / "x.npz"
    np.savez(path, data=np.zeros((1000, 100_000), np.uint8), labels=np.zeros(1000, np.int64))
    return path


def large_fortran_npz(folder: Path) -> Path:
    path = folder / "x.npz"
    data = np.zeros((2000, 100_000), np.uint8, order="F")
    np.savez_compressed(path, data=data, labels=np.zeros(2000, np.int64))
    return path


def large_csv(folder: Path) -> Path:
    block = "1,0.5,0.25,3e-5,17,0\n" * 5000
    with (folder / "x.csv").open("w") as file:
        for _ in range(300 * MB // len(block) // 6):  # parsing is slow, and 50 MB are enough to exceed the limit
            file.write(block)
    return folder / "x.csv"


@pytest.mark.skipif(not Path("/proc/self/status").exists(), reason="peak memory is read from /proc")
@pytest.mark.parametrize(
    ("kind", "make", "most"),
    [
        pytest.param("mnist", large_idx, 75, marks=pytest.mark.ci),
        pytest.param("kvfile", large_kvfile, 75, marks=pytest.mark.ci),
        ("npz", large_npz, 75),
        # Of 200 MB, since its blocks are gathered in bands of 64 MiB.
        pytest.param("npz", large_fortran_npz, 150, marks=pytest.mark.ci),
        pytest.param("csv", large_csv, 75, marks=pytest.mark.ci),
    ],
)
def test_memory_is_bounded(kind: str, make: Callable[[Path], Path], most: int, tmp_path: Path) -> None:
    with start(MEASURED, kind, make(tmp_path), tmp_path / "out") as process:
        output, _ = process.communicate(timeout=100)
    assert process.returncode == 0
    assert int(output) < most


DYING = """
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
    (tmp_path / "script.py").write_text(DYING)
    ended = subprocess.run([sys.executable, "script.py"], cwd=tmp_path, capture_output=True, text=True, timeout=100)
    assert ended.stdout == "-9\n"
    assert (tmp_path / "records.zarr").exists()
    assert ended.stderr == ""  # the tracker of semaphores has nothing to warn of
