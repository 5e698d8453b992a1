"""Loads loops that numba compiles: as machine code from the user's cache, or else with numba in this process."""

from __future__ import annotations

import ctypes
import json
import logging
import os
import subprocess
import sys
from collections.abc import Callable
from functools import cache
from hashlib import sha256
from importlib.util import find_spec
from pathlib import Path
from typing import Any

from dsinga.base.errors import UserError
from dsinga.ops.compiled.code_files import (
    PROCESSOR,
    WIDE,
    load_code,
    path_of,
    read_code,
    runs_code,
    unseal,
    write_code,
)

VARIABLE = "DSINGA_COMPILED"
# Numbers of an array. Loops over smaller ones do not pay for the second that numba takes to compile them.
SMALLEST = 1 << 16
# What loops call; other code of it makes other loops.
INTRINSICS = tuple(Path(__file__).with_name(name) for name in ("machine_code.py", "tile_code.py"))
SECONDS = 120  # at most, for numba to compile a loop

_log = logging.getLogger(__name__)


def is_compiled(size: int) -> bool:
    """Whether loops over arrays of ``size`` numbers are compiled: numba is installed, and they pay."""
    return size >= SMALLEST and is_available()


@cache
def is_available() -> bool:
    """Whether numba is installed, and ``DSINGA_COMPILED`` allows compiled loops."""
    return is_wanted() and find_spec("numba") is not None


def describe() -> str:
    """Say which numba version compiles loops, or that there is none."""
    if find_spec("numba") is None:
        return "no loops are compiled: pip install numba"
    return f"loops are compiled by numba {_version()}" if is_wanted() else "no loops are compiled"


def _version() -> str:
    from importlib import metadata  # few ask for a version

    return metadata.version("numba")


def is_wanted() -> bool:
    """Whether ``DSINGA_COMPILED`` allows compiled loops."""
    value = os.environ.get(VARIABLE, "")
    if value not in ("", "0"):
        raise UserError(f"{VARIABLE}={value!r} is unknown: leave it unset, or set it to '0' to do without numba")
    return not value


def load_loop(source: str, types: str, keeps_lock: bool = False, wide: bool = False) -> Callable[..., None] | None:
    """Return the function ``loop`` of a source, called with addresses and integers; None if numba cannot compile it.

    ``types`` has a letter for each argument: f, d, H, q for an array of float32, float64, uint16, int64, n for an
    integer. Floats are not reordered, and other threads of Python run meanwhile, unless it ``keeps_lock``. A ``wide``
    loop is for processors with AVX-512.
    """
    try:
        start, memory = _cached(source, types, WIDE if wide else "") or _compile_here(source, types)
    except Exception as error:  # numba refuses versions of numpy and Python that it does not know
        _log.warning("computing without compiled loops, since numba cannot compile them: %s", error)
        return None
    kind = ctypes.PYFUNCTYPE if keeps_lock else ctypes.CFUNCTYPE
    loop: Any = kind(None, *[ctypes.c_ssize_t] * len(types))(start)
    loop.memory = memory  # in which the code is
    return loop


def _compile_here(source: str, types: str) -> tuple[int, Any]:
    from dsinga.ops.compiled.machine_code import compile_loop  # imports numba

    loop = compile_loop(source, types)
    return loop.address, loop


def _cached(source: str, types: str, features: str = "") -> tuple[int, Any] | None:
    """Load a loop's machine code; return its address and memory, None if this process cannot make or run it."""
    if not runs_code():
        return None
    try:
        digest = sha256(b"".join(file.read_bytes() for file in INTRINSICS)).hexdigest()
        request = json.dumps([source, types, features, PROCESSOR, _version(), digest]).encode()
        if (code := read_code(path := path_of(request), request)) is None:
            write_code(path, sealed := _make(request))
            code = unseal(request, sealed)
        return None if code is None else load_code(code)
    except Exception as error:  # of a system without home, processes, or memory for code
        _log.debug("numba is loaded, because its code is not: %s", error)
        return None


def _make(request: bytes) -> bytes:
    """Have a loop compiled in a process of its own, and return its sealed code."""
    features = json.loads(request)[2]
    changed = {"PYTHONPATH": os.pathsep.join(sys.path), "NUMBA_CPU_NAME": PROCESSOR, "NUMBA_CPU_FEATURES": features}
    command = [sys.executable, "-P", "-m", "dsinga.ops.compiled.machine_code"]
    environment = {**os.environ, **changed}
    made = subprocess.run(command, input=request, capture_output=True, env=environment, timeout=SECONDS, check=True)
    return made.stdout
