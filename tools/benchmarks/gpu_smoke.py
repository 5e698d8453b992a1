"""Capture pieces of an iteration as CUDA graphs and compare their replays with eager results, bit for bit.

``python -m tools.benchmarks.gpu_smoke`` prints a JSON object: the versions and, for each piece, whether its graph,
replayed three times with other numbers in the same memory, gives the bits of eager calls, or why it could not be
captured. "all" is a product, kernels and a convolution in one graph, which an iteration needs.
"""

from __future__ import annotations

import contextlib
import json
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from dsinga.ops import Ops, get_ops

REPLAYS = 3
WARM_UP = 2
SIZES = (8, 16, 14, 14)  # images
Piece = Callable[[Ops, Any, Any], Sequence[Any]]


def product(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Compute inner products with a bias, one of them with a rectifier, and gradients.

    Ten outputs have no algorithm of cuBLASLt where it needs rows of 16 bytes; sixteen have.
    """
    rows = x.reshape(len(x), -1)
    weights = w.reshape(-1)[: 10 * rows.shape[1]].reshape(10, rows.shape[1])
    more = w.reshape(-1)[: 16 * rows.shape[1]].reshape(16, rows.shape[1])
    y = ops.inner_product(rows, weights, weights[:, 0].copy())
    rectified = ops.rectified_inner_product(rows, more, more[:, 0].copy())
    return y, rectified, *ops.inner_product_grad(rows, weights, y, False, True, True)


def convolution(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Compute a convolution and its gradients."""
    filters = w[:32]
    y = ops.convolution(x, filters, filters[:, 0, 0, 0].copy(), (1, 1), (1, 1))
    return y, *ops.convolution_grad(x, filters, y, (1, 1), (1, 1), True, True)


def kernels(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Run kernels of dsinga: elementwise, by rows, and sums over channels."""
    y = ops.relu(x)
    mean, variance = ops.channel_moments(y)
    return y, mean, variance, ops.softmax(x.reshape(len(x), -1)), ops.max_pool(x, (2, 2), (2, 2), (0, 0), True)[0]


def functions(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Call CuPy's own functions that layers call."""
    xp, total = ops.xp, x.sum(axis=0)
    joined = xp.concatenate((x, x))
    joined[: len(x)] = 0
    return total, joined, xp.zeros_like(x), x[::2] + x[1::2]


def batched(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Multiply many matrices."""
    blas: Any = ops
    return (blas.blas.multiply_all(x, x.swapaxes(-1, -2)),)


def recurrent(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Compute an LSTM layer, if its host arrays allow it."""
    steps = x.reshape(len(x), 14, -1)
    weights = w.reshape(-1)[: 4 * 8 * (steps.shape[2] + 8)].reshape(32, -1)
    params = weights[:, : steps.shape[2]].copy(), weights[:, steps.shape[2] :].copy()
    return (ops.recurrent("lstm", steps, params, None, None, False, True)[0],)


def everything(ops: Ops, x: Any, w: Any) -> Sequence[Any]:
    """Compute a convolution, kernels and a product."""
    y, *_ = convolution(ops, x, w)
    return y, *kernels(ops, y, w), *product(ops, ops.relu(x), w)


PIECES: dict[str, tuple[Piece, str, type]] = {
    "all": (everything, "float32", np.float32),
    "product": (product, "float32", np.float32),
    "product, float64": (product, "float32", np.float64),
    "product, tf32": (product, "tf32", np.float32),
    "product, bf16": (product, "bf16", np.float32),
    "many products": (batched, "float32", np.float32),
    "convolution": (convolution, "float32", np.float32),
    "convolution, bf16": (convolution, "bf16", np.float32),
    "kernels": (kernels, "float32", np.float32),
    "functions of CuPy": (functions, "float32", np.float32),
    "recurrent": (recurrent, "float32", np.float32),
}


def compare(piece: Piece, precision: str, dtype: type) -> dict[str, Any]:
    """Return whether replays of the piece's graph equal eager calls, and the host's µs of a launch of the graph."""
    ops: Any = get_ops("cupy").for_worker(0, precision)
    ops.enter()
    xp, stream = ops.xp, ops.streams.compute
    rng = np.random.default_rng(0)
    x, w = (xp.asarray(rng.standard_normal(shape).astype(dtype)) for shape in (SIZES, (2048, 16, 3, 3)))
    inputs = [xp.asarray(rng.standard_normal(SIZES).astype(dtype)) for _ in range(REPLAYS)]
    pool = xp.cuda.MemoryPool()
    with xp.cuda.using_allocator(pool.malloc):
        for _ in range(WARM_UP):
            piece(ops, x, w)
        stream.synchronize()
        stream.begin_capture()
        try:
            captured = piece(ops, x, w)
        except Exception:
            with contextlib.suppress(Exception):  # the capture is invalid
                stream.end_capture()
            raise
        graph = stream.end_capture()
    equal = True
    for numbers in inputs:
        x[...] = numbers
        expected = [array.get() for array in piece(ops, x, w)]
        for array in captured:
            array.fill(7)
        graph.launch(stream)
        stream.synchronize()
        equal = equal and all(np.array_equal(e, array.get()) for e, array in zip(expected, captured, strict=True))
    started = time.perf_counter()
    for _ in range(100):
        graph.launch(stream)
    host = 1e4 * (time.perf_counter() - started)
    stream.synchronize()
    figures = {"equal": equal, "arrays": len(captured), "launch us": host, "mb": pool.total_bytes() / 1e6}
    algorithms = ops.blas.algorithms()
    return figures | ({"products with bias by cuBLASLt, and by cuBLAS": algorithms} if any(algorithms) else {})


def versions(ops: Any) -> dict[str, Any]:
    """Return what runs: the card, the driver, and the libraries."""
    runtime = ops.xp.cuda.runtime
    figures = {"runs": ops.describe(), "driver": runtime.driverGetVersion(), "runtime": runtime.runtimeGetVersion()}
    try:
        import cudnn

        figures["front end"] = cudnn.__version__
    except ImportError:
        pass
    return figures


def turn() -> dict[str, Any]:
    """Return the figures of all pieces."""
    figures: dict[str, Any] = {"versions": versions(get_ops("cupy"))}
    for name, (piece, precision, dtype) in PIECES.items():
        try:
            figures[name] = compare(piece, precision, dtype)
        except Exception as error:  # one piece must not hide the others
            figures[name] = {"failed": f"{type(error).__name__}: {error}"}
    return figures


if __name__ == "__main__":
    print(json.dumps(turn()))
