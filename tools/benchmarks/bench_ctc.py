"""Times the CTC loss and its gradient beside PyTorch's, in turn in one process on one core.

``python -m tools.benchmarks.bench_ctc`` prints, for some sizes, medians of both in milliseconds of the thread's
processor time and their ratio. PyTorch's includes log_softmax, as ours does.
"""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable

import numpy as np

from dsinga.addons.text.ctc import ctc, ctc_grad

SIZES = [(32, 100, 20, 30), (32, 400, 60, 30), (64, 800, 100, 30)]  # batch, steps, labels, classes
TURNS = 9


def ours(x: np.ndarray, labels: np.ndarray) -> Callable[[], object]:
    """Return a function that computes loss and gradient."""
    lengths = np.full(len(x), x.shape[1])

    def compute() -> np.ndarray:
        losses, paths = ctc(x, labels, lengths, 0)
        return ctc_grad(paths, losses)

    return compute


def theirs(x: np.ndarray, labels: np.ndarray) -> Callable[[], object]:
    """Return a function that computes PyTorch's loss and gradient on one thread."""
    import torch

    torch.set_num_threads(1)
    scores, targets = torch.tensor(x), torch.tensor(labels)
    lengths, counts = (torch.full((len(x),), number) for number in (x.shape[1], labels.shape[1]))

    def compute() -> object:
        leaf = scores.detach().requires_grad_()
        logs = leaf.log_softmax(2).transpose(0, 1)
        torch.nn.functional.ctc_loss(logs, targets, lengths, counts, reduction="sum").backward()
        return leaf.grad

    return compute


def main() -> None:
    """Print a line for each size."""
    for batch, steps, count, classes in SIZES:
        random = np.random.default_rng(0)
        x = random.normal(size=(batch, steps, classes)).astype(np.float32)
        labels = random.integers(1, classes, (batch, count))
        functions = [ours(x, labels), theirs(x, labels)]
        seconds: list[list[float]] = [[], []]
        for function in functions:
            function()
        for _ in range(TURNS):
            for function, times in zip(functions, seconds, strict=True):
                started = time.thread_time()
                function()
                times.append(time.thread_time() - started)
        mine, peer = (1e3 * statistics.median(times) for times in seconds)
        print(f"B {batch}, T {steps}, S {count}, K {classes}: {mine:.1f} ms, PyTorch {peer:.1f} ms, {mine / peer:.2f}")


if __name__ == "__main__":
    main()
