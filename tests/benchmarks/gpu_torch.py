"""Measure eager PyTorch on a GPU: ``python -m tests.benchmarks.gpu_torch CASE PRECISION STEPS``, as gpu_loop.py."""

from __future__ import annotations

import json
import statistics
import sys
from typing import Any

import torch

from tests.benchmarks.cases import GPU_CASES
from tests.benchmarks.torch_nets import peer

WARM_UP, REPETITIONS = 20, 3


def turn(name: str, precision: str, steps: str) -> dict[str, Any]:
    """Return the milliseconds of an iteration, and the megabytes that PyTorch reserved on the device."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    case = GPU_CASES[name]
    trained = peer(case.net)
    trained.net.to("cuda")
    batch = tuple(array.to("cuda") for array in trained.batch(case.batch))
    precision_context = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else None
    for _ in range(WARM_UP):
        trained.iterate(batch, precision_context)
    means = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(int(steps)):
            trained.iterate(batch, precision_context)
        end.record()
        torch.cuda.synchronize()
        means.append(begin.elapsed_time(end) / int(steps))
    runs = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return {"ms": statistics.median(means), "mb": torch.cuda.max_memory_reserved() / 1e6, "runs": runs}


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
