"""What copies between the device and servers in host memory cost (the paper's figure 20a): none, one by one, beside.

``python -m tests.benchmarks.gpu_copies CASE STEPS`` prints milliseconds of an iteration as JSON:

- "no copy": params stay on the device and are updated there;
- "synchronous": each gradient comes down when it is there, while nothing computes; all values go up before the next
  iteration;
- "overlapped": a thread takes each gradient that has come down, updates its param in host memory and sends the value
  up, while the kernels of other layers run; the next iteration waits for the value that it wants, for no other.

In the last two a CPU does the updates, one after the other, as a server does.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future, ThreadPoolExecutor
from typing import Any

from dsinga.ops import Array, Ops, get_ops
from dsinga.worker.replicated_params import ReplicaState, ReplicatedParams
from tests.benchmarks.cases import GPU_CASES
from tests.benchmarks.gpu_loop import WARM_UP, Loop
from tests.benchmarks.ours import job as job_of


class Server:
    """Params in host memory, updated by each gradient when it has come."""

    def __init__(self, loop: Loop):
        self._loop, self._shapes = loop, {name: p.shape for name, p in loop.net.params.items()}
        self._replica = ReplicatedParams(loop.net.params, loop.updater)
        self._replica.put(ReplicaState(loop.first, None))

    def update(self, name: str, gradient: Any) -> Array:
        """Apply a gradient in host memory; return the new value, of the shape of the param."""
        self._replica.update(
            self._loop.step, name, 0, gradient.reshape(-1) if hasattr(gradient, "reshape") else gradient
        )
        return self.value(name)

    def value(self, name: str) -> Array:
        """Return a value in host memory."""
        return self._replica[name].reshape(self._shapes[name])


class Beside(Mapping[str, Array]):
    """Values on the device that a thread keeps up to date with the server, and the way of gradients to it."""

    def __init__(self, server: Server, ops: Ops, names: list[str]):
        self._server, self._ops = server, ops
        self._thread = ThreadPoolExecutor(1, initializer=ops.enter)
        self._coming: dict[str, Future[Any]] = {
            name: self._thread.submit(lambda name=name: ops.upload(server.value(name))) for name in names
        }

    def __getitem__(self, name: str) -> Array:
        return self._coming[name].result().result()

    def __iter__(self) -> Iterator[str]:
        return iter(self._coming)

    def __len__(self) -> int:
        return len(self._coming)

    def push(self, name: str, gradient: Any) -> None:
        """Send a gradient on its way."""
        down = self._ops.download(gradient)
        self._coming[name] = self._thread.submit(lambda: self._ops.upload(self._server.update(name, down.result())))


def wall_ms(ops: Ops, iterate: Any, steps: int) -> float:
    """Return the mean milliseconds of an iteration on the host's clock, from and to an idle device."""
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
    found = {"no copy": wall_ms(ops, loop.iterate, int(steps))}
    server = Server(loop)

    def synchronous() -> None:
        values = {name: ops.asarray(server.value(name)) for name in loop.net.params}
        ops.synchronize()
        loop.iterate(values, lambda name, gradient: server.update(name, ops.to_numpy(gradient)))

    found["synchronous"] = wall_ms(ops, synchronous, int(steps))
    beside = Beside(server, ops, list(loop.net.params))
    found["overlapped"] = wall_ms(ops, lambda: loop.iterate(beside, beside.push), int(steps))
    return found


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
