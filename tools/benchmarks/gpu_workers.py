"""Compare the params of two workers that share one GPU with those of one worker, and with CPU cores.

``python -m tools.benchmarks.gpu_workers CASE`` trains the case for 5 and for 20 steps, each worker a process, and
prints the largest differences of a param, relative to its largest number, as JSON. After 5 steps they should be below
1e-4. Rounding errors of float32 grow from step to step, with exact kernels too: two libraries for CPU cores differ by
6e-6 after 5 steps and by 6e-4 after 20, so those of CPU cores stand beside those of the GPU.
"""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import Any

import dask
import numpy as np

import dsinga
from dsinga.addons.planner.benchmark import with_synthetic_records
from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.job import ClusterConf, Job
from tools.benchmarks.cases import GPU_CASES
from tools.benchmarks.ours import job as job_of

BATCH, STEPS = 64, (5, 20)


def params_of(job: Job, workers: int, device: str) -> dict[str, np.ndarray]:
    """Return the params after training."""
    case_job = with_workers(job, workers)
    case_job = case_job.replace(cluster=(case_job.cluster or ClusterConf()).replace(nservers_per_group=workers))
    with dask.config.set({"dsinga.device": device}), connect(workers=workers, separate_processes=True) as client:
        return dsinga.train(case_job, client, progress=False).params


def difference(params: dict[str, np.ndarray], expected: dict[str, np.ndarray]) -> float:
    """Return the largest difference of a param, relative to its largest number."""
    return max(
        float(np.abs(params[name] - expected[name]).max() / max(np.abs(expected[name]).max(), 1e-8))
        for name in expected
    )


def turn(name: str) -> dict[str, Any]:
    """Return by steps the differences of two workers to one, on the GPU and on CPU cores, and of both kinds."""
    job = job_of(GPU_CASES[name].net, BATCH)
    job = job.replace(test_freq=0, validate_freq=0, checkpoint_freq=0, checkpoint_path=[])
    figures: dict[str, Any] = {}
    with tempfile.TemporaryDirectory(prefix="dsinga-gpu-") as folder:
        job = with_synthetic_records(job, Path(folder))
        for steps in STEPS:
            short = job.replace(train_steps=steps)
            one, two = (params_of(short, workers, "gpu") for workers in (1, 2))
            one_cpu, two_cpu = (params_of(short, workers, "cpu") for workers in (1, 2))
            figures[f"{steps} steps"] = {
                "two workers on the GPU": difference(two, one),
                "two workers on CPU cores": difference(two_cpu, one_cpu),
                "CPU cores instead of the GPU": difference(one_cpu, one),
            }
    return figures


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
