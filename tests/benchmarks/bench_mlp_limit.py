"""What the MNIST MLP cannot be faster than: ``python -m tests.benchmarks.bench_mlp_limit``, in the checkout's root.

Each matrix product of an iteration alone, by the fastest of the libraries at hand, and one pass over weights and their
gradients, the least that an update moves; then an iteration of dsinga, then one of PyTorch; all of this again and
again, for the machine's speed changes within seconds. One thread, one process, medians.

PyTorch hands its gradients' memory back in every iteration, and the system may map and clear it anew, page by page: so
the pages that it met are counted, and for the second half of the rounds the C library is told to keep what it has.
"""

from __future__ import annotations

import ctypes
import os
import resource
import statistics
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from itertools import pairwise
from pathlib import Path
from typing import NamedTuple

import click
import numpy as np
import torch

from dsinga.bench import _with_synthetic_records
from dsinga.cluster.feed import open_feed
from dsinga.job import Phase
from dsinga.net import create_net
from dsinga.ops import Array, get_ops
from dsinga.profile import Clock, _iterations
from tests.benchmarks.ours import job
from tests.benchmarks.torch_nets import loss_of, peer

NET, BATCH = "mlp", 64
WIDTHS = (784, 2500, 2000, 1500, 1000, 500, 10)
WARM_UP = 3  # rounds
M_TRIM_THRESHOLD, M_MMAP_THRESHOLD = -1, -3  # of glibc's mallopt


class Product(NamedTuple):
    """One product of an iteration: ``ways`` are what may be multiplied by what, in memory orders to choose."""

    name: str
    operations: int
    out: Array
    ways: list[tuple[Array, Array]]


def products(batch: int) -> list[Product]:
    """Return the products of an iteration.

    Forward may have the weight stored either way, though backward wants the one that is slower there.
    """
    rng, found = np.random.default_rng(0), []
    for number, (inputs, outputs) in enumerate(pairwise(WIDTHS)):
        x, dy = (rng.standard_normal((batch, width), dtype=np.float32) for width in (inputs, outputs))
        w = rng.standard_normal((outputs, inputs), dtype=np.float32)
        y, dx, dw = np.empty_like(dy), np.empty_like(x), np.empty_like(w)
        operations = 2 * batch * inputs * outputs
        found.append(Product("forward", operations, y, [(x, w.T), (x, np.ascontiguousarray(w.T))]))
        found.append(Product("dw", operations, dw, [(dy.T, x)]))
        if number > 0:
            found.append(Product("dx", operations, dx, [(dy, w)]))
    return found


def limits(products: Sequence[Product]) -> dict[str, list[float]]:
    """Return the seconds of each way of each product, and of the least update, each run once, keyed by its name."""
    multiply = (lambda a, b, out: np.matmul(a, b, out=out), get_ops("onednn").multiply_into)
    seconds: dict[str, list[float]] = {}
    for one, (name, _, out, ways) in enumerate(products):
        seconds[f"{name} {one}"] = [timed(library, a, b, out) for a, b in ways for library in multiply]
    weights = [product.ways[0][1].T for product in products if product.name == "forward"]
    gradients = [product.out for product in products if product.name == "dw"]
    passes = [timed(np.add, w, g, g) for w, g in zip(weights, gradients, strict=True)]
    seconds["update"] = [sum(passes)]
    return seconds


def timed(call: Callable[..., object], *arguments: Array) -> float:
    """Return the seconds of processor time that a call takes."""
    started = time.thread_time()
    call(*arguments)
    return time.thread_time() - started


def ours(rounds: int) -> Iterator[float]:
    """Train by dsinga; yield the seconds of each iteration."""
    with tempfile.TemporaryDirectory() as folder:
        wanted = _with_synthetic_records(job(NET, BATCH), Path(folder))
        feed = open_feed(wanted, Phase.kTrain, 1, ())
        yield from _iterations(wanted, create_net(wanted.neuralnet, Phase.kTrain, feed.infos), feed, Clock(), rounds)


def pytorch(rounds: int) -> Iterator[float]:
    """Train by PyTorch; yield the seconds of each iteration."""
    torch.set_num_threads(1)
    net, updater, make = peer(NET)
    batch = make(BATCH)
    for _ in range(rounds):
        started = time.perf_counter()
        updater.zero_grad(set_to_none=True)
        loss_of(net, batch).backward()
        updater.step()
        yield time.perf_counter() - started


def pages() -> int:
    """Return how many pages this process has met."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt


@click.command()
@click.option("--rounds", default=15, show_default=True, help="In each half.")
def main(rounds: int) -> None:
    """Print the least times, their sum, and whole iterations beside it."""
    os.sched_setaffinity(0, sorted(os.sched_getaffinity(0))[:1])
    get_ops("onednn").set_threads(1)
    of = products(BATCH)
    dsinga, torches = ours(2 * (WARM_UP + rounds)), pytorch(2 * (WARM_UP + rounds))
    for title in ("as it is", "with memory kept by the C library"):
        parts: dict[str, list[list[float]]] = {}
        whole: dict[str, list[float]] = {"dsinga": [], "PyTorch": [], "pages": []}
        for number in range(WARM_UP + rounds):
            least, own, met = limits(of), next(dsinga), pages()
            whole["PyTorch"].append(next(torches))
            whole["pages"].append(pages() - met)
            whole["dsinga"].append(own)
            for name, seconds in least.items() if number >= WARM_UP else ():
                parts.setdefault(name, []).append(seconds)
        report(title, of, parts, {name: statistics.median(each[WARM_UP:]) for name, each in whole.items()})
        ctypes.CDLL(None).mallopt(M_MMAP_THRESHOLD, 1 << 30)
        ctypes.CDLL(None).mallopt(M_TRIM_THRESHOLD, (1 << 31) - 1)


def report(title: str, of: Sequence[Product], parts: dict[str, list[list[float]]], whole: dict[str, float]) -> None:
    """Print a half: of each product the way that was fastest in the median."""
    least: dict[str, float] = {}
    for key, rounds in parts.items():
        name = key.partition(" ")[0]
        least[name] = least.get(name, 0.0) + min(map(statistics.median, zip(*rounds, strict=True)))
    together = sum(least.values())
    click.echo(f"{title}: PyTorch meets {whole['pages']:.0f} pages an iteration")
    for name, seconds in [*least.items(), ("together", together), *list(whole.items())[:2]]:
        operations = sum(product.operations for product in of if product.name == name)
        rate = f"{1e-9 * operations / seconds:6.1f} GFLOP/s" if operations else ""
        click.echo(f"  {name:9} {1e3 * seconds:7.1f} ms, {seconds / whole['PyTorch']:.2f} of PyTorch's {rate}")


if __name__ == "__main__":
    main()
