"""Timing a layer and the arithmetic on params with the kernels that training uses."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import numpy as np

from dsinga.job import Phase
from dsinga.layers.base import Array, Layer, Shape
from dsinga.layers.codes import Codes
from dsinga.layers.context import Context, Records, Rows
from dsinga.net import Stage
from dsinga.ops import Ops
from dsinga.training import Updater

Found = TypeVar("Found")

RUNS = 6  # the first of them is not counted
NUMBERS = 1 << 22  # to time the arithmetic on params with: 16 MB, more than a cache level of one core holds
PATIENCE = 60.0  # seconds within which all threads of a crowd have done one run


class LayerTime(NamedTuple):
    """Seconds of a layer's forward and backward pass, and how often each asks for a sum over the whole batch."""

    forward: float
    backward: float
    sums_forward: int = 0
    sums_backward: int = 0


class Work(NamedTuple):
    """What a worker computes of a layer: the rows, its sources' shapes, which gradients are wanted, if any."""

    layer: Layer
    rows: int
    sources: tuple[Shape, ...]
    needs: tuple[bool, ...]
    backward: bool


def rows_of(stage: Stage) -> int:
    """Return how many rows of its batch a worker computes at a node."""
    return stage.rows.stop - stage.rows.start if stage.rows else stage.layer.shape[0]


def time_layer(work: Work, ops: Ops, threads: int, crowd: int) -> LayerTime:
    """Run a layer forward and backward on random numbers and return the seconds.

    ``crowd`` threads do so at once, each with numbers of its own and ``threads`` kernel threads, as the workers of a
    machine share its memory and its caches.
    """
    if work.layer.is_output:  # it may write a store
        return LayerTime(0.0, 0.0)
    asked: dict[str, int] = {}

    def runs() -> list[Callable[[], object]]:
        ops.set_threads(threads)
        forward, backward, sums = _passes(work, ops)
        forward()
        asked["forward"] = sums.taken()
        if backward is None:
            return [forward]
        backward()
        asked["backward"] = sums.taken()
        return [forward, backward]

    forward, backward = (*_seconds(runs, crowd), 0.0)[:2]
    return LayerTime(forward, backward, asked["forward"], asked.get("backward", 0))


def time_numbers(updater: Updater, crowd: int) -> tuple[float, float, float, float]:
    """Return seconds to update a number of a param, to add one of a gradient, to copy a byte to new or kept memory.

    ``crowd`` threads do so at once, the workers of one process: they wait for each other's Python between any two
    steps of an update, as those of several processes do not.
    """

    def runs() -> list[Callable[[], object]]:
        value, gradient = np.ones(NUMBERS, np.float32), np.ones(NUMBERS, np.float32)
        state = updater.create_state(NUMBERS)
        return [
            lambda: updater.update(0, value, gradient, state),
            lambda: np.add(value, gradient, out=value),
            value.copy,
            lambda: np.copyto(gradient, value),
        ]

    update, add, copy, keep = _seconds(runs, crowd)
    return update / NUMBERS, add / NUMBERS, copy / (4 * NUMBERS), keep / (4 * NUMBERS)


def _passes(work: Work, ops: Ops) -> tuple[Callable[[], object], Callable[[], object] | None, Sums]:
    """Return what runs a layer forward, and backward if that is wanted, and the count of the sums it asks for."""
    layer, rng, sums = work.layer, np.random.default_rng(0), Sums()
    ctx = Context(ops, Phase.kTrain, Rows(0, work.rows, max(work.rows, layer.shape[0])), all_reduce=sums)
    params = [
        random_numbers(rng, (work.rows, *spec.shape[1:]) if spec.by_rows else spec.shape, ops) for spec in layer.params
    ]
    sources = [_source(work, k, rng, ops) for k in range(len(work.sources))] or [random_records(layer, work.rows, rng)]
    forward = partial(layer.compute_feature, params, sources, ctx)
    if not work.backward:
        return forward, None, sums
    output = forward()
    sums.taken()
    grad: Any = None
    if layer.hands_parts:
        grad = [random_numbers(rng, part.shape, ops) for part in output.feature]
    elif not layer.is_loss:
        grad = random_numbers(rng, output.feature.shape, ops)
    return forward, partial(layer.compute_gradient, params, sources, output, grad, work.needs, ctx), sums


class Sums:
    """Stands for the sums over the whole batch: counts how many are asked for."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: str, array: Array) -> Array:
        """Count one; its sum is itself."""
        self._count += 1
        return array

    def taken(self) -> int:
        """Return the count, and begin anew."""
        count, self._count = self._count, 0
        return count


def random_numbers(rng: np.random.Generator, shape: Sequence[int], ops: Ops) -> Array:
    """Return random numbers in the layout that the backend likes best."""
    numbers = ops.asarray(rng.standard_normal(shape, np.float32))
    return ops.unflatten(numbers.reshape(shape[0], -1), tuple(shape)) if len(shape) == 4 else numbers


def _source(work: Work, index: int, rng: np.random.Generator, ops: Ops) -> Array:
    layer = work.layer
    if index == layer.label_source:
        steps = layer.source_shapes[0][1:2] if layer.over_steps else ()
        return rng.integers(0, getattr(layer, "classes", None) or 2, (work.rows, *steps))
    if isinstance(layer, Codes):
        return ops.asarray(rng.integers(0, layer.size, work.sources[index]))
    return random_numbers(rng, work.sources[index], ops)


def random_records(layer: Layer, rows: int, rng: np.random.Generator) -> Records:
    """Return what an input layer gets: codes if it has some, else bytes, for what the store has is not known here."""
    codes = getattr(layer, "codes", 0)
    data = rng.integers(0, codes or 256, (rows, *layer.shape[1:]), dtype=np.int32 if codes else np.uint8)
    return Records(data, rng.integers(0, 2, (rows, *layer.label_shape)))


def _seconds(runs: Callable[[], Sequence[Callable[[], object]]], crowd: int) -> list[float]:
    """Return the seconds of each of several runs, while ``crowd`` threads do the same with their own.

    They are medians of what the last of the threads to end took: workers of a synchronous group wait for each other.
    Between two runs the caches are emptied, as the rest of a net does it between two iterations.
    """
    barrier = threading.Barrier(crowd, timeout=PATIENCE)

    found = in_crowd(lambda: [_times(run, barrier) for run in runs()], barrier)
    return [statistics.median(map(max, zip(*times, strict=True))) for times in zip(*found, strict=True)]


def in_crowd(work: Callable[[], Found], barrier: threading.Barrier) -> list[Found]:
    """Return what threads find that do the same at once, as many as meet at ``barrier``; one that fails ends it."""

    def own() -> Found:
        try:
            return work()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(barrier.parties) as pool:
        return [future.result() for future in [pool.submit(own) for _ in range(barrier.parties)]]


def _times(run: Callable[[], object], barrier: threading.Barrier) -> list[float]:
    others = np.zeros(NUMBERS, np.float32)
    times = []
    for _ in range(RUNS):
        others += 1
        barrier.wait()
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return times[1:]
