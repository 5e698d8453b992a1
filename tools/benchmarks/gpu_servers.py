"""Iterations of one worker with a server in its process, which keeps params in host memory or on the same GPU.

``python -m tools.benchmarks.gpu_servers CASE STEPS`` prints, as JSON, milliseconds of an iteration by the host's clock,
eagerly, kernel by kernel, and as graphs between which params are exchanged, and whether the losses of all four are the
same bits.
"""

from __future__ import annotations

import json
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

from dsinga.addons.planner.benchmark import with_synthetic_records
from dsinga.cutting.cluster_topology import topology
from dsinga.job import Job
from dsinga.ops import Ops, Processor
from tests.support.train_in_threads import create_servers, create_workers, prepare, running, train
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.ours import job as job_of

WARM_UP = 5
PLACES = {"host": None, "GPU": Processor(1, 0)}


class EagerProcessor(Processor):
    """A GPU whose worker captures no graphs."""

    def ops(self) -> Ops:
        """Return kernels without graphs."""
        ops = super().ops()
        ops.new_pass = lambda: None  # type: ignore[method-assign]
        return ops


PROCESSORS = {"eager": EagerProcessor(1, 0), "graphs": Processor(1, 0)}


def iterations(job: Job, processor: Processor, gpu: Processor | None, steps: int) -> tuple[float, list[float]]:
    """Return the milliseconds of an iteration, and the losses of all."""
    config, values = prepare(job, topology(job, 1, 1), ())
    with running(config) as workers:
        shards = create_servers(config, values, gpu)
        workers += create_workers(config, values, processor=processor)
        reports = train(workers, 0, WARM_UP)
        started = time.perf_counter()
        reports += train(workers, WARM_UP, WARM_UP + steps)
        for shard in shards:
            shard.snapshot(WARM_UP + steps, 60.0, state=False)  # waits for the last update
        seconds = time.perf_counter() - started
    return 1e3 * seconds / steps, [metrics["loss"][0] for report in reports for metrics in report.metrics]


def turn(name: str, steps: str) -> dict[str, Any]:
    """Return the figures of a case."""
    figures: dict[str, Any] = {}
    curves = []
    with tempfile.TemporaryDirectory(prefix="dsinga-gpu-") as folder:
        job = job_of(GPU_CASES[name].net, GPU_CASES[name].batch)
        job = job.replace(test_freq=0, validate_freq=0, train_steps=WARM_UP + int(steps))
        job = with_synthetic_records(job, Path(folder))
        for place, gpu in PLACES.items():
            for way, processor in PROCESSORS.items():
                figures[f"{place}, {way}"], losses = iterations(job, processor, gpu, int(steps))
                curves.append(losses)
    figures["losses equal"] = all(curve == curves[0] for curve in curves)
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
