"""Compare the iterations of a Transformer in dsinga and in PyTorch on one core: forward, backward, Adam.

``python -m tests.benchmarks.bench_transformer [TURNS] [--hidden 1024] [--shortest 32] [--profile]`` in the root of the
checkout. Both have the net of ``dsinga.models.transformer``, the same initial params and sentences in the same padded
shape, and take turns in one process, iteration by iteration, so that other work of the machine slows both. PyTorch's
net is written as its users do: one projection for query, key and value of self-attention, cross-entropy with
``ignore_index``, ``scaled_dot_product_attention``, fused Adam. Prints medians of the thread's processor time, the ratio
of the medians, and the quartiles of the ratio of successive iterations.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import cProfile
import math
import pstats
import statistics
import time
from collections.abc import Callable
from typing import Any

import click
import numpy as np
import torch
from torch import nn
from torch.nn import functional

from dsinga.engine.local_updater import LocalUpdater
from dsinga.job import Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.models import transformer
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import bp, initial_values

BATCH, STEPS, WORDS = 64, 32, 8000
BLOCKS, WIDTH, HEADS = 3, 256, 4
DROPOUT, SMOOTHING, RATE = 0.1, 0.1, 5e-4
WARM_UP = 5

Iterate = Callable[[int], float]


def sentences(shortest: int) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Return codes of both languages and labels, (BATCH, STEPS) each, -1 after the end."""
    rng = np.random.default_rng(0)

    def codes() -> np.ndarray:
        lengths = rng.integers(shortest, STEPS + 1, BATCH)
        lengths[0] = STEPS
        return np.where(np.arange(STEPS) < lengths[:, None], rng.integers(0, WORDS, (BATCH, STEPS)), -1)

    source, target = codes(), codes()
    labels = np.where(target < 0, -1, rng.integers(0, WORDS, target.shape))
    return source, target, labels


def ours(hidden: int, batch: tuple[np.ndarray, ...]) -> tuple[Iterate, dict[str, np.ndarray]]:
    """Return a function that runs an iteration of dsinga and returns the loss, and the initial params."""
    source, target, labels = batch
    job = transformer(
        WORDS, WORDS, blocks=BLOCKS, width=WIDTH, heads=HEADS, hidden=hidden, dropout=DROPOUT,
        label_smoothing=SMOOTHING, batchsize=BATCH,
    )  # fmt: skip
    infos = {
        "source": RecordInfo((STEPS,), BATCH, has_labels=False),
        "target": RecordInfo((STEPS,), BATCH, label_shape=(STEPS,)),
    }
    net = create_net(job.net, Phase.kTrain, infos)
    values = initial_values(net.params, 0)
    updater = LocalUpdater(job.updater.replace(clip_norm=0.0), net.params)
    records = {"source": Records(source), "target": Records(target, labels)}
    ops = get_ops()
    ops.set_threads(1)
    initial = {name: value.copy() for name, value in values.items()}

    def iterate(step: int) -> float:
        gradients: dict[str, Any] = {}
        ctx = Context(ops, Phase.kTrain, Rows(0, BATCH, BATCH), 0, step)
        total, count = bp(net, values, records, ctx, gradients.__setitem__)["loss"]
        updater.step(values, gradients)
        return total / count

    return iterate, initial


class Attention(nn.Module):
    """Multi-head attention, with one projection of query, key and value if they are of one sequence."""

    def __init__(self, own: bool):
        super().__init__()
        self.project = nn.Linear(WIDTH, (3 if own else 1) * WIDTH)
        self.memory = None if own else nn.Linear(WIDTH, 2 * WIDTH)
        self.output = nn.Linear(WIDTH, WIDTH)

    def forward(self, x: Any, memory: Any, mask: Any, causal: bool) -> Any:
        query = self.project(x)
        parts = query.chunk(3, 2) if self.memory is None else (query, *self.memory(memory).chunk(2, 2))
        q, k, v = (part.view(*part.shape[:2], HEADS, -1).transpose(1, 2) for part in parts)
        y = functional.scaled_dot_product_attention(q, k, v, attn_mask=mask, is_causal=causal)
        return self.output(y.transpose(1, 2).reshape(x.shape))


class Block(nn.Module):
    """A block of the encoder, or of the decoder, which also attends to the encoder."""

    def __init__(self, hidden: int, crosses: bool):
        super().__init__()
        self.own, self.cross = Attention(True), Attention(False) if crosses else None
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2 + crosses))
        self.perceptron = nn.Sequential(nn.Linear(WIDTH, hidden), nn.ReLU(), nn.Linear(hidden, WIDTH))
        self.drop = nn.Dropout(DROPOUT)

    def forward(self, x: Any, memory: Any, seen: Any) -> Any:
        causal = self.cross is not None
        x = x + self.drop(self.own(self.norms[0](x), None, None if causal else seen, causal))
        if self.cross is not None:
            x = x + self.drop(self.cross(self.norms[1](x), memory, seen, False))
        return x + self.drop(self.perceptron(self.norms[-1](x)))


class Translator(nn.Module):
    """The net of ``dsinga.models.transformer``."""

    def __init__(self, hidden: int):
        super().__init__()
        self.embeddings = nn.ModuleList(nn.Embedding(WORDS, WIDTH) for _ in range(2))
        self.encoder = nn.ModuleList(Block(hidden, False) for _ in range(BLOCKS))
        self.decoder = nn.ModuleList(Block(hidden, True) for _ in range(BLOCKS))
        self.norms = nn.ModuleList(nn.LayerNorm(WIDTH) for _ in range(2))
        self.drop = nn.Dropout(DROPOUT)
        angles = torch.arange(STEPS)[:, None] / 10_000 ** (torch.arange(0, WIDTH, 2) / WIDTH)
        self.positions = torch.stack([angles.sin(), angles.cos()], 2).reshape(STEPS, WIDTH)

    def embed(self, language: int, codes: Any) -> Any:
        return self.drop(self.embeddings[language](codes.clamp(min=0)) * math.sqrt(WIDTH) + self.positions)

    def forward(self, source: Any, target: Any) -> Any:
        seen = (source >= 0)[:, None, None]
        x, y = self.embed(0, source), self.embed(1, target)
        for block in self.encoder:
            x = block(x, None, seen)
        x = self.norms[0](x)
        for block in self.decoder:
            y = block(y, x, seen)
        return functional.linear(self.norms[1](y), self.embeddings[1].weight)

    @torch.no_grad()
    def take(self, params: dict[str, np.ndarray]) -> None:
        """Copy the params of dsinga's net."""

        def copy(parameter: Any, *names: str) -> None:
            parameter.copy_(torch.from_numpy(np.concatenate([params[name] for name in names])))

        def norm(module: Any, name: str) -> None:
            copy(module.weight, f"{name}_scale")
            copy(module.bias, f"{name}_bias")

        def linear(module: Any, name: str, *roles: str) -> None:
            copy(module.weight, *(f"{name}_{role}_weight" for role in roles))
            zeros = np.zeros(WIDTH, np.float32)
            biases = [params.get(f"{name}_{role}_bias", zeros) for role in roles]
            module.bias.copy_(torch.from_numpy(np.concatenate(biases)))

        for module, language in zip(self.embeddings, ("source", "target"), strict=True):
            copy(module.weight, f"{language}_embedding_weight")
        for side, blocks in (("encoder", self.encoder), ("decoder", self.decoder)):
            for number, block in enumerate(blocks, 1):
                name = f"{side}{number}"
                kinds = ("self", "perceptron") if block.cross is None else ("self", "cross", "perceptron")
                for module, kind in zip(block.norms, kinds, strict=True):
                    norm(module, f"{name}_{kind}_norm")
                linear(block.own.project, f"{name}_self", "query", "key", "value")
                linear(block.own.output, f"{name}_self", "output")
                if block.cross is not None:
                    linear(block.cross.project, f"{name}_cross", "query")
                    linear(block.cross.memory, f"{name}_cross", "key", "value")
                    linear(block.cross.output, f"{name}_cross", "output")
                linear(block.perceptron[0], f"{name}_perceptron", "hidden")
                linear(block.perceptron[2], f"{name}_perceptron", "output")
        for module, side in zip(self.norms, ("encoder", "decoder"), strict=True):
            norm(module, side)


def theirs(hidden: int, batch: tuple[np.ndarray, ...], params: dict[str, np.ndarray]) -> Iterate:
    """Return a function that runs the same iteration in eager PyTorch."""
    torch.set_num_threads(1)
    torch.manual_seed(0)
    net = Translator(hidden)
    net.take(params)
    source, target, labels = map(torch.from_numpy, batch)
    updater = torch.optim.Adam(net.parameters(), RATE, (0.9, 0.98), fused=True)

    def iterate(step: int) -> float:
        scores = net(source, target).view(-1, WORDS)
        loss = functional.cross_entropy(scores, labels.view(-1), ignore_index=-1, label_smoothing=SMOOTHING)
        updater.zero_grad()
        loss.backward()
        updater.step()
        return loss.item()

    return iterate


@click.command()
@click.argument("turns", default=20)
@click.option("--hidden", default=512, help="Hidden units of the perceptrons.")
@click.option("--shortest", default=8, help="Words of the shortest sentences; the longest have 32.")
@click.option("--profile", is_flag=True, help="Show where dsinga's time goes instead.")
def main(turns: int, hidden: int, shortest: int, profile: bool) -> None:
    """Print milliseconds of processor time of an iteration."""
    batch = sentences(shortest)
    mine, params = ours(hidden, batch)
    print(f"{(batch[0] >= 0).mean():.0%} and {(batch[1] >= 0).mean():.0%} of {BATCH} x {STEPS} steps are words")
    if profile:
        for step in range(2):
            mine(step)
        profiler = cProfile.Profile()
        profiler.runcall(lambda: [mine(2 + step) for step in range(turns)])
        pstats.Stats(profiler).sort_stats("tottime").print_stats(28)
        return
    peer = theirs(hidden, batch, params)
    print(f"first losses: dsinga {mine(0):.4f}, PyTorch {peer(0):.4f}")
    times: list[tuple[float, float]] = []
    for step in range(1, WARM_UP + turns):
        pair = []
        for iterate in (mine, peer):
            begin = time.thread_time()
            iterate(step)
            pair.append(1e3 * (time.thread_time() - begin))
        times.append((pair[0], pair[1]))
    times = times[WARM_UP - 1 :]
    first, second = (statistics.median(column) for column in zip(*times, strict=True))
    low, middle, high = statistics.quantiles([a / b for a, b in times], n=4)
    print(f"dsinga {first:.1f} ms, PyTorch {second:.1f} ms, ratio of medians {first / second:.3f}")
    print(f"ratio of successive iterations {middle:.3f} (quartiles {low:.3f} to {high:.3f})")


if __name__ == "__main__":
    main()
