"""Measure eager PyTorch on a case: ``python -m tests.benchmarks.torch_peer CASE STEPS``. Workers use DDP over gloo."""

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
from tests.benchmarks.torch_nets import loss_of, peer

WARM_UP = 10


def train(case: Case, steps: int, ddp: bool) -> dict[str, float]:
    """Return the median milliseconds of an iteration and the peak megabytes of this process."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, updater, make = peer(case.net)
    if ddp:
        net = DistributedDataParallel(net)
    batch = make(case.batch)
    seconds = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        updater.zero_grad(set_to_none=True)
        loss_of(net, batch).backward()
        if case.net == "char_rnn":
            torch.nn.utils.clip_grad_value_(net.parameters(), 5)
        updater.step()
        seconds.append(time.perf_counter() - started)
    peak = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"ms": 1e3 * statistics.median(seconds[WARM_UP:]), "mb": peak}


def train_rank(rank: int, case: Case, steps: int, results: Any) -> None:
    """Train as one process of several, and put the figures into the queue ``results``."""
    distributed.init_process_group("gloo", rank=rank, world_size=case.workers)
    results.put(train(case, steps, ddp=True))
    distributed.destroy_process_group()


def turn(name: str, steps: int) -> dict[str, float]:
    """Return the figures of a case, for several processes the largest ones."""
    case = CASES[name]
    if case.workers == 1:
        return train(case, steps, ddp=False)
    os.environ.setdefault("MASTER_ADDR", "127.0.0.1")
    os.environ.setdefault("MASTER_PORT", "29511")
    results = multiprocessing.get_context("spawn").Queue()
    multiprocessing.spawn(train_rank, (case, steps, results), nprocs=case.workers)
    figures = [results.get() for _ in range(case.workers)]
    return {name: max(rank_figures[name] for rank_figures in figures) for name in ("ms", "mb")}


if __name__ == "__main__":
    print(json.dumps(turn(sys.argv[1], int(sys.argv[2]))))
