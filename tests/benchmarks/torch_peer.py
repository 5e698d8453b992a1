"""Measure eager PyTorch on a case: ``python -m tests.benchmarks.torch_peer CASE STEPS``. Workers use DDP over gloo.
With BENCHMARK_BF16 in the environment it computes under autocast to bfloat16.

``python -m tests.benchmarks.torch_peer NET STEPS BATCH`` is one rank of DDP, of which RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment tell; rank 0 prints the milliseconds of each iteration.
"""

from __future__ import annotations

import json
import os
import resource
import statistics
import sys
import time
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.torch_nets import peer

WARM_UP = 10


def train(net: str, batchsize: int, steps: int, ddp: bool) -> list[float]:
    """Return the milliseconds of each iteration."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    trained = peer(net)
    if ddp:
        parallel = DistributedDataParallel(trained.net, static_graph=True, gradient_as_bucket_view=True)
        trained = trained._replace(net=parallel)
    batch, milliseconds = trained.batch(batchsize), []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        with torch.autocast("cpu", torch.bfloat16, enabled=bool(os.environ.get("BENCHMARK_BF16"))):
            trained.iterate(batch)
        milliseconds.append(1e3 * (time.perf_counter() - started))
    return milliseconds[WARM_UP:]


def measure(case: Case, steps: int) -> dict[str, float]:
    """Return the median milliseconds of an iteration and the peak megabytes of this process."""
    milliseconds = train(case.net, case.batch, steps, ddp=case.workers > 1)
    return {"ms": statistics.median(milliseconds), "mb": resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024}


def train_rank(rank: int, case: Case, steps: int, results: Any) -> None:
    """Train as one process of several, and put the figures into the queue ``results``."""
    distributed.init_process_group("gloo", rank=rank, world_size=case.workers)
    results.put(measure(case, steps))
    distributed.destroy_process_group()


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the figures of a case, for several processes the largest ones."""
    case = CASES[name]
    if case.workers == 1:
        return measure(case, steps)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    results = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(train_rank, (case, steps, results), nprocs=case.workers)
    figures = [results.get() for _ in range(case.workers)]
    return {name: max(rank_figures[name] for rank_figures in figures) for name in ("ms", "mb")}


def rank_of_hosts(net: str, steps: int, batchsize: int) -> list[float]:
    """Return the milliseconds of each iteration of this rank, of which the environment tells."""
    distributed.init_process_group("gloo")
    milliseconds = train(net, batchsize, steps, ddp=True)
    distributed.barrier()
    distributed.destroy_process_group()
    return milliseconds


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    print(json.dumps((rank_of_hosts if len(numbers) > 1 else turn)(name, *map(int, numbers))))
