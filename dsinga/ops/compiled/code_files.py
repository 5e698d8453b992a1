"""Machine code of loops: which processors run it, its files, and its place in memory."""

from __future__ import annotations

import ctypes
import mmap
import os
import platform
import stat
import sys
from contextlib import suppress
from functools import cache
from hashlib import sha256
from pathlib import Path
from typing import Any

from dsinga.base.durable_files import OTHERS_WRITE, cache_folder, replace_file

# Code is for this processor and all later ones, so that one cache serves a cluster of several kinds.
PROCESSOR = "x86-64-v3"
# Wide loops need these instructions, too. Their registers hold LANES numbers; a product keeps sums in ROWS registers.
WIDE, LANES, ROWS = "+avx512f,+avx512bw,+avx512dq,+avx512vl", 16, 8
FLAGS = {"abm", "avx", "avx2", "bmi1", "bmi2", "f16c", "fma", "movbe", "xsave"}


@cache
def runs_code() -> bool:
    """Whether this system and processor run code for PROCESSOR."""
    if sys.platform != "linux" or platform.machine() != "x86_64":
        return False
    with suppress(OSError), open("/proc/cpuinfo", encoding="utf-8") as file:
        return any(line.startswith("flags") and {*line.split()} >= FLAGS for line in file)
    return False


def path_of(request: bytes) -> Path:
    """Return the file that keeps the code for a request; RuntimeError without a home."""
    return cache_folder() / "loops" / sha256(request).hexdigest()


def read_code(path: Path, request: bytes) -> bytes | None:
    """Read complete code for a request from a file of this user that nobody else can write; None without one."""
    with suppress(OSError), open(path, "rb") as file:
        status = os.fstat(file.fileno())
        if status.st_uid == os.geteuid() and not status.st_mode & OTHERS_WRITE:
            return unseal(request, file.read())
    return None


def write_code(path: Path, sealed: bytes) -> None:
    """Write sealed code to a file, unless the folder is full or read-only."""
    with suppress(OSError):
        path.parent.mkdir(parents=True, exist_ok=True)
        replace_file(path, sealed)
        path.chmod(stat.S_IRUSR | stat.S_IWUSR)


def seal(request: bytes, code: bytes) -> bytes:
    """Put a digest before code, by which :func:`unseal` knows it as complete, and as the answer to a request."""
    return sha256(request + code).digest() + code


def unseal(request: bytes, sealed: bytes) -> bytes | None:
    """Return the code of :func:`seal`; None if it is damaged or answers another request."""
    code = sealed[sha256().digest_size :]
    return code if seal(request, code) == sealed else None


def load_code(code: bytes) -> tuple[int, Any]:
    """Copy code to memory that can be run and no longer written; return its function's address and the memory."""
    memory = mmap.mmap(-1, len(code))
    memory.write(code)
    start = ctypes.addressof(first := ctypes.c_char.from_buffer(memory))
    if ctypes.CDLL(None).mprotect(ctypes.c_void_p(start), ctypes.c_size_t(len(code)), mmap.PROT_READ | mmap.PROT_EXEC):
        raise OSError("the system lets no code be loaded")
    return start + int.from_bytes(code[:8], "little"), first
