"""Measure the error of products in each precision against float64 on the same device.

``python -m tools.benchmarks.gpu_precision`` prints a JSON object: by precision and kernel, the root mean square
and the maximum of the error, relative to the root mean square of the exact result.
"""

from __future__ import annotations

import json
from typing import Any

import numpy as np

from dsinga.ops import Ops, get_ops

PRECISIONS = ("float32", "tf32", "bf16")
SHRINK = 1  # divides all sizes, for tests


def results(ops: Ops, dtype: type) -> dict[str, Any]:
    """Return the results of the kernels for the same numbers in a dtype."""
    ops.enter()

    def numbers(*shape: int) -> Any:
        return ops.asarray(np.random.default_rng(shape).standard_normal(shape, np.float32).astype(dtype))

    channels, filters, width, units = (n // SHRINK for n in (96, 256, 9216, 512))
    x, w = numbers(32, channels, 27, 27), numbers(filters, channels, 5, 5)  # AlexNet's second
    stride, pad = (1, 1), (2, 2)
    y = ops.convolution(x, w, None, stride, pad)
    dx, dw, _ = ops.convolution_grad(x, w, numbers(*y.shape), stride, pad, True, False)
    a, b = numbers(128, width), numbers(4096 // SHRINK, width)
    weights = [numbers(3 * units, columns) / 16 for columns in (101, units)]
    split = [weight[gate * units : (gate + 1) * units] for weight in weights for gate in range(3)]
    states, _, _ = ops.recurrent("gru", numbers(50, 50, 101), split, None, None, False, False)
    return {
        f"inner product, {width} wide": ops.inner_product(a, b, None),
        "convolution": y,
        "convolution, for the source": dx,
        "convolution, for the weights": dw,
        f"GRU of {units}, 50 steps": states,
    }


def errors(result: Any, exact: Any) -> dict[str, float]:
    """Return the root mean square and the maximum of the error, relative to the root mean square of ``exact``."""
    size = float((exact**2).mean()) ** 0.5
    error = abs(result.astype(np.float64) - exact)
    return {"rms": float((error**2).mean()) ** 0.5 / size, "max": float(error.max()) / size}


def turn() -> dict[str, Any]:
    """Return the errors."""
    backend = get_ops("cupy")
    exact = {name: backend.to_numpy(array) for name, array in results(backend.for_worker(0), np.float64).items()}
    table = {}
    for precision in PRECISIONS:
        worker = backend.for_worker(0, precision)
        table[precision] = {
            name: errors(worker.to_numpy(array), exact[name]) for name, array in results(worker, np.float32).items()
        }
    return table


if __name__ == "__main__":
    print(json.dumps(turn()))
