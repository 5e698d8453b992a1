"""Compare CD-1 on a restricted Boltzmann machine 784-1000, batch 100, one thread, in dsinga and in PyTorch.

``python tests/benchmarks/bench_rbm.py [TURNS]`` in the root of the checkout. Both take turns in one process, iteration
by iteration, so that other work of the machine slows both. An iteration is all of SINGA's examples/rbm/rbm1.conf except
reading: bytes to numbers in [0, 1], three products, random numbers, the reconstruction error, gradients, momentum and
weight decay. Prints medians of the thread's processor time, and the quartiles of the ratio of successive iterations.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import statistics
import sys
import time
from collections.abc import Callable

import numpy as np
import torch

from dsinga.job import AlgConf, LayerConf, NetConf, Phase, UpdaterConf
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import algorithm, create_updater, initial_values

BATCH, VISIBLE, HIDDEN = 100, 784, 1000
RATE, MOMENTUM, DECAY = 0.1, 0.8, 0.0002
WARM_UP = 20
IMAGES = np.random.default_rng(0).integers(0, 256, (BATCH, VISIBLE)).astype(np.uint8)


def ours() -> Callable[[int], float]:
    """Return a function that runs an iteration of dsinga and returns the reconstruction error."""
    weight = {"name": "w", "init": {"type": "kGaussian", "std": 0.1}}
    bias = {"wd_scale": 0}
    layers = [
        LayerConf(name="data", type="kRecordInput"),
        LayerConf(name="vis", type="kRBMVis", srclayers=["data", "hid"], param=[weight, bias]),
        LayerConf(name="hid", type="kRBMHid", srclayers=["vis"], param=[{"share_from": "w"}, bias]),
    ]
    for layer in layers[1:]:
        layer.rbm_conf = {"hdim": HIDDEN}
    net = create_net(NetConf(layer=layers), Phase.kTrain, {"data": RecordInfo((VISIBLE,), BATCH, std=255)})
    updater = create_updater(
        UpdaterConf(
            type="kSGD", momentum=MOMENTUM, weight_decay=DECAY, learning_rate={"type": "kFixed", "base_lr": RATE}
        )
    )
    values = initial_values(net.params, 0)
    state = {name: updater.create_state(value.size) for name, value in values.items()}
    ops, run = get_ops(), algorithm(AlgConf(alg="kCD"))
    ops.set_threads(1)

    def iterate(step: int) -> float:
        def push(name: str, gradient: np.ndarray) -> None:
            scale = net.params[name].wd_scale
            updater.update(step, values[name].reshape(-1), gradient.reshape(-1), state[name], 1.0, scale)

        ctx = Context(ops, Phase.kTrain, Rows(0, BATCH, BATCH), 0, step)
        return run(net, values, {"data": Records(IMAGES)}, ctx, push)["reconstruction_error"][0] / BATCH

    return iterate


def theirs() -> Callable[[int], float]:
    """Return a function that runs the same iteration in eager PyTorch, with its fused updater."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    images = torch.from_numpy(IMAGES)
    w, a, b = 0.1 * torch.randn(HIDDEN, VISIBLE), torch.zeros(VISIBLE), torch.zeros(HIDDEN)
    groups = [{"params": [w], "weight_decay": DECAY}, {"params": [a, b], "weight_decay": 0.0}]
    updater = torch.optim.SGD(groups, lr=RATE, momentum=MOMENTUM, fused=True)

    @torch.no_grad()
    def iterate(step: int) -> float:
        v = images.to(torch.float32).mul_(1 / 255)
        h = torch.addmm(b, v, w.t()).sigmoid_()
        v2 = torch.addmm(a, torch.bernoulli(h), w).sigmoid_()
        h2 = torch.addmm(b, v2, w.t()).sigmoid_()
        w.grad = torch.mm(h2.t(), v2).addmm_(h.t(), v, alpha=-1 / BATCH, beta=1 / BATCH)
        difference = v2 - v
        a.grad = difference.sum(dim=0).div_(BATCH)
        b.grad = (h2 - h).sum(dim=0).div_(BATCH)
        updater.step()
        return float(difference.square_().sum()) / BATCH

    return iterate


def main(turns: int) -> None:
    """Print the milliseconds of an iteration, and the ratio."""
    runs = {"dsinga": ours(), "PyTorch": theirs()}
    seconds: dict[str, list[float]] = {name: [] for name in runs}
    errors: dict[str, float] = {}
    for step in range(WARM_UP + turns):
        for name, run in runs.items():
            started = time.thread_time()
            errors[name] = run(step)
            seconds[name].append(time.thread_time() - started)
    for name, times in seconds.items():
        times[:] = times[WARM_UP:]
        print(
            f"{name:8} {1e3 * statistics.median(times):6.2f} ms, best {1e3 * min(times):6.2f}; error {errors[name]:.1f}"
        )
    ratios = [ours_ / theirs_ for ours_, theirs_ in zip(seconds["dsinga"], seconds["PyTorch"], strict=True)]
    low, middle, high = statistics.quantiles(ratios, n=4)
    print(f"ratio {middle:.2f} ({low:.2f} to {high:.2f})")


if __name__ == "__main__":
    main(int(sys.argv[1]) if len(sys.argv) > 1 else 200)
