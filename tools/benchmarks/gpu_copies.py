"""Measure the cost of copies between the device and servers in host memory (the paper's figure 20a).

``python -m tools.benchmarks.gpu_copies CASE STEPS`` prints milliseconds of an iteration as JSON:

- "no copy": params stay on the device and are updated there;
- "synchronous": each gradient is downloaded when it is computed, while nothing else computes; all values are uploaded
  before the next iteration;
- "overlapped": a thread updates the param of each downloaded gradient in host memory and uploads the value, while the
  kernels of other layers run; each layer of the next iteration waits for its own values only.

In the last two, a CPU core does the updates one after the other, as a server does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dsinga.ops import Array, Ops, get_ops
from dsinga.training.local_updater import LocalUpdater
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import WARM_UP, Loop
from tools.benchmarks.ours import job as job_of


class Server:
    """Params in host memory that are updated by each gradient."""

    def __init__(self, loop: Loop):
        self._loop = loop
        self._replica = LocalUpdater(loop.updater, loop.net.params)
        self._replica.put(loop.first)

    def update(self, name: str, gradient: Any) -> Array:
        """Apply a gradient in host memory; return the new value in the shape of the param."""
        self._replica.update(
            self._loop.step, name, 0, gradient.reshape(-1) if hasattr(gradient, "reshape") else gradient
        )
        return self.value(name)

    def value(self, name: str) -> Array:
        """Return a value in host memory."""
        return self._replica.values[name]


class OverlappedValues(Mapping[str, Array]):
    """Values on the device that a thread refreshes from a server, to which it sends gradients."""

    def __init__(self, server: Server, ops: Ops, names: list[str]):
        self._server, self._ops = server, ops
        self._thread = ThreadPoolExecutor(1, initializer=ops.enter)
        self._uploads: dict[str, Future[Any]] = {
            name: self._thread.submit(lambda name=name: ops.upload(server.value(name))) for name in names
        }

    def __getitem__(self, name: str) -> Array:
        return self._uploads[name].result().result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._uploads)

    def __len__(self) -> int:
        return len(self._uploads)

    def push(self, name: str, gradient: Any) -> None:
        """Start downloading a gradient, updating its param and uploading the value."""
        down = self._ops.download(gradient)
        self._uploads[name] = self._thread.submit(lambda: self._ops.upload(self._server.update(name, down.result())))


def wall_ms(ops: Ops, iterate: Any, steps: int) -> float:
    """Return the mean milliseconds of an iteration on the host's clock, beginning and ending with an idle device."""
    for _ in range(WARM_UP):
        iterate()
    ops.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        iterate()
    ops.synchronize()
    return 1e3 * (time.perf_counter() - started) / steps


def turn(name: str, steps: str) -> dict[str, float]:
    """Return the three figures of a case."""
    case, ops = GPU_CASES[name], get_ops("cupy").for_worker(0)
    loop = Loop(job_of(case.net, case.batch), ops)
    figures = {"no copy": wall_ms(ops, loop.iterate, int(steps))}
    server = Server(loop)

    def synchronous() -> None:
        values = {name: ops.asarray(server.value(name)) for name in loop.net.params}
        ops.synchronize()
        loop.iterate(values, lambda name, gradient: server.update(name, ops.to_numpy(gradient)))

    figures["synchronous"] = wall_ms(ops, synchronous, int(steps))
    values_ = OverlappedValues(server, ops, list(loop.net.params))
    figures["overlapped"] = wall_ms(ops, lambda: loop.iterate(values_, values_.push), int(steps))
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
