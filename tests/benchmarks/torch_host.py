"""One rank of PyTorch DDP on a host: ``python -m tests.benchmarks.torch_host RANK RANKS NET BATCH STEPS``.

Rank 0 prints the milliseconds of each iteration as JSON. MASTER_ADDR and MASTER_PORT are its address.
"""

from __future__ import annotations

import json
import sys
import time

import torch
from torch import distributed, nn
from torch.nn.parallel import DistributedDataParallel

from tests.benchmarks.torch_nets import NETS

WARM_UP = 3


def net_of(name: str) -> tuple[nn.Module, int, int, dict[str, float]]:
    """Return a net, its numbers of inputs and classes, and the options of its SGD updater."""
    if name == "mlp":
        return NETS["mlp"](), 784, 10, {"lr": 0.001}
    assert name == "alexnet-fc", name
    layers = [
        nn.Linear(9216, 4096), nn.ReLU(), nn.Dropout(0.5), nn.Linear(4096, 4096), nn.ReLU(), nn.Dropout(0.5),
        nn.Linear(4096, 1000),
    ]  # fmt: skip
    return nn.Sequential(*layers), 9216, 1000, {"lr": 0.001, "momentum": 0.9}


def train(name: str, batch: int, steps: int) -> list[float]:
    """Return the milliseconds of each iteration."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net, inputs, classes, options = net_of(name)
    x, labels = torch.rand(batch, inputs), torch.randint(0, classes, (batch,))
    ddp = DistributedDataParallel(net, static_graph=True, gradient_as_bucket_view=True)
    updater = torch.optim.SGD(ddp.parameters(), **options)
    milliseconds = []
    for _ in range(WARM_UP + steps):
        started = time.perf_counter()
        updater.zero_grad(set_to_none=True)
        nn.functional.cross_entropy(ddp(x), labels).backward()
        updater.step()
        milliseconds.append(1e3 * (time.perf_counter() - started))
    return milliseconds[WARM_UP:]


def main() -> None:
    """Train as one rank."""
    rank, ranks, name, batch, steps = sys.argv[1:]
    distributed.init_process_group("gloo", rank=int(rank), world_size=int(ranks))
    milliseconds = train(name, int(batch), int(steps))
    if rank == "0":
        print(json.dumps(milliseconds))
    distributed.barrier()
    distributed.destroy_process_group()


if __name__ == "__main__":
    main()
