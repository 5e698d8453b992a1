"""Measure eager PyTorch on a GPU: ``python -m tests.benchmarks.gpu_torch CASE PRECISION STEPS``, as gpu_loop.py."""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from typing import Any

import torch

from tests.benchmarks.cases import GPU_CASES
from tests.benchmarks.torch_nets import loss_of, peer

WARM_UP, REPETITIONS = 20, 3


def turn(name: str, precision: str, steps: str) -> dict[str, Any]:
    """Return the milliseconds of an iteration, and the megabytes that PyTorch reserved on the device."""
    torch.manual_seed(0)
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    case = GPU_CASES[name]
    net, updater, make = peer(case.net)
    net.to("cuda")
    batch = tuple(array.to("cuda") for array in make(case.batch))
    precision_context = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()

    def iterate() -> None:
        updater.zero_grad(set_to_none=True)
        with precision_context:
            loss = loss_of(net, batch)
        loss.backward()
        if case.net == "char_rnn":
            torch.nn.utils.clip_grad_value_(net.parameters(), 5)
        updater.step()

    for _ in range(WARM_UP):
        iterate()
    means = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(int(steps)):
            iterate()
        end.record()
        torch.cuda.synchronize()
        means.append(begin.elapsed_time(end) / int(steps))
    runs = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return {"ms": statistics.median(means), "mb": torch.cuda.max_memory_reserved() / 1e6, "runs": runs}


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
