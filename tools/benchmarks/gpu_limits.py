"""Measure the rates of products and copies on a GPU, and the time that each net would take at these rates.

``python -m tools.benchmarks.gpu_limits`` prints a JSON object: rates, and milliseconds of each case.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga.addons.planner.profile import Clock
from dsinga.ops import Ops, get_ops
from dsinga.training.bp import back_propagate
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import Loop, milliseconds
from tools.benchmarks.ours import job as job_of

SIDE = 8192  # of the matrices whose product is timed
BYTES = 512 * 2**20  # of the array that is copied
PRECISIONS = ("float32", "tf32", "bf16")


def matrix_rates() -> dict[str, float]:
    """Return the operations a second of a large product by precision; bf16 includes the time of rounding."""
    rates = {}
    for precision in PRECISIONS:
        ops = get_ops("cupy").for_worker(0, precision)
        ops.enter()
        a, b, out = (ops.xp.ones((SIDE, SIDE), np.float32) for _ in range(3))

        def multiply(ops: Ops = ops, a: Any = a, b: Any = b, out: Any = out) -> None:
            ops.blas.multiply(a, b, out)

        rates[precision] = 2 * SIDE**3 / (1e-3 * milliseconds(ops, multiply, 10))
    return rates


def copy_rates() -> dict[str, float]:
    """Return bytes a second: read and written on the device, uploaded from pinned memory, and downloaded to it."""
    ops = get_ops("cupy").for_worker(0)
    ops.enter()
    x, y = (ops.xp.zeros(BYTES // 4, np.float32) for _ in range(2))
    host = np.frombuffer(ops.xp.cuda.alloc_pinned_memory(BYTES), np.float32, BYTES // 4)
    host[...] = 0
    stream = ops.streams.compute
    calls: dict[str, tuple[int, Callable[[], Any]]] = {
        "device": (2 * BYTES, lambda: ops.xp.copyto(y, x)),
        "up": (BYTES, lambda: x.set(host, stream=stream)),
        "down": (BYTES, lambda: x.get(stream=stream, out=host, blocking=False)),
    }
    return {name: size / (1e-3 * milliseconds(ops, call, 10)) for name, (size, call) in calls.items()}


def limit(name: str, matrix_rate: float, copy_rate: float) -> float:
    """Return the milliseconds of an iteration whose passes do their operations, or move their bytes, at these rates."""
    case, ops = GPU_CASES[name], get_ops("cupy").for_worker(0)
    loop, clock = Loop(job_of(case.net, case.batch), ops), Clock()
    loop.train, loop.observer = back_propagate, clock  # this algorithm fuses no layers
    loop.iterate()
    ops.synchronize()
    slots = 3 + 2 * len(loop.updater.slots)
    update = slots * sum(array.nbytes for array in loop.first.values()) / copy_rate
    passes = (max(work.operations / matrix_rate, work.bytes / copy_rate) for work in clock.work.values())
    return 1e3 * (sum(passes) + update)


def turn() -> dict[str, Any]:
    """Return rates and limits."""
    matrix, copies = matrix_rates(), copy_rates()
    limits = {
        name: {precision: limit(name, matrix[precision], copies["device"]) for precision in PRECISIONS}
        for name in GPU_CASES
    }
    return {"matrix": matrix, "copy": copies, "limits": limits}


if __name__ == "__main__":
    print(json.dumps(turn()))
