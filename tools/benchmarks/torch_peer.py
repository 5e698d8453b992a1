"""Measure PyTorch on a case: ``python -m tools.benchmarks.torch_peer CASE STEPS``. Workers use DDP over gloo.

With BENCHMARK_BF16 in the environment it computes under autocast to bfloat16, with BENCHMARK_COMPILED it compiles the
loss by TorchInductor.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from typing import Any

import torch
from torch import distributed, multiprocessing
from torch.nn.parallel import DistributedDataParallel

from tools.benchmarks.cases import CASES, Case
from tools.benchmarks.timing import BF16, COMPILED, figures, print_turns, times
from tools.benchmarks.torch_nets import peer


def training(net: str, batchsize: int, ddp: bool) -> Callable[[], object]:
    """Return the function that runs an iteration."""
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
    return lambda: trained.iterate(batch, precision)


def train_rank(rank: int, case: Case, steps: int, results: Any) -> None:
    """Train as one process of several, and put the figures into the queue ``results``."""
    distributed.init_process_group("gloo", rank=rank, world_size=case.workers)
    results.put(figures(times(training(case.net, case.batch, ddp=True), steps)))
    distributed.destroy_process_group()


def train(name: str, steps: int) -> None:
    """Print the figures of a case, turn by turn; for several processes those of one turn, the largest ones."""
    case = CASES[name]
    if case.workers == 1:
        print_turns(training(case.net, case.batch, ddp=False), steps)
        return
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    results = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(train_rank, (case, steps, results), nprocs=case.workers)
    ranks = [results.get() for _ in range(case.workers)]
    print(json.dumps({key: max(rank_figures[key] for rank_figures in ranks) for key in ranks[0]}))


if __name__ == "__main__":
    train(sys.argv[1], int(sys.argv[2]))
