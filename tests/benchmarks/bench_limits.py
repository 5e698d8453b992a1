"""How near a case can come to its goal with the kernels there are: ``python -m tests.benchmarks.bench_limits CASE``.

dsinga and PyTorch train in turn in this process, one thread each (OMP_NUM_THREADS=1). For every kind of work the table
has the time that each of them spends in it, and the shorter one. The sum of the shorter ones is the time of a program
with the better kernels of both and no other cost: its share of PyTorch's iteration is the limit. The real limit is
higher, for the clearing of memory for a pooling's gradient and the update in Python are not counted for PyTorch.

The limit of the core is lower still: the operations of convolutions and products alone, at the rate of a large product,
as if memory, all other layers and the update took no time.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

import click
import numpy as np
import torch
from distributed import Client
from torch.profiler import ProfilerActivity, profile

from dsinga.cluster import connect
from dsinga.cluster.run.benchmark import measure
from tests.benchmarks.cases import CASES
from tests.benchmarks.ours import job
from tests.benchmarks.torch_nets import loss_of, peer

STEPS = 12  # iterations of a turn
KINDS = {
    "kConvolution": "convolution",
    "kPooling": "pooling",
    "kBM": "normalisation",
    "kLRN": "normalisation",
    "kInnerProduct": "inner products",
    "kReLU": "elementwise",
    "kSTanh": "elementwise",
    "kAdd": "elementwise",
    "kSplit": "elementwise",
    "kDropout": "elementwise",
    "kSoftmaxLoss": "loss",
}
OPERATIONS = {
    "aten::mkldnn_convolution": "convolution, forward",
    "aten::convolution_backward": "convolution, backward",
    "aten::max_pool2d_with_indices": "pooling, forward",
    "aten::max_pool2d_with_indices_backward": "pooling, backward",
    "aten::native_batch_norm": "normalisation, forward",
    "aten::native_batch_norm_backward": "normalisation, backward",
    "aten::mm": "inner products",
    "aten::addmm": "inner products",
    "aten::clamp_min": "elementwise",
    "aten::threshold_backward": "elementwise",
    "aten::tanh": "elementwise",
    "aten::tanh_backward": "elementwise",
    "aten::add": "elementwise",
    "aten::add_": "update",
    "aten::mul_": "update",
}
FUSED = ("normalisation, forward", "normalisation, backward", "elementwise")
"""Kinds with one row in the table where dsinga computes such layers as one (dsinga.net.fusion)."""
HEAVY = ("kConvolution", "kInnerProduct")
BY_PASS = ("convolution", "pooling", "normalisation")

Milliseconds = Mapping[str, float]

LARGE = 1024  # rows and columns of the product that gives the rate of the core


class Turn(NamedTuple):
    """One measurement: an iteration, each kind of work in it, and billions of operations a second and in all."""

    whole: float
    kinds: Milliseconds
    peak: float = 0.0
    operations: float = 0.0


def peak() -> float:
    """Return the billions of operations a second of a large numpy product, the best of several."""
    x = np.ones((LARGE, LARGE), np.float32)
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        x @ x
        seconds.append(time.perf_counter() - started)
    return 2e-9 * LARGE**3 / min(seconds)


def ours(name: str, client: Client) -> Turn:
    """Train dsinga's net of a case."""
    conf = job(CASES[name].net, CASES[name].batch)
    result = measure(conf, client, steps=STEPS, synthetic=True, profiled=True)["profile"]
    kinds: dict[str, float] = defaultdict(float)
    for row in result["rows"]:
        kind = KINDS.get(row["type"], "update" if row["pass"] == "update" else "")
        kinds[f"{kind}, {row['pass']}" if kind in BY_PASS else kind] += row["ms"]
    kinds.pop("", None)  # reading records, and the overhead of the passes
    heavy = [row for row in result["rows"] if row["type"] in HEAVY]
    return Turn(
        result["ms_per_iteration"], kinds, peak(), sum(1e-3 * row["ms"] * row["gflop_per_second"] for row in heavy)
    )


def theirs(train: Callable[[], None]) -> Turn:
    """Train PyTorch's net. The kinds come from its profiler, the iteration from a run without it."""
    seconds = []
    for _ in range(STEPS):
        started = time.perf_counter()
        train()
        seconds.append(time.perf_counter() - started)
    with profile(activities=[ProfilerActivity.CPU]) as profiler:
        for _ in range(STEPS):
            train()
    kinds: dict[str, float] = defaultdict(float)
    for event in profiler.key_averages():
        if event.key in OPERATIONS:
            kinds[OPERATIONS[event.key]] += 1e-3 * event.self_cpu_time_total / STEPS
    return Turn(1e3 * statistics.median(seconds), kinds)


def torch_iteration(name: str) -> Callable[[], None]:
    """Return a function that trains PyTorch's net of a case for an iteration."""
    torch.set_num_threads(1)
    net, updater, make = peer(CASES[name].net)
    batch = make(CASES[name].batch)

    def train() -> None:
        updater.zero_grad(set_to_none=True)
        loss_of(net, batch).backward()
        updater.step()

    return train


def with_fused_kinds(turn: Turn) -> Turn:
    """Return the turn with the time of the FUSED kinds as that of one kind."""
    kinds = {kind: ms for kind, ms in turn.kinds.items() if kind not in FUSED}
    return turn._replace(kinds=kinds | {"normalisation and elementwise": sum(turn.kinds[kind] for kind in FUSED)})


def median(turns: Sequence[Turn]) -> Turn:
    """Return the medians of turns."""
    kinds = {kind: statistics.median(turn.kinds[kind] for turn in turns) for kind in turns[0].kinds}
    rest = (statistics.median(getattr(turn, name) for turn in turns) for name in ("peak", "operations"))
    return Turn(statistics.median(turn.whole for turn in turns), kinds, *rest)


@click.command()
@click.argument("name", type=click.Choice([name for name, case in CASES.items() if case.workers == 1]))
@click.option("--turns", default=3, show_default=True)
def main(name: str, turns: int) -> None:
    """Print the table of a case, and the limit."""
    train = torch_iteration(name)
    with connect(workers=1) as client:
        turns_of_both = [(ours(name, client), theirs(train)) for _ in range(turns)]
    if CASES[name].net == "resnet":
        turns_of_both = [(with_fused_kinds(own), with_fused_kinds(torch)) for own, torch in turns_of_both]
    whole, kinds, fastest, operations = median([own for own, _ in turns_of_both])
    peer_whole, peer_kinds, *_ = median([torch for _, torch in turns_of_both])
    shorter = {kind: min(ms, peer_kinds.get(kind, ms)) for kind, ms in kinds.items()}
    click.echo("| kind of work | dsinga ms | PyTorch ms | the shorter |\n| " + "--- | " * 4)
    for kind, ms in sorted(kinds.items(), key=lambda pair: -pair[1]):
        peer_cell = f"{peer_kinds[kind]:.2f}" if kind in peer_kinds else "-"
        click.echo(f"| {kind} | {ms:.2f} | {peer_cell} | {shorter[kind]:.2f} |")
    click.echo(f"| iteration | {whole:.2f} | {peer_whole:.2f} | {sum(shorter.values()):.2f} |")
    limit = sum(shorter.values()) / peer_whole
    click.echo(f"\n{whole / peer_whole:.2f} of PyTorch's time; limit {limit:.2f}; goal {CASES[name].goal:.2f}")
    least = 1e3 * operations / fastest
    work = f"{operations:.2f} billion operations at the {fastest:.0f} GFLOP/s of a product of {LARGE}³"
    click.echo(f"{work} take {least:.2f} ms: {least / peer_whole:.2f} of PyTorch's time")


if __name__ == "__main__":
    main()
