"""What ``python -m tools.benchmarks.bits`` keeps of what a version computes: digests of arrays, and rows of numbers."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from distributed import Client

Report = dict[str, Any]
CLOCKS = ("time", "seconds", "env_steps_per_second")
"""Columns that no two runs have in common."""


@dataclass
class Call:
    """Calls of the public interface that are no training of a job alone."""

    compute: Callable[[Path, Client | None], Report]
    """Returns the report, given the folder of the stores, and a client where it asks for one."""
    processes: bool = False
    """Whether it gets the client of a cluster of processes."""
    after: tuple[str, ...] = ()
    """Runs whose checkpoints it reads."""


def report(arrays: Mapping[str, Any], rows: Iterable[Mapping[str, Any]] = ()) -> Report:
    """Return the digests of arrays by name, and rows of numbers without those of clocks."""
    return {
        "params": {name: digest(value) for name, value in sorted(arrays.items())},
        "metrics": [{key: value for key, value in row.items() if key not in CLOCKS} for row in rows],
    }


def digest(value: Any) -> str:
    """Return the shape, the dtype and a hash of the bytes of an array."""
    array = np.ascontiguousarray(value)
    return f"{array.shape} {array.dtype} {hashlib.sha256(array.tobytes()).hexdigest()}"
