"""Measure PyTorch on a case: ``python -m tests.benchmarks.torch_peer CASE STEPS``. Workers use DDP over gloo.

With BENCHMARK_BF16 in the environment it computes under autocast to bfloat16, with BENCHMARK_COMPILED it compiles the
loss by TorchInductor.

``python -m tests.benchmarks.torch_peer NET STEPS BATCH`` is one rank of DDP, of which RANK, WORLD_SIZE, MASTER_ADDR and
MASTER_PORT in the environment tell; rank 0 prints the milliseconds of each iteration.
"""

from __future__ import annotations

import json
import os
import sys
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.cases import CASES, Case
from tests.benchmarks.timing import BF16, COMPILED, WARM_UP, figures, times
from tests.benchmarks.torch_nets import peer


def train(net: str, batchsize: int, steps: int, ddp: bool) -> list[float]:
    """Return the milliseconds of each iteration, the warm-up first."""
    torch.set_num_threads(1)
    torch.set_flush_denormal(True)
    torch.manual_seed(0)
    trained = peer(net)
    if ddp:
        parallel = DistributedDataParallel(trained.net, static_graph=True, gradient_as_bucket_view=True)
        trained = trained._replace(net=parallel)
    if COMPILED:
        trained = trained.compiled()
    batch = trained.batch(batchsize)
    precision = torch.autocast("cpu", torch.bfloat16) if BF16 else None
    return times(lambda: trained.iterate(batch, precision), steps)


def train_rank(rank: int, case: Case, steps: int, results: Any) -> None:
    """Train as one process of several, and put the figures into the queue ``results``."""
    distributed.init_process_group("gloo", rank=rank, world_size=case.workers)
    results.put(figures(train(case.net, case.batch, steps, ddp=True)))
    distributed.destroy_process_group()


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the figures of a case, for several processes the largest ones."""
    case = CASES[name]
    if case.workers == 1:
        return figures(train(case.net, case.batch, steps, ddp=False))
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    results = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(train_rank, (case, steps, results), nprocs=case.workers)
    ranks = [results.get() for _ in range(case.workers)]
    return {key: max(rank_figures[key] for rank_figures in ranks) for key in ranks[0]}


def rank_of_hosts(net: str, steps: int, batchsize: int) -> list[float]:
    """Return the milliseconds of each iteration of this rank, of which the environment tells."""
    distributed.init_process_group("gloo")
    milliseconds = train(net, batchsize, steps, ddp=True)[WARM_UP:]
    distributed.barrier()
    distributed.destroy_process_group()
    return milliseconds


if __name__ == "__main__":
    name, *numbers = sys.argv[1:]
    print(json.dumps((rank_of_hosts if len(numbers) > 1 else turn)(name, *map(int, numbers))))
