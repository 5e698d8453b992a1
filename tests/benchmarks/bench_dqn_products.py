"""What the products of an update of MinAtar's DQN net take alone: ``python -m tests.benchmarks.bench_dqn_products``.

They are a lower bound of what the update can take, which :mod:`tests.benchmarks.bench_dqn` measures: two forward passes
(of the net and of the target net) and a backward pass of the convolution and of the layer of 128 units, and RMSProp.
Each is computed by numpy, by dsinga's kernels and by PyTorch, in turn, with one thread and warm caches; figures are
medians of processor time, in microseconds.
"""

from __future__ import annotations

import statistics
from collections.abc import Callable
from typing import Any

from tests.benchmarks.bench_dqn import BATCH, TURNS, TorchDQN, algorithm_and_memory, microseconds  # sets one thread

# isort: split
import numpy as np
import torch

from dsinga import nn
from dsinga.ops import get_ops
from dsinga.training import create_updater

CHANNELS, FILTERS, SIDE, UNITS = 4, 16, 8, 128  # outputs of the convolution are SIDE x SIDE
INPUTS = FILTERS * SIDE**2

Column = list[tuple[Callable[[], Any], int]]  # what is computed, and how often in an update


def numbers(*shape: int) -> np.ndarray:
    """Return random numbers."""
    return np.random.default_rng(0).standard_normal(shape).astype(np.float32)


def by_numpy() -> Column:
    """Return matrix products alone: no copies of windows, no biases."""
    x, w, dy = numbers(BATCH, INPUTS), numbers(UNITS, INPUTS), numbers(BATCH, UNITS)
    windows, kernels = numbers(BATCH * SIDE**2, 9 * CHANNELS), numbers(9 * CHANNELS, FILTERS)
    outputs = numbers(BATCH * SIDE**2, FILTERS)
    return [
        (lambda: windows @ kernels, 2),
        (lambda: outputs.T @ windows, 1),
        (lambda: x @ w.T, 2),
        (lambda: (dy @ w, dy.T @ x), 1),
        (rmsprop(w.size), 1),
    ]


def by_dsinga() -> Column:
    """Return our kernels."""
    ops = get_ops().for_worker().with_fast_rounding()
    ops.enter()
    ops.set_threads(1)
    x, w, b, dy = numbers(BATCH, INPUTS), numbers(UNITS, INPUTS), numbers(UNITS), numbers(BATCH, UNITS)
    images = ops.images(numbers(BATCH, CHANNELS, SIDE + 2, SIDE + 2))
    kernels, bias = numbers(FILTERS, CHANNELS, 3, 3), numbers(FILTERS)
    outputs = ops.images(numbers(BATCH, FILTERS, SIDE, SIDE))
    return [
        (lambda: ops.convolution(images, kernels, bias, (1, 1), (0, 0)), 2),
        (lambda: ops.convolution_grad(images, kernels, outputs, (1, 1), (0, 0), False, True), 1),
        (lambda: ops.inner_product(x, w, b), 2),
        (lambda: ops.inner_product_grad(x, w, dy, False, True, True), 1),
        (rmsprop(w.size), 1),
    ]


def by_torch() -> Column:
    """Return PyTorch's kernels, without its graph of gradients."""
    functional, gradients = torch.nn.functional, torch.ops.aten.convolution_backward
    x, w, b, dy = map(
        torch.tensor, (numbers(BATCH, INPUTS), numbers(UNITS, INPUTS), numbers(UNITS), numbers(BATCH, UNITS))
    )
    images, outputs = (
        torch.tensor(numbers(BATCH, *shape)) for shape in ((CHANNELS, SIDE + 2, SIDE + 2), (FILTERS, SIDE, SIDE))
    )
    kernels, bias = torch.tensor(numbers(FILTERS, CHANNELS, 3, 3)), torch.tensor(numbers(FILTERS))
    window: Any = [FILTERS], (1, 1), (0, 0), (1, 1), False, (0, 0), 1, (False, True, True)
    weight = torch.nn.Parameter(w.clone())
    weight.grad = torch.ones_like(weight)
    optimizer = torch.optim.RMSprop([weight], lr=2.5e-4, alpha=0.95, centered=True, eps=0.01)
    return [
        (lambda: functional.conv2d(images, kernels, bias), 2),
        (lambda: gradients(outputs, images, kernels, *window), 1),
        (lambda: functional.linear(x, w, b), 2),
        (lambda: (dy @ w, dy.t() @ x, dy.sum(0)), 1),
        (optimizer.step, 1),
    ]


def rmsprop(size: int) -> Callable[[], None]:
    """Return an update of a param by RMSProp, in numpy."""
    updater = create_updater(nn.RMSprop(2.5e-4, rho=0.95, epsilon=1e-4))
    value, gradient, state = numbers(size), numbers(size), updater.create_state(size)
    return lambda: updater.update(1, value, gradient, state)


def main() -> None:
    """Print the times of each, their sums, and PyTorch's whole update."""
    torch.set_num_threads(1)
    torch.set_grad_enabled(False)
    names = "convolution, 2 x", "its gradient", "1,024 to 128, 2 x", "its gradients", "RMSProp"
    columns = by_numpy(), by_dsinga(), by_torch()
    times: list[list[list[float]]] = [[[] for _ in names] for _ in columns]
    for _ in range(TURNS):
        for column, measured in zip(columns, times, strict=True):
            for (compute, count), row in zip(column, measured, strict=True):
                row.extend(count * value for value in microseconds(compute))
    print("| | numpy | dsinga | PyTorch |\n| --- | --- | --- | --- |")
    medians = [[statistics.median(row) for row in measured] for measured in times]
    for name, *row in zip(names, *medians, strict=True):
        print(f"| {name} | {' | '.join(f'{value:.0f}' for value in row)} |")
    print(f"| sum | {' | '.join(f'{sum(column):.0f}' for column in medians)} |")
    torch.set_grad_enabled(True)
    _, memory = algorithm_and_memory(CHANNELS)
    peer, batch = TorchDQN(CHANNELS), memory.sample(BATCH * 10, np.random.default_rng(1))
    arrays = batch.observations, batch.next_observations, batch.actions, batch.rewards, batch.terminated
    for state, following, action, reward, ended in zip(*arrays, strict=True):
        peer.remember(state, following, int(action), float(reward), bool(ended), len(batch.rewards))
    tensors = peer.draw()
    update = [value for _ in range(TURNS) for value in microseconds(lambda: peer.learn(tensors))]
    print(f"PyTorch's whole update: {statistics.median(update):.0f}, 0.3 of it: {0.3 * statistics.median(update):.0f}")


if __name__ == "__main__":
    main()
