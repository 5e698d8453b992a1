"""Time the kernels of the CIFAR-10 convnet, layer by layer, in each backend: ``python bench_kernels.py [backend...]``.

One thread, batch 64, milliseconds, the best of several rounds; the last line is the sum over the net.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable
from typing import Any

import numpy as np

from dsinga.ops import BACKENDS, Array, Ops, get_ops

BATCH = 64
PAIR = {1: (1, 1), 2: (2, 2), 3: (3, 3)}


def best_ms(work: Callable[[], Any], rounds: int = 7, repeats: int = 20) -> float:
    """Return the milliseconds of one call, in the best round."""
    work()
    times = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            work()
        times.append((time.perf_counter() - start) / repeats)
    return min(times) * 1000


def layers(ops: Ops) -> list[tuple[str, Callable[[], Any], Callable[[], Any]]]:
    """Return (name, forward, backward) of every layer; the first convolution needs no gradient for the data."""
    rng = np.random.default_rng(0)

    def image(channels: int, size: int) -> Array:
        values = rng.standard_normal((BATCH, channels * size * size), dtype=np.float32)
        return ops.unflatten(values, (BATCH, channels, size, size))

    def convolution(channels: int, size: int, filters: int, need_dx: bool) -> Any:
        x, dy = image(channels, size), image(filters, size)
        w, b = rng.standard_normal((filters, channels, 5, 5), dtype=np.float32), np.zeros(filters, np.float32)
        return (
            f"convolution {channels}-{filters} at {size}",
            lambda: ops.convolution(x, w, b, (1, 1), (2, 2)),
            lambda: ops.convolution_grad(x, w, dy, (1, 1), (2, 2), need_dx, True),
        )

    def max_pool(channels: int, size: int) -> Any:
        x = image(channels, size)
        y, workspace = ops.max_pool(x, (3, 3), (2, 2), (0, 0), True)
        return (
            f"max pool {channels} at {size}",
            lambda: ops.max_pool(x, (3, 3), (2, 2), (0, 0), True),
            lambda: ops.max_pool_grad(x, workspace, y, (3, 3), (2, 2), (0, 0)),
        )

    def avg_pool(channels: int, size: int) -> Any:
        x = image(channels, size)
        y = ops.avg_pool(x, (3, 3), (2, 2), (0, 0))
        return (
            f"avg pool {channels} at {size}",
            lambda: ops.avg_pool(x, (3, 3), (2, 2), (0, 0)),
            lambda: ops.avg_pool_grad(x, y, (3, 3), (2, 2), (0, 0)),
        )

    def relu(channels: int, size: int) -> Any:
        x = image(channels, size)
        return f"relu {channels} at {size}", lambda: ops.relu(x), lambda: ops.relu_grad(x, x)

    def lrn(channels: int, size: int) -> Any:
        x, constants = image(channels, size), (3, 5e-5, 0.75, 1.0)
        y, workspace = ops.lrn(x, *constants, True)
        return (
            f"lrn {channels} at {size}",
            lambda: ops.lrn(x, *constants, True),
            lambda: ops.lrn_grad(x, workspace, y, *constants),
        )

    def classifier(channels: int, size: int, classes: int) -> Any:
        x, w = image(channels, size), rng.standard_normal((classes, channels * size * size), dtype=np.float32)
        b, dy = np.zeros(classes, np.float32), rng.standard_normal((BATCH, classes), dtype=np.float32)

        def forward() -> Array:
            return ops.softmax(ops.inner_product(ops.flatten(x), w, b))

        def backward() -> Array:
            dx, _, _ = ops.inner_product_grad(ops.flatten(x), w, dy, False, True, True)
            return ops.unflatten(dx, x.shape)

        return f"inner product {classes}", forward, backward

    records = rng.integers(0, 256, (BATCH, 3, 32, 32), dtype=np.uint8)
    mean = rng.random((3, 32, 32), dtype=np.float32)
    return [
        ("images", lambda: ops.images(records, 1 / 128, mean), lambda: None),
        convolution(3, 32, 32, need_dx=False),
        max_pool(32, 32),
        relu(32, 15),
        lrn(32, 15),
        convolution(32, 15, 32, need_dx=True),
        relu(32, 15),
        avg_pool(32, 15),
        lrn(32, 7),
        convolution(32, 7, 64, need_dx=True),
        relu(64, 7),
        avg_pool(64, 7),
        classifier(64, 3, 10),
    ]


def main() -> None:
    """Print a table with a pair of columns for each backend named on the command line, or for all."""
    names = sys.argv[1:] or list(BACKENDS)
    columns = {}
    for name in names:
        ops = get_ops(name)
        ops.set_threads(1)
        columns[name] = [(layer, best_ms(forward), best_ms(backward)) for layer, forward, backward in layers(ops)]
    print(f"{'layer':28s}" + "".join(f"{name + ' fwd':>14s}{'bwd':>8s}" for name in names))
    for row in zip(*columns.values(), strict=True):
        print(f"{row[0][0]:28s}" + "".join(f"{forward:14.3f}{backward:8.3f}" for _, forward, backward in row))
    totals = [(sum(f for _, f, _ in rows), sum(b for _, _, b in rows)) for rows in columns.values()]
    print(f"{'together':28s}" + "".join(f"{f:14.2f}{b:8.2f}" for f, b in totals))


if __name__ == "__main__":
    main()
