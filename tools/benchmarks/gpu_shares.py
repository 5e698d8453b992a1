"""Find the first layer whose numbers depend on how a batch is shared among workers.

``python -m tools.benchmarks.gpu_shares CASE`` prints JSON: for each layer of one iteration on the device, from the
input on, the errors of its feature, of its gradients for sources and for params, computed for the whole batch and for
two halves. Errors are root mean squares relative to that of the same iteration in float64; "apart" is the difference of
the two computations, likewise.
"""

from __future__ import annotations

import json
import sys
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np

from dsinga.layers import Context, Rows
from dsinga.ops import Ops, get_ops
from dsinga.training import bp
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import Loop
from tools.benchmarks.ours import job as job_of

BATCH = 64
Arrays = dict[str, list[np.ndarray]]


class Recorder:
    """Records the features and gradients of each layer, an array for each share of the batch."""

    def __init__(self, ops: Ops):
        self._ops = ops
        self.features: Arrays = defaultdict(list)
        self.sources: Arrays = defaultdict(list)
        self.params: Arrays = defaultdict(list)

    def __call__(self, layer: Any, name: str, compute: Any, *arguments: Any) -> Any:
        """Run a pass of a layer and keep its arrays, copied to the host in float64."""
        result = compute(*arguments)
        if name == "forward":
            self._keep(self.features, layer.name, [result.feature])
            return result
        self._keep(self.sources, layer.name, result[0])
        self._keep(self.params, layer.name, result[1])
        return result

    def _keep(self, kept: Arrays, name: str, arrays: Sequence[Any]) -> None:
        for number, array in enumerate(arrays):
            if getattr(array, "dtype", None) in (np.float32, np.float64):
                kept[f"{name} {number}"].append(self._ops.to_numpy(array).astype(np.float64))


def iteration(loop: Loop, shares: int, dtype: type) -> Recorder:
    """Return the arrays of one iteration, computed for ``shares`` equal parts of the batch one after the other."""
    recorder, total = Recorder(loop.ops), loop.rows.stop
    params = {name: value.astype(dtype) for name, value in loop.params.values.items()}
    for number in range(shares):
        part = slice(number * total // shares, (number + 1) * total // shares)
        records = {
            name: batch._replace(data=batch.data[part], labels=None if batch.labels is None else batch.labels[part])
            for name, batch in loop.records.items()
        }
        ctx = Context(loop.ops, loop.net.phase, Rows(part.start, part.stop, total), 0, 0, observer=recorder)
        bp(loop.net, params, records, ctx, lambda name, gradient: None)
    return recorder


def error(arrays: Sequence[np.ndarray], expected: Sequence[np.ndarray], size: float) -> float:
    """Return the root mean square of a difference relative to ``size``, after joining or adding the shares."""
    whole, exact = (arrays_of[0] if len(arrays_of) == 1 else None for arrays_of in (arrays, expected))
    shape = (whole if whole is not None else exact if exact is not None else arrays[0]).shape
    first, second = (joined(each, shape) for each in (arrays, expected))
    return float(np.sqrt(((first - second) ** 2).mean())) / max(size, 1e-300)


def joined(arrays: Sequence[np.ndarray], shape: tuple[int, ...]) -> np.ndarray:
    """Return the array of the whole batch: shares of its rows joined, or shares of a sum added."""
    return sum(arrays[1:], arrays[0]) if arrays[0].shape == shape else np.concatenate(arrays)


def turn(name: str) -> dict[str, Any]:
    """Return the errors of each layer."""
    ops: Any = get_ops("cupy").for_worker(0)
    loop = Loop(job_of(GPU_CASES[name].net, BATCH), ops)
    one, two = (iteration(loop, shares, np.float32) for shares in (1, 2))
    images = ops.images
    ops.images = lambda *arguments, **options: images(*arguments, **options).astype(np.float64)
    exact = iteration(loop, 1, np.float64)
    figures: dict[str, Any] = {}
    for kind in ("features", "sources", "params"):
        for layer, expected in getattr(exact, kind).items():
            size = float(np.sqrt((expected[0] ** 2).mean()))
            whole, halves = getattr(one, kind)[layer], getattr(two, kind)[layer]
            figures[f"{kind} {layer}"] = {
                "one": error(whole, expected, size),
                "two": error(halves, expected, size),
                "apart": error(halves, whole, size),
            }
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
