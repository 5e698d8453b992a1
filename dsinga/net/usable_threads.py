"""How many kernel threads a worker can use: a net that is too small for several runs no faster, or slower, with them.

To hand a kernel to another thread and to wait for it takes some 10 to 50 µs, as long as the kernel itself where a net
is small. The number follows from the net alone, not from measurements, because some kernels (gradients of
convolutions) add up in another order with another number of threads: the same job gives the same bits each time.
"""

from __future__ import annotations

import math
import os

from dsinga.net import NeuralNet
from dsinga.net.layer_cost import layer_cost

# An iteration's operations that a kernel thread must have to do; docs/dev/measurements.md.
OPERATIONS_PER_THREAD = 200_000_000
# Moving a number through memory takes as long as so many operations of a matrix product.
OPERATIONS_PER_NUMBER = 50


def usable_threads(net: NeuralNet, workers: int) -> int:
    """Return the number of kernel threads that each of ``workers`` workers can use to compute its share of a net."""
    costs = [layer_cost(node.layer) for node in net.nodes]
    numbers = sum(math.prod(node.layer.shape) for node in net.nodes)
    operations = sum(cost.forward + cost.backward for cost in costs) + OPERATIONS_PER_NUMBER * numbers
    return max(1, int(operations // (workers * OPERATIONS_PER_THREAD)))


def available_cores() -> int:
    """Return the number of cores that this process may run on."""
    return len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
