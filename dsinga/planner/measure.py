"""Timing a layer and the arithmetic on params with the kernels that training uses."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, NamedTuple

import numpy as np

from dsinga.job import Phase
from dsinga.layers.base import Array, Layer, Shape
from dsinga.layers.context import Context, Records, Rows
from dsinga.ops import Ops
from dsinga.training import Updater

MOST_RUNS = 9
ENOUGH_SECONDS = 0.15  # of measuring one thing
NUMBERS = 1 << 22  # to time the arithmetic on params with: 16 MB, more than a cache level of one core holds


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


def time_layer(work: Work, ops: Ops, threads: int) -> LayerTime:
    """Run a layer forward and backward on random numbers and return the seconds."""
    layer = work.layer
    if layer.is_output:  # it may write a store
        return LayerTime(0.0, 0.0)
    ops.set_threads(threads)
    rng = np.random.default_rng(0)
    sums = _Sums()
    rows = Rows(0, work.rows, max(work.rows, layer.shape[0]))
    ctx = Context(ops, Phase.kTrain, rows, total=sums)
    params = [_numbers(rng, spec.shape, ops) for spec in layer.params]
    sources = [_source(work, k, rng, ops) for k in range(len(work.sources))] or [_records(work, rng)]
    forward = partial(layer.compute_feature, params, sources, ctx)
    output, asked = forward(), sums.taken()
    seconds = _seconds(forward)
    if not work.backward:
        return LayerTime(seconds, 0.0, asked)
    grad: Any = None
    if layer.hands_parts:
        grad = [_numbers(rng, part.shape, ops) for part in output.feature]
    elif not layer.is_loss:
        grad = _numbers(rng, output.feature.shape, ops)
    backward = partial(layer.compute_gradient, params, sources, output, grad, work.needs, ctx)
    sums.taken()
    backward()
    asked_backward = sums.taken()
    return LayerTime(seconds, _seconds(backward), asked, asked_backward)


def time_numbers(updater: Updater) -> tuple[float, float, float]:
    """Return seconds to update a number of a param, to add a number of a gradient, to copy a byte."""
    value, gradient = np.ones(NUMBERS, np.float32), np.ones(NUMBERS, np.float32)
    state = updater.create_state(NUMBERS)
    return (
        _seconds(lambda: updater.update(0, value, gradient, state)) / NUMBERS,
        _seconds(lambda: np.add(value, gradient, out=value)) / NUMBERS,
        _seconds(value.copy) / value.nbytes,
    )


class _Sums:
    """Stands for the sums over the whole batch: counts how many are asked for."""

    def __init__(self) -> None:
        self._count = 0

    def __call__(self, key: str, array: Array) -> Array:
        self._count += 1
        return array

    def taken(self) -> int:
        """Return the count, and begin anew."""
        count, self._count = self._count, 0
        return count


def _numbers(rng: np.random.Generator, shape: Sequence[int], ops: Ops) -> Array:
    """Return random numbers in the layout that the backend likes best."""
    numbers = ops.asarray(rng.standard_normal(shape, np.float32))
    return ops.unflatten(numbers.reshape(shape[0], -1), tuple(shape)) if len(shape) == 4 else numbers


def _source(work: Work, index: int, rng: np.random.Generator, ops: Ops) -> Array:
    if index == work.layer.label_source:
        return rng.integers(0, getattr(work.layer, "classes", 2), work.rows)
    return _numbers(rng, work.sources[index], ops)


def _records(work: Work, rng: np.random.Generator) -> Records:
    """Return what an input layer gets: bytes, for what the store has is not known here."""
    data = rng.integers(0, 256, (work.rows, *work.layer.shape[1:]), dtype=np.uint8)
    return Records(data, rng.integers(0, 2, work.rows))


def _seconds(run: Callable[[], object]) -> float:
    """Return the seconds of a run: the lower quartile of a few, fewer where one takes long.

    Others may use this machine too, and only ever make a run longer.
    """
    times: list[float] = []
    while len(times) < MOST_RUNS and sum(times) < ENOUGH_SECONDS:
        started = time.perf_counter()
        run()
        times.append(time.perf_counter() - started)
    return sorted(times)[len(times) // 4]
