"""SINGA's CIFAR-10 convnet, trained by dsinga and by PyTorch in turn: ``python tests/benchmarks/bench_cifar10.py``.

One core, batch 64, float32, SGD with momentum and weight decay; the same net with SINGA's floor rule (32-15-7-3). Each
turn is a process of its own; the figures are medians of iterations, and the ratio is that of the medians of turns.
"""

from __future__ import annotations

import json
import os
import statistics
import subprocess
import sys
import time
from pathlib import Path

CONF = Path(__file__).parents[2] / "datasets" / "cifar10" / "convnet.conf"
BATCH, STEPS, TURNS = 64, 60, 5


def dsinga() -> float:
    """Return milliseconds of an iteration of dsinga."""
    from dsinga.api import with_workers
    from dsinga.bench import measure
    from dsinga.cluster import connect
    from dsinga.job import load

    job = with_workers(load(CONF, [f"neuralnet.layer[data,kTrain].store_conf.batchsize={BATCH}"]), 1)
    with connect(workers=1) as client:
        return measure(job, client, steps=STEPS, synthetic=True, data_root=None)["ms_per_iteration"]


def pytorch() -> float:
    """Return milliseconds of an iteration of PyTorch, eager, channels-last."""
    import torch
    from torch import nn

    torch.set_num_threads(1)
    lrn = {"alpha": 5e-5, "beta": 0.75, "k": 1.0}
    net = nn.Sequential(
        nn.Conv2d(3, 32, 5, padding=2), nn.MaxPool2d(3, 2), nn.ReLU(), nn.LocalResponseNorm(3, **lrn),
        nn.Conv2d(32, 32, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.LocalResponseNorm(3, **lrn),
        nn.Conv2d(32, 64, 5, padding=2), nn.ReLU(), nn.AvgPool2d(3, 2), nn.Flatten(), nn.Linear(576, 10),
    ).to(memory_format=torch.channels_last)  # fmt: skip
    updater = torch.optim.SGD(net.parameters(), lr=0.001, momentum=0.9, weight_decay=0.004)
    images = torch.randint(0, 256, (BATCH, 3, 32, 32), dtype=torch.uint8)
    labels = torch.randint(0, 10, (BATCH,))
    seconds = []
    for _ in range(10 + STEPS):
        started = time.perf_counter()
        updater.zero_grad(set_to_none=True)
        x = images.float().contiguous(memory_format=torch.channels_last)
        nn.functional.cross_entropy(net(x), labels).backward()
        updater.step()
        seconds.append(time.perf_counter() - started)
    return 1e3 * statistics.median(seconds[10:])


def main() -> None:
    """Run the turns, or one of them where its name is the argument."""
    if len(sys.argv) > 1:
        os.sched_setaffinity(0, {min(os.sched_getaffinity(0))})
        print(json.dumps({"dsinga": dsinga, "pytorch": pytorch}[sys.argv[1]]()))
        return
    turns: dict[str, list[float]] = {"dsinga": [], "pytorch": []}
    for _ in range(TURNS):
        for name, times in turns.items():
            done = subprocess.run([sys.executable, __file__, name], capture_output=True, text=True, check=True)
            times.append(json.loads(done.stdout))
    for name, times in turns.items():
        print(f"{name:8} {statistics.median(times):6.2f} ms   turns: {', '.join(f'{t:.2f}' for t in times)}")
    print(f"ratio    {statistics.median(turns['dsinga']) / statistics.median(turns['pytorch']):6.2f}")


if __name__ == "__main__":
    main()
