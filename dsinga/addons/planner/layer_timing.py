"""Times a single layer, and the arithmetic on params, with training's kernels."""

from __future__ import annotations

import statistics
import threading
import time
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from functools import partial
from typing import Any, NamedTuple, TypeVar

import ml_dtypes
import numpy as np

from dsinga.job import Phase
from dsinga.layers.interface.context import Context, Records, Rows
from dsinga.layers.interface.declarations import Bfloat16
from dsinga.layers.interface.layer import Array, Layer, Shape
from dsinga.layers.sequences.steps import SequenceLength
from dsinga.ops import Ops
from dsinga.ops.layout import LAST
from dsinga.ops.update import BLOCK

T = TypeVar("T")

RUNS = 6  # the first one is a warm-up
LIMIT_SECONDS = 2.0  # for the runs of a measurement, after which a single counted one of each function does
NUMBERS = 1 << 22  # float32 in the arrays of params: 16 MB, more than the caches of a core hold
TIMEOUT_SECONDS = 60.0  # for one run of all threads


class LayerTime(NamedTuple):
    """Seconds of a layer's forward and backward passes, and the sums over the whole batch that each needs."""

    forward: float
    backward: float
    sums_forward: int = 0
    sums_backward: int = 0


class LayerWork(NamedTuple):
    """One worker's work for a layer: ``rows``, the shapes of ``sources``, and whether each ``needs`` a gradient."""

    layer: Layer
    rows: int
    sources: tuple[Shape, ...]
    needs: tuple[bool, ...]
    backward: bool


def time_layer(work: LayerWork, ops: Ops, threads: int, workers: int) -> LayerTime:
    """Time a layer's passes on random numbers.

    ``workers`` threads run it at once, each with its own arrays and ``threads`` kernel threads.
    """
    if work.layer.is_output:  # it may write a store
        return LayerTime(0.0, 0.0)
    sum_counts: dict[str, int] = {}

    def passes() -> list[Callable[[], object]]:
        ops.set_threads(threads)
        forward, backward, sums = _passes(work, ops)
        forward()
        sum_counts["forward"] = sums.take()
        if backward is None:
            return [forward]
        backward()
        sum_counts["backward"] = sums.take()
        return [forward, backward]

    forward, backward = (*median_seconds(passes, workers), 0.0)[:2]
    return LayerTime(forward, backward, sum_counts["forward"], sum_counts.get("backward", 0))


def time_arithmetic(workers: int) -> tuple[float, float, float]:
    """Measure seconds to add a number of one more gradient, and to copy a byte to new or existing memory."""

    def operations() -> list[Callable[[], object]]:
        value, gradient, total = np.ones(NUMBERS, np.float32), np.ones(NUMBERS, np.float32), np.ones(BLOCK, np.float32)

        def add() -> None:
            for start in range(0, NUMBERS, BLOCK):
                np.add(value[start : start + BLOCK], gradient[start : start + BLOCK], out=total)

        return [add, value.copy, lambda: np.copyto(gradient, value)]

    add, copy, keep = median_seconds(operations, workers)
    return add / 2 / NUMBERS, copy / (4 * NUMBERS), keep / (4 * NUMBERS)


def _passes(work: LayerWork, ops: Ops) -> tuple[Callable[[], object], Callable[[], object] | None, SumCounter]:
    layer, rng, sums = work.layer, np.random.default_rng(0), SumCounter()
    ctx = Context(ops, Phase.kTrain, Rows(0, work.rows, max(work.rows, layer.shape[0])), all_reduce=sums)
    params = [
        random_numbers(rng, (work.rows, *spec.shape[1:]) if spec.by_rows else spec.shape, ops) for spec in layer.params
    ]
    sources = [_source(work, k, rng, ops) for k in range(len(work.sources))] or [random_records(layer, work.rows, rng)]
    if ops.has_bf16_features and layer.bf16 is Bfloat16.kFeatures:
        sources = [source.astype(ml_dtypes.bfloat16) if np.ndim(source) == 4 else source for source in sources]
    forward = partial(layer.compute_feature, params, sources, ctx)
    if not work.backward:
        return forward, None, sums
    output = forward()
    sums.take()
    grad: Any = None
    if layer.part_shapes:
        grad = [random_numbers(rng, part.shape, ops) for part in output.feature]
    elif not layer.is_loss:
        grad = ops.cast_like(random_numbers(rng, output.feature.shape, ops), output.feature)
    return forward, partial(layer.compute_gradient, params, sources, output, grad, work.needs, ctx), sums


class SumCounter:
    """Replaces all-reduce while a layer is timed: counts the requested sums, and adds nothing."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: str, array: Array) -> Array:
        """Count one sum; return the array."""
        self._count += 1
        return array

    def take(self) -> int:
        """Return the number of sums since the last call, and start again at zero."""
        count, self._count = self._count, 0
        return count


def random_numbers(rng: np.random.Generator, shape: Sequence[int], ops: Ops) -> Array:
    """Create random numbers in the backend's layout."""
    numbers = ops.asarray(rng.standard_normal(shape, np.float32))
    return ops.unflatten(numbers.reshape(shape[0], -1), tuple(shape)) if len(shape) in LAST else numbers


def _source(work: LayerWork, index: int, rng: np.random.Generator, ops: Ops) -> Array:
    layer = work.layer
    if index == layer.labels.source:
        record = layer.source_shapes[index][1:2] if layer.source_kind.over_steps else layer.source_shapes[index][1:]
        if takes_shares(layer, record):
            return np.full((work.rows, *record), 1 / record[0], np.float32)
        return rng.integers(0, getattr(layer, "classes", None) or 2, (work.rows, *record))
    if isinstance(layer, SequenceLength):
        return np.zeros(work.sources[index], np.int64)
    if layer.vocab_size:
        return ops.asarray(rng.integers(0, layer.vocab_size, work.sources[index]))
    if layer.takes_codes:  # 0 is a code of each category
        return ops.asarray(np.zeros(work.sources[index], np.float32))
    return random_numbers(rng, work.sources[index], ops)


def takes_shares(layer: Layer, label: Shape) -> bool:
    """Whether a layer accepts labels of this shape as a probability for each class."""
    per_row = layer.labels.shares and not layer.source_kind.over_steps
    return per_row and tuple(label) == (getattr(layer, "classes", 0),)


def random_records(layer: Layer, rows: int, rng: np.random.Generator) -> Records:
    """Create random records for an input layer: codes if it reads codes, else bytes."""
    codes = getattr(layer, "codes", 0)
    shape = layer.shape if layer.region is None else layer.region.whole(layer.shape)  # each worker reads whole records
    data = rng.integers(0, codes or 256, (rows, *shape[1:]), dtype=np.int32 if codes else np.uint8)
    labels = layer.label_format
    return Records(data, rng.integers(0, 2, (rows, *labels.shape)).astype(labels.dtype or np.int64))


def median_seconds(make_runs: Callable[[], Sequence[Callable[[], object]]], workers: int) -> list[float]:
    """Measure the seconds of each run, while ``workers`` threads execute it at once.

    Figures are medians of the slowest thread, because a group's workers wait for each other.
    """
    starts: list[float] = []  # when all threads began each run
    barrier = threading.Barrier(workers, lambda: starts.append(time.perf_counter()), TIMEOUT_SECONDS)

    def is_late() -> bool:
        return starts[-1] - starts[0] > LIMIT_SECONDS

    by_thread = run_concurrently(lambda: [_times(run, barrier, is_late) for run in make_runs()], barrier)
    return [statistics.median(map(max, zip(*times, strict=True))) for times in zip(*by_thread, strict=True)]


def run_concurrently(function: Callable[[], T], barrier: threading.Barrier) -> list[T]:
    """Call a function in as many threads as ``barrier`` has parties, and return the results."""

    def call() -> T:
        try:
            return function()
        except BaseException:
            barrier.abort()
            raise

    with ThreadPoolExecutor(barrier.parties) as pool:
        futures = [pool.submit(call) for _ in range(barrier.parties)]
    errors = [error for future in futures if (error := future.exception())]
    for error in sorted(errors, key=lambda error: isinstance(error, threading.BrokenBarrierError)):
        raise error  # the error of the call that broke the barrier
    return [future.result() for future in futures]


def _times(run: Callable[[], object], barrier: threading.Barrier, is_late: Callable[[], bool]) -> list[float]:
    """Time runs that all threads begin together; fewer runs if ``is_late``."""
    evicting = np.zeros(NUMBERS, np.float32)  # touched before each run, to empty the caches as the rest of a net does
    times: list[float] = []
    for _ in range(RUNS):
        evicting += 1
        barrier.wait()
        if len(times) > 1 and is_late():  # all threads see the same, since none has begun to wait again
            break
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return times[1:]
