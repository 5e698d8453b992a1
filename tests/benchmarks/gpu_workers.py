"""Compare the params of two workers that share one GPU with those of one worker and of CPU cores.

``python -m tests.benchmarks.gpu_workers CASE`` trains the case three times, each worker a process, and prints the
largest differences of a param, relative to its largest number, as JSON. They should be below 1e-4.
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
from dsinga.api import with_workers
from dsinga.cluster import connect
from dsinga.cluster.run.benchmark import with_synthetic_records
from dsinga.job import ClusterConf, Job
from tests.benchmarks.cases import GPU_CASES
from tests.benchmarks.ours import job as job_of

BATCH, STEPS = 64, 20


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
    """Return the differences to one worker on the GPU."""
    job = job_of(GPU_CASES[name].net, BATCH)
    job = job.replace(train_steps=STEPS, test_freq=0, validate_freq=0, checkpoint_freq=0, checkpoint_path=[])
    with tempfile.TemporaryDirectory(prefix="dsinga-gpu-") as folder:
        job = with_synthetic_records(job, Path(folder))
        single = params_of(job, 1, "gpu")
        return {
            "two workers on the GPU": difference(params_of(job, 2, "gpu"), single),
            "one worker on CPU cores": difference(params_of(job, 1, "cpu"), single),
        }


if __name__ == "__main__":
    print(json.dumps(turn(*sys.argv[1:])))
