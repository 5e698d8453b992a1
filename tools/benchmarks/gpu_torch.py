"""Measure PyTorch on a GPU: ``python -m tools.benchmarks.gpu_torch CASE PRECISION STEPS [FORM ...]``, as gpu_loop.py.

The forms are "eager"; "graph", all of an iteration captured as one CUDA graph; "graph, loss read", the same followed by
reading the loss; and "compiled", ``torch.compile(mode="reduce-overhead")`` of the loss, whose compilation takes half a
minute. A form that fails is replaced by its error.
"""

from __future__ import annotations

import contextlib
import json
import statistics
import sys
from collections.abc import Callable
from typing import Any

import torch

from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.torch_nets import Peer, peer

WARM_UP, REPETITIONS = 20, 3
FORMS = ("eager", "graph", "graph, loss read", "compiled")


def milliseconds(iterate: Callable[[], Any], steps: int) -> float:
    """Return the milliseconds of an iteration by the device's clock: the median of means over ``steps`` iterations."""
    for _ in range(WARM_UP):
        iterate()
    means = []
    for _ in range(REPETITIONS):
        torch.cuda.synchronize()
        begin, end = (torch.cuda.Event(enable_timing=True) for _ in range(2))
        begin.record()
        for _ in range(steps):
            iterate()
        end.record()
        torch.cuda.synchronize()
        means.append(begin.elapsed_time(end) / steps)
    return statistics.median(means)


def iteration(trained: Peer, batch: Any, precision: str) -> Callable[[], Any]:
    """Return a function that runs an iteration eagerly and returns its loss."""

    def iterate() -> Any:
        context = torch.autocast("cuda", torch.bfloat16) if precision == "bf16" else contextlib.nullcontext()
        return trained.iterate(batch, context)

    return iterate


def captured(iterate: Callable[[], Any], reads: bool) -> Callable[[], Any]:
    """Return a function that launches the graph of an iteration, and reads its loss if told so."""
    stream = torch.cuda.Stream()
    stream.wait_stream(torch.cuda.current_stream())
    with torch.cuda.stream(stream):
        for _ in range(3):
            iterate()
    torch.cuda.current_stream().wait_stream(stream)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        loss = iterate()

    def replay_and_read() -> float:
        graph.replay()
        return loss.item()

    return replay_and_read if reads else graph.replay


def prepared(name: str) -> tuple[Peer, Any]:
    """Return the peer of a case on the device, with an updater that can be captured, and a batch."""
    torch.manual_seed(0)
    case = GPU_CASES[name]
    trained = peer(case.net)
    trained.net.to("cuda")
    for group in trained.updater.param_groups:
        if "capturable" in group:
            group["capturable"] = True
    return trained, tuple(array.to("cuda") for array in trained.batch(case.batch))


def form_of(form: str, name: str, precision: str) -> Callable[[], Any]:
    """Return a function that runs an iteration in a form."""
    trained, batch = prepared(name)
    if form == "compiled":
        trained = trained._replace(loss=torch.compile(trained.loss, mode="reduce-overhead"))
    iterate = iteration(trained, batch, precision)
    return captured(iterate, "read" in form) if "graph" in form else iterate


def turn(name: str, precision: str, steps: str, *forms: str) -> dict[str, Any]:
    """Return the milliseconds of an iteration by form, and the megabytes that PyTorch reserved on the device."""
    torch.backends.cuda.matmul.allow_tf32 = torch.backends.cudnn.allow_tf32 = precision != "float32"
    figures: dict[str, Any] = {}
    for form in forms or FORMS:
        try:
            figures[form] = milliseconds(form_of(form, name, precision), int(steps))
        except Exception as error:  # one form must not hide the others
            figures[f"{form} failed"] = f"{type(error).__name__}: {str(error)[:300]}"
    runs = f"PyTorch {torch.__version__}, cuDNN {torch.backends.cudnn.version()}"
    return figures | {"mb": torch.cuda.max_memory_reserved() / 1e6, "runs": runs}


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
