"""Iterations on a GPU as one CUDA graph each, beside the same iterations run eagerly, kernel by kernel.

``python -m tools.benchmarks.gpu_capture CASE PRECISION STEPS`` prints, as JSON, milliseconds of an iteration and of the
host in it, whether losses and params of both have the same bits, whether a step that is not finite leaves the params
alone, and the memory that the graph holds.
"""

from __future__ import annotations

import json
import sys
import time
from collections.abc import Mapping
from typing import Any

import numpy as np

from dsinga.job import Job, Phase
from dsinga.layers import Context, Records
from dsinga.ops import get_ops
from dsinga.passes.captured_pass import CapturedPass
from dsinga.passes.captured_passes import CapturedPasses
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import Loop, milliseconds
from tools.benchmarks.ours import job as job_of

CURVE = 100  # steps of the curves of losses that are compared
BAD_STEP = 50


class CapturedLoop(Loop):
    """The same iterations, each by one graph; ``fallback`` says why not, if they are not."""

    def __init__(self, job: Job, ops: Any):
        super().__init__(job, ops)
        self.passes = CapturedPasses(ops, "iterations of the benchmark")
        self._running: CapturedPass | None = None

    @property
    def fallback(self) -> str:
        """Why iterations are not captured, "" if they are."""
        return "; ".join(self.passes.failures)

    def iterate(self, *_: Any) -> dict[str, Any]:
        metrics = self.attempt(self.records)
        if metrics is None:
            self.params.discard()
            return super().iterate()
        self.step += 1
        return metrics

    def iterate_ahead(self) -> None:
        """Launch an iteration, then wait for the metrics of the one before, as a worker does."""
        launched = self.passes.launch("iteration", self.records, self.step, self._running)
        assert launched is not None, self.fallback
        self.step += 1
        if self._running is not None:
            assert self.passes.finish(self._running, self.net) is not None
        self._running = launched

    def attempt(self, records: Mapping[str, Records]) -> dict[str, Any] | None:
        """Run an iteration by a graph; None where it has changed nothing."""

        def compute(on_device: Mapping[str, Records], _: Mapping[str, Any], ctx: Context) -> None:
            self.params.steps = self.step
            self.train(self.net, self.params.values, on_device, ctx, self.params.push)
            self.params.finish()

        ctx = Context(self.ops, Phase.kTrain, self.rows, self.job.seed, self.step)
        result = self.passes.compute("iteration", self.net, records, ctx, compute)
        return None if result is None else result.metrics


def curve(loop: Loop, records: Mapping[str, Records], steps: int) -> list[float]:
    """Return the losses of ``steps`` iterations, each on the labels or codes of the one before, moved by a row."""
    losses = []
    for step in range(steps):
        loop.records = moved(records, step)
        losses.append(loop.iterate()["loss"][0])
    return losses


def moved(records: Mapping[str, Records], step: int) -> dict[str, Records]:
    """Return records whose arrays in host memory are rolled by ``step`` rows."""

    def roll(array: Any) -> Any:
        return np.roll(array, step, axis=0) if type(array) is np.ndarray else array

    return {name: batch._replace(data=roll(batch.data), labels=roll(batch.labels)) for name, batch in records.items()}


def with_bad_labels(records: Mapping[str, Records]) -> dict[str, Records]:
    """Return records with labels or codes that none of the net's classes is, for which the loss is not finite."""

    def bad(array: Any) -> Any:
        return np.full_like(array, 2**20) if type(array) is np.ndarray and array.dtype.kind in "iu" else array

    return {
        name: batch._replace(data=bad(batch.data) if batch.labels is None else batch.data, labels=bad(batch.labels))
        for name, batch in records.items()
    }


def values(loop: Loop) -> dict[str, np.ndarray]:
    """Return copies of the params and of the updater's state in host memory."""
    slots = loop.params.copy_state().items()
    return loop.params.copy_values() | {f"{name} {slot}": a for name, arrays in slots for slot, a in arrays.items()}


def same(first: Mapping[str, np.ndarray], second: Mapping[str, np.ndarray]) -> bool:
    """Whether two sets of arrays have the same bits."""
    return all(array.tobytes() == second[name].tobytes() for name, array in first.items())


def host_ms(loop: Loop, steps: int) -> float:
    """Return the milliseconds of an iteration by the clock of the host."""
    loop.ops.synchronize()
    started = time.perf_counter()
    for _ in range(steps):
        loop.iterate()
    loop.ops.synchronize()
    return 1e3 * (time.perf_counter() - started) / steps


def launch_ms(loop: CapturedLoop, steps: int) -> float | None:
    """Return the milliseconds of the kernels alone: graphs launched one after another, without the host between."""
    graphs = [captured.memory for captured in loop.passes.values() if captured.memory.captured]
    if not graphs:
        return None
    loop.ops.synchronize()
    event = loop.ops.xp.cuda.Event
    begin, end = event(), event()
    begin.record()
    for _ in range(steps):
        graphs[0].launch(loop.step)
    end.record()
    end.synchronize()
    return float(loop.ops.xp.cuda.get_elapsed_time(begin, end)) / steps


def turn(name: str, precision: str, steps: str) -> dict[str, Any]:
    """Return the figures of a case."""
    case = GPU_CASES[name]
    loops: list[Any] = []
    for kind in (Loop, CapturedLoop):
        loops.append(kind(job_of(case.net, case.batch), get_ops("cupy").for_worker(0, precision)))
    eager, captured = loops
    figures: dict[str, Any] = {}
    count = min(CURVE, 2 * int(steps))
    records = eager.records
    eager.ops.enter()
    losses = curve(eager, records, count)
    captured.ops.enter()
    of_graph = curve(captured, captured.records, min(BAD_STEP, count // 2))
    captured.records = first = moved(records, len(of_graph))
    before = values(captured)
    refused = captured.attempt(with_bad_labels(first)) is None
    figures["a bad step changes nothing"] = refused and same(before, values(captured))
    captured.params.discard()
    for step in range(len(of_graph), count):
        captured.records = moved(records, step)
        of_graph.append(captured.iterate()["loss"][0])
    figures["losses equal"] = losses == of_graph
    figures["params equal"] = same(values(eager), values(captured))
    figures["first losses"], figures["first losses of graphs"] = losses[:5], of_graph[:5]
    figures["not captured because"] = captured.fallback
    figures["graph mb"] = captured.passes.nbytes / 1e6
    figures["graph host ms"] = host_ms(captured, int(steps))
    figures["graph ms"] = milliseconds(captured.ops, captured.iterate, int(steps))
    if not captured.fallback:
        figures["graph ms, metrics a step late"] = milliseconds(captured.ops, captured.iterate_ahead, int(steps))
    figures["graph kernels ms"] = launch_ms(captured, int(steps))
    eager.ops.enter()
    figures["eager ms"] = milliseconds(eager.ops, eager.iterate, int(steps))
    figures["runs"] = eager.ops.describe()
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
