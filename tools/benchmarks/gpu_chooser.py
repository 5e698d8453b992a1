"""Time all admissible plans of cuDNN, in both layouts, for the convolutions of a net.

``python -m tools.benchmarks.gpu_chooser CASE PRECISION SECONDS`` prints a JSON list: for each convolution its shapes,
and by layout the milliseconds, the name and the megabytes of the plan that the library's heuristics put first, those of
the fastest plan, and how far the results of both layouts are apart. It stops after SECONDS.
"""

from __future__ import annotations

import json
import sys
import time
from typing import Any

import numpy as np

from dsinga.ops import get_ops
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.gpu_loop import Loop
from tools.benchmarks.ours import job as job_of

PLANS = 12  # at most, of each convolution and layout, in the order of the heuristics
RUNS, CALLS = 3, 5


def milliseconds(stream: Any, xp: Any, call: Any) -> float:
    """Return the time of a call, the shortest of RUNS, by the device's clock, of a graph of CALLS calls."""
    call()
    stream.synchronize()
    stream.begin_capture()
    for _ in range(CALLS):
        call()
    graph = stream.end_capture()
    times = []
    for _ in range(RUNS + 1):
        begin, end = xp.cuda.Event(), xp.cuda.Event()
        begin.record(stream)
        graph.launch(stream)
        end.record(stream)
        end.synchronize()
        times.append(float(xp.cuda.get_elapsed_time(begin, end)) / CALLS)
    return min(times[1:])


class Convolution:
    """A convolution in both layouts, with arrays of its own."""

    def __init__(self, ops: Any, problem: Any):
        self._ops, self.problem = ops, problem
        rng = np.random.default_rng(0)
        shapes = {"fprop": (problem.x, problem.w), "dgrad": (problem.w, problem.y), "wgrad": (problem.x, problem.y)}
        self._shapes = shapes[problem.direction]
        self._inputs = [ops.xp.asarray(rng.standard_normal(shape, np.float32)) for shape in self._shapes]

    def arrays(self, channels_last: bool) -> list[Any]:
        """Return the inputs and an output in a layout."""
        from dsinga.addons.gpu.cupy.arrays import cast, to_rows
        from dsinga.addons.gpu.cupy.cudnn_graphs import empty
        from dsinga.ops.types import BFLOAT16

        inputs = [to_rows(x) if channels_last else x for x in self._inputs]
        inputs = [cast(x, BFLOAT16) for x in inputs] if self.problem.bf16 else inputs
        return [*inputs, empty(self.problem.result, inputs[0].dtype, channels_last)]

    def times(self, channels_last: bool, deadline: float) -> tuple[dict[str, Any], Any]:
        """Return the figures of a layout, and the result of its fastest plan."""
        xp, plans = self._ops.xp, self._ops.plans
        handle, frontend = plans._thread.handle, plans._frontend
        problem = self.problem._replace(channels_last=channels_last)
        try:
            graph, tensors = plans._maker.describe(problem, handle, True)
            graph.check_support()
        except (frontend.cudnnGraphNotSupportedError, RuntimeError) as error:
            return {"failed": str(error).splitlines()[0]}, None
        arrays = self.arrays(channels_last)
        pointers = {tensor: int(array.data.ptr) for tensor, array in zip(tensors, arrays, strict=True)}
        timed: list[tuple[float, str, float]] = []
        best, reason = None, ""
        for index in range(graph.get_execution_plan_count()):
            if time.monotonic() > deadline or len(timed) == PLANS:
                break
            try:
                graph.build_plan_at_index(index)
                size = int(graph.get_workspace_size())
                workspace = xp.empty(max(size, 1), np.uint8)
                address = int(workspace.data.ptr)
                ms = milliseconds(
                    self._ops.streams.compute, xp, lambda at=address: graph.execute(pointers, at, handle=handle)
                )
            except (frontend.cudnnGraphNotSupportedError, RuntimeError, ValueError, MemoryError) as error:
                reason = f"{type(error).__name__}: {str(error)[:200]}"
                continue
            timed.append((ms, graph.get_plan_name_at_index(index), size / 1e6))
            if min(timed)[0] == ms:
                best = arrays[2].copy()
        if not timed:
            return {"failed": f"no plan could be built: {reason}"}, None
        first, fastest = timed[0], min(timed)
        return {"first": first, "fastest": fastest, "plans": len(timed)}, best


def turn(name: str, precision: str, seconds: str) -> list[dict[str, Any]]:
    """Return the figures of each convolution of a case."""
    deadline = time.monotonic() + float(seconds)
    case, ops = GPU_CASES[name], get_ops("cupy").for_worker(0, precision)
    loop = Loop(job_of(case.net, case.batch), ops)
    loop.iterate()
    worker: Any = ops
    figures = []
    for problem in list(worker.plans._plans):
        if time.monotonic() > deadline:
            break
        convolution = Convolution(ops, problem)
        row: dict[str, Any] = {"problem": [problem.direction, problem.x, problem.w, problem.y]}
        last, exact = convolution.times(True, deadline)
        row |= {"last": last}
        if not problem.bf16:
            first, other = convolution.times(False, deadline)
            row |= {"first": first}
            if exact is not None and other is not None:
                scale = float((exact**2).mean()) ** 0.5
                row["apart"] = float(((exact - other) ** 2).mean()) ** 0.5 / scale
        figures.append(row)
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
