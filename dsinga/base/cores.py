"""Counts the cores that this process may use."""

from __future__ import annotations

import functools
import math
import os
import sys
from pathlib import Path, PurePosixPath


def available_cores() -> int:
    """Return how many cores this process may use, by affinity and the cgroup's CPU quota."""
    cores = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    return min(cores, quota_cores())


@functools.cache
def quota_cores(own: Path = Path("/proc/self/cgroup"), mounts: Path = Path("/sys/fs/cgroup")) -> int:
    """Return how many cores the CPU quota of this process's cgroup and its parents allows, rounded up.

    A large number without a quota.
    """
    quotas = [sys.maxsize]
    for line in _text(own).splitlines():
        _, controllers, path = line.split(":", 2)
        if controllers and "cpu" not in controllers.split(","):
            continue
        group = PurePosixPath(path.lstrip("/"))
        roots = {mounts / controllers, mounts / "cpu"} if controllers else {mounts}
        for folder in (root / parent for root in roots for parent in (group, *group.parents)):
            limit = f"{_text(folder / 'cpu.cfs_quota_us')} {_text(folder / 'cpu.cfs_period_us')}".split()
            quota, period = limit or _text(folder / "cpu.max").split() or ("max", "0")
            if quota not in ("max", "-1"):
                quotas.append(max(1, math.ceil(int(quota) / int(period))))
    return min(quotas)


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
