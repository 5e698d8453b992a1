"""List the kernels of an iteration with their time on the device.

``python -m tools.benchmarks.gpu_profile CASE PRECISION`` prints a JSON object with, for dsinga and for PyTorch in eager
mode, the milliseconds of all kernels of an iteration and those of the kernels that take longest: name, milliseconds,
launches. PyTorch's profiler sees the kernels of both.
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable
from typing import Any

import torch

from dsinga.ops import get_ops
from tools.benchmarks import gpu_torch
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import Loop
from tools.benchmarks.ours import job as job_of

ITERATIONS, KERNELS, WARM_UP = 5, 40, 4


def profile(iterate: Callable[[], Any]) -> dict[str, Any]:
    """Return the kernels of an iteration."""
    for _ in range(WARM_UP):
        iterate()
    torch.cuda.synchronize()
    with torch.profiler.profile(activities=[torch.profiler.ProfilerActivity.CUDA]) as profiler:
        for _ in range(ITERATIONS):
            iterate()
        torch.cuda.synchronize()
    kernels: dict[str, list[float]] = {}
    for event in profiler.events():
        if event.device_type == torch.autograd.DeviceType.CUDA:
            times = kernels.setdefault(re.sub(r"[<(].*", "", event.name.removeprefix("void "))[:60], [0.0, 0])
            times[0] += event.time_range.elapsed_us() / 1e3 / ITERATIONS
            times[1] += 1 / ITERATIONS
    longest = sorted(((name, *times) for name, times in kernels.items()), key=lambda kernel: -kernel[1])
    return {
        "ms": sum(ms for _, ms, _ in longest),
        "launches": sum(count for *_, count in longest),
        "kernels": longest[:KERNELS],
    }


def turn(name: str, precision: str) -> dict[str, Any]:
    """Return the kernels of both."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    torch.cuda.init()
    figures: dict[str, Any] = {"pytorch": profile(gpu_torch.iteration(*gpu_torch.prepared(name), precision))}
    case, ops = GPU_CASES[name], get_ops("cupy").for_worker(0, precision)
    loop = Loop(job_of(case.net, case.batch), ops)
    return figures | {"dsinga": profile(loop.iterate)}


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
