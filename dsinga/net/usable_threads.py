"""Counts the kernel threads that a worker can use: a small net runs no faster, or slower, with several.

To hand a kernel to another thread and to wait for it takes some 10 to 50 µs, as long as the kernel itself where a net
is small. The number follows from the net alone, not from measurements, because some kernels (gradients of
convolutions) add up in another order with another number of threads: the same job gives the same bits each time.
"""

from __future__ import annotations

import os

from dsinga.net.neuralnet import NeuralNet

# An iteration's operations that a kernel thread must have to do; docs/dev/measurements.md.
OPERATIONS_PER_THREAD = 20_000_000


def usable_threads(net: NeuralNet, workers: int) -> int:
    """Return the number of kernel threads that each of ``workers`` workers can use to compute its share of a net."""
    return max(1, net.operations // (workers * OPERATIONS_PER_THREAD))


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
