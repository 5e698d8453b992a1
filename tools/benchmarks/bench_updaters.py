"""The time of one update of a net's params by each updater, beside PyTorch's optimizer of the same formula.

    python tools/benchmarks/bench_updaters.py [--threads 1] [--numbers 12000000] [--turns 9]

The params are those of a small GPT: 12 matrices of 1024 x 1024 numbers, or --numbers in 12 equal ones, and a vector
for each. dsinga updates them as its local engine does; PyTorch's optimizers are fused where they can be, else foreach.
Turns alternate. Prints Markdown: milliseconds of the median turn, and dsinga's time as a multiple of PyTorch's.
"""

from __future__ import annotations

import argparse
import math
import statistics
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga import nn
from dsinga.job import ParamConf, UpdaterConf
from dsinga.layers import ParamSpec
from dsinga.net import Param
from dsinga.training import create_updater
from dsinga.training.local_updater import LocalUpdater

MATRICES = 12
PAIRS: dict[str, tuple[UpdaterConf, Callable[[Any, Any], Any]]] = {
    "AdamW": (nn.AdamW(1e-3, weight_decay=0.01), lambda o, p: o.AdamW(p, 1e-3, weight_decay=0.01, fused=True)),
    "Adam": (nn.Adam(1e-3), lambda o, p: o.Adam(p, 1e-3, fused=True)),
    "SGD, momentum": (nn.SGD(1e-3, 0.9), lambda o, p: o.SGD(p, 1e-3, 0.9, fused=True)),
    "AdamW, all clipped together": (
        nn.AdamW(1e-3, weight_decay=0.01, clip_global_norm=1.0),
        lambda o, p: o.AdamW(p, 1e-3, weight_decay=0.01, fused=True),
    ),
    "Lion": (nn.Lion(1e-4, weight_decay=0.01, decoupled_weight_decay=True), lambda o, p: None),
    "LAMB": (nn.Lamb(1e-3, weight_decay=0.01), lambda o, p: None),
    "Muon": (
        nn.Muon(1e-3, weight_decay=0.01),
        lambda o, p: o.Muon([w for w in p if w.ndim == 2], 1e-3, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
    ),
}


def shapes_of(numbers: int) -> dict[str, tuple[int, ...]]:
    """Return the shapes of matrices with so many numbers together, and of their biases, by name."""
    side = math.isqrt(numbers // MATRICES)
    shapes: dict[str, tuple[int, ...]] = {f"w{k}": (side, side) for k in range(MATRICES)}
    return shapes | {f"b{k}": (side,) for k in range(MATRICES)}


def ours(conf: UpdaterConf, shapes: dict[str, tuple[int, ...]]) -> Callable[[], None]:
    """Return a function that updates all params once, as the local engine does."""
    rng = np.random.default_rng(0)
    params = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    gradients = {name: rng.standard_normal(shape, np.float32) for name, shape in shapes.items()}
    updater = LocalUpdater(
        create_updater(conf),
        {name: Param(name, ParamSpec("weight", shape), ParamConf()) for name, shape in shapes.items()},
    )
    updater.put(params)

    def step() -> None:
        for name, gradient in gradients.items():
            updater.push(name, gradient)
        updater.finish()

    return step


def theirs(make: Callable[[Any, Any], Any], conf: UpdaterConf, shapes: dict[str, tuple[int, ...]]) -> Any:
    """Return a function that updates all params once by an optimizer of PyTorch, which may be None."""
    import torch

    tensors = [torch.nn.Parameter(torch.randn(shape)) for shape in shapes.values()]
    for tensor in tensors:
        tensor.grad = torch.randn(tensor.shape)
    optimizer = make(torch.optim, tensors)
    if optimizer is None:
        return None
    biases = [tensor for tensor in tensors if tensor.ndim == 1]
    rest = torch.optim.AdamW(biases, 1e-3, fused=True) if isinstance(optimizer, torch.optim.Muon) else None

    def step() -> None:
        if conf.clip_global_norm:
            torch.nn.utils.clip_grad_norm_(tensors, conf.clip_global_norm)
        optimizer.step()
        if rest is not None:
            rest.step()

    return step


def seconds(step: Callable[[], None]) -> float:
    """Return how long one call takes."""
    started = time.perf_counter()
    step()
    return time.perf_counter() - started


def main() -> None:
    """Run the benchmark."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--threads", type=int, default=1, help="of PyTorch; dsinga's updates take one")
    parser.add_argument("--numbers", type=int, default=12 << 20)
    parser.add_argument("--turns", type=int, default=9)
    parser.add_argument("--only", nargs="*", choices=PAIRS, default=list(PAIRS))
    options = parser.parse_args()
    import torch

    torch.set_num_threads(options.threads)
    shapes = shapes_of(options.numbers)
    print(f"| {sum(map(math.prod, shapes.values())):,} numbers | dsinga, ms | PyTorch {torch.__version__}, ms | |")
    print("| --- | --- | --- | --- |")
    for name in options.only:
        conf, make = PAIRS[name]
        steps = [ours(conf, shapes), theirs(make, conf, shapes)]
        turns: list[list[float]] = [[], []]
        for _ in range(options.turns + 1):
            for step, times in zip(steps, turns, strict=True):
                if step is not None:
                    times.append(seconds(step))
        medians = [1e3 * statistics.median(times[1:]) if times else math.nan for times in turns]
        peer = f"{medians[1]:.1f} | {medians[0] / medians[1]:.2f}" if turns[1] else "none | "
        print(f"| {name} | {medians[0]:.1f} | {peer} |", flush=True)


if __name__ == "__main__":
    main()
