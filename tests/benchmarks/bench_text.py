"""Compare the iterations of the LSTM classifier and the recommender in dsinga and in PyTorch on one core.

``python -m tests.benchmarks.bench_text [NET ...] [--turns 60]`` in the root of the checkout; a NET is lstm,
convolution, cosine or product. Both have the net of ``dsinga.models`` with the same initial params, and take the same
random records of the sizes of the movie reviews and of MovieLens, another batch in each iteration: forward, backward,
Adam, of tables only the rows of the batch. (PyTorch's convolutions do not know where a sentence ends.) They take turns
in one process, so that other work of the machine slows both. Prints medians of the thread's processor time, the ratio
of the medians, and the quartiles of the ratio of successive iterations.
"""

from __future__ import annotations

import os

os.environ.update(OMP_NUM_THREADS="1", OPENBLAS_NUM_THREADS="1", MKL_NUM_THREADS="1")

import statistics
import time
from collections.abc import Callable, Sequence
from typing import Any, NamedTuple

import click
import numpy as np
import torch
from torch.nn import functional

from dsinga import models
from dsinga.engine.local_updater import LocalUpdater
from dsinga.job import Job, Phase
from dsinga.layers import Context, RecordInfo, Records, Rows
from dsinga.net import create_net
from dsinga.ops import get_ops
from dsinga.training import bp, initial_values
from tests.benchmarks import torch_text

REVIEWS, RATINGS = ("lstm", "convolution"), ("cosine", "product")
WORDS, LONGEST = 18_000, 59  # of the movie reviews
USERS, FILMS, TITLE_WORDS, TITLE, GENRES = 943, 1682, 1_400, 14, 19  # of MovieLens 100k
BATCHES, WARM_UP = 8, 5


class Batch(NamedTuple):
    """The arrays of the input layers, by name, and the labels."""

    arrays: dict[str, np.ndarray]
    labels: np.ndarray


def batches(net: str, rows: int) -> list[Batch]:
    """Return random batches of codes, -1 after the end of a sentence or title, with classes or stars."""
    rng = np.random.default_rng(0)

    def texts(words: int, longest: int) -> np.ndarray:
        lengths = np.clip(rng.normal(0.36 * longest, 0.16 * longest, rows).astype(int), 1, longest)
        return np.where(np.arange(longest) < lengths[:, None], rng.integers(0, words, (rows, longest)), -1)

    def batch() -> Batch:
        if net in REVIEWS:
            return Batch({"data": texts(WORDS, LONGEST)}, rng.integers(0, 2, rows))
        users, films = rng.integers(0, USERS, rows), rng.integers(0, FILMS, rows)
        genres = (rng.random((rows, GENRES)) < 0.1).astype(np.float32)
        arrays = {"users": users, "films": films, "titles": texts(TITLE_WORDS, TITLE), "genres": genres}
        return Batch(arrays, rng.integers(1, 6, rows).astype(np.float32))

    return [batch() for _ in range(BATCHES)]


def job_of(net: str, **more: Any) -> Job:
    """Return the job of a net, with clipping left out, as in PyTorch's."""
    if net in REVIEWS:
        job: Job = getattr(models, f"sentiment_{net}")(WORDS, **more)
    else:
        job = models.recommender(USERS, FILMS, TITLE_WORDS, similarity=net, **more)
    return job.replace(updater=job.updater.replace(clip_norm=0.0))


class Ours:
    """The net in dsinga."""

    def __init__(self, job: Job, first: Batch):
        self.rows = len(first.labels)
        labelled = next(iter(first.arrays))
        infos = {
            name: RecordInfo(array.shape[1:], self.rows, has_labels=name == labelled)
            for name, array in first.arrays.items()
        }
        self.net = create_net(job.net, Phase.kTrain, infos)
        self.values = initial_values(self.net.params, 0)
        self.updater = LocalUpdater(job.updater, self.net.params)
        self.ops = get_ops()
        self.ops.set_threads(1)

    def iterate(self, step: int, batch: Batch, update: bool = True) -> float:
        """Return the loss of an iteration."""
        gradients: dict[str, Any] = {}
        labelled = next(iter(batch.arrays))
        records = {
            name: Records(array.view(), batch.labels.view() if name == labelled else None)  # they become read-only
            for name, array in batch.arrays.items()
        }
        ctx = Context(self.ops, Phase.kTrain, Rows(0, self.rows, self.rows), 0, step)
        total, count = bp(self.net, self.values, records, ctx, gradients.__setitem__)["loss"]
        if update:
            self.updater.step(self.values, gradients)
        return total / count


class Theirs:
    """The same net in eager PyTorch, with the same params."""

    def __init__(self, net: str, rate: float, params: dict[str, np.ndarray]):
        torch.set_num_threads(1)
        torch.manual_seed(0)
        if net in RATINGS:
            self.net: Any = torch_text.Recommender(USERS, FILMS, TITLE_WORDS, product=net == "product")
        else:
            self.net = torch_text.StackedLSTM(WORDS) if net == "lstm" else torch_text.Convolution(WORDS)
        take(net, self.net, params)
        self.updaters = torch_text.make_updaters(self.net, rate)
        self.loss_of = functional.cross_entropy if net in REVIEWS else functional.mse_loss

    def iterate(self, step: int, batch: Batch, update: bool = True) -> float:
        """Return the loss of an iteration; without ``update`` also without dropout."""
        self.net.train(update)
        loss = self.loss_of(self.net(*map(torch.from_numpy, batch.arrays.values())), torch.from_numpy(batch.labels))
        if update:
            for updater in self.updaters:
                updater.zero_grad(set_to_none=True)
            loss.backward()
            for updater in self.updaters:
                updater.step()
        return loss.item()


@torch.no_grad()
def take(net: str, module: Any, params: dict[str, np.ndarray]) -> None:
    """Copy the params of dsinga's net."""

    def copy(parameter: Any, array: np.ndarray) -> None:
        parameter.copy_(torch.from_numpy(np.ascontiguousarray(array)))

    def linear(linear: Any, name: str) -> None:
        copy(linear.weight, params[f"{name}_weight"])
        copy(linear.bias, params[f"{name}_bias"])

    def convolution(convolution: Any, name: str) -> None:
        filters, width, kernel = convolution.weight.shape
        copy(convolution.weight, params[f"{name}_weight"].reshape(filters, kernel, width).transpose(0, 2, 1))
        copy(convolution.bias, params[f"{name}_bias"])

    if net in REVIEWS:
        copy(module.embedding.weight, params["embedding_weight"])
        linear(module.scores, "scores")
    if net == "convolution":
        for kernel, each in zip((3, 4, 5), module.convolutions, strict=True):
            convolution(each, f"conv{kernel}")
    if net == "lstm":
        for number in range(2):
            for suffix, role in (("", ""), ("_reverse", "back_")):
                for kind, ours in (("weight_ih", "hx"), ("weight_hh", "hh"), ("bias_ih", "b")):
                    name = f"lstm{number + 1}_{role}{ours}"
                    copy(getattr(module.lstm, f"{kind}_l{number}{suffix}"), params[name])
                getattr(module.lstm, f"bias_hh_l{number}{suffix}").zero_()
    if net in RATINGS:
        names = ("user_embedding", "film_embedding", "word_embedding", "user_mean", "film_mean")
        for name, table in zip(names, module.tables, strict=True):
            copy(table.weight, params[f"{name}_weight"])
        convolution(module.title, "title_conv")
        for name, each in (("user", module.user), ("film", module.film), ("similarity", module.score)):
            linear(each, name)


def compare(net: str, turns: int) -> None:
    """Print the figures of a net."""
    job = job_of(net)
    (rows,) = job.net.layer[0].store_conf.batchsize
    records = batches(net, rows)
    mine, without = Ours(job, records[0]), Ours(job_of(net, dropout=0.0), records[0])
    peer = Theirs(net, job.updater.learning_rate.base_lr, mine.values)
    without.values = mine.values
    losses = [each.iterate(0, records[0], update=False) for each in (without, peer)]
    times: list[tuple[float, float]] = []
    for step in range(WARM_UP + turns):
        pair = [processor_time(each.iterate, step, records[step % BATCHES]) for each in (mine, peer)]
        times.append((pair[0], pair[1]))
    times = times[WARM_UP:]
    first, second = (statistics.median(column) for column in zip(*times, strict=True))
    low, middle, high = statistics.quantiles([a / b for a, b in times], n=4)
    print(f"{net}, batch {rows}: first losses without dropout {losses[0]:.6f} and {losses[1]:.6f}")
    print(f"  dsinga {first:.2f} ms, PyTorch {second:.2f} ms, ratio of medians {first / second:.3f}")
    print(f"  ratio of successive iterations {middle:.3f} (quartiles {low:.3f} to {high:.3f})", flush=True)


def processor_time(iterate: Callable[[int, Batch], float], step: int, batch: Batch) -> float:
    """Return the milliseconds of processor time of an iteration."""
    begin = time.thread_time()
    iterate(step, batch)
    return 1e3 * (time.thread_time() - begin)


@click.command()
@click.argument("nets", nargs=-1, type=click.Choice([*REVIEWS, *RATINGS]))
@click.option("--turns", default=60, show_default=True)
def main(nets: Sequence[str], turns: int) -> None:
    """Print milliseconds of processor time of an iteration."""
    for net in nets or (*REVIEWS, *RATINGS):
        compare(net, turns)


if __name__ == "__main__":
    main()
