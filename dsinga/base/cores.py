"""Counts the cores and the memory that this process may use."""

from __future__ import annotations

import contextlib
import functools
import math
import os
import sys
from pathlib import Path, PurePosixPath

CGROUP_LIMIT = Path("/sys/fs/cgroup/memory.max")  # the bytes that the processes of a container may use


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


def memory_limit() -> int:
    """Return how many bytes of memory this process may use."""
    if hasattr(os, "sysconf"):
        limit = os.sysconf("SC_PAGE_SIZE") * os.sysconf("SC_PHYS_PAGES")
    else:  # Windows
        from psutil import virtual_memory

        limit = virtual_memory().total
    with contextlib.suppress(OSError, ValueError):  # no container, or "max"
        limit = min(limit, int(CGROUP_LIMIT.read_text()))
    return limit


def _text(file: Path) -> str:
    try:
        return file.read_text()
    except OSError:
        return ""
