"""Runs one layer without a net, for its tests: both passes, numerical gradients, collectives between threads."""

from __future__ import annotations

import functools
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from typing import Any, NamedTuple

import numpy as np

from dsinga.job import Phase
from dsinga.layers import Columns, Context, Layer, Output, Records, Rows
from dsinga.layers.interface.contract import check_gradients, check_output
from dsinga.ops import Array, Ops
from dsinga.testing.layer_cases import read_only
from dsinga.training.metrics import read_metrics

WAIT_SECONDS = 60.0  # how long a thread waits for the others in a collective
MOST_SLOPES = 16  # numerical gradients of an array

threads = functools.cache(ThreadPoolExecutor)  # pools by the number of threads


class Passes(NamedTuple):
    """The results of a layer's forward and backward pass, all in host memory."""

    output: Output
    for_sources: Sequence[Any]
    for_params: Sequence[Any]


def layer_context(
    ops: Ops, batch: int, phase: Phase = Phase.kTrain, rows: Rows | None = None, step: int = 3, **more: Any
) -> Context:
    """Return the context in which a layer computes a batch of ``batch`` rows, or its ``rows``."""
    return Context(ops, phase, rows or Rows(0, batch, batch), seed=7, step=step, **more)


def run_passes(
    layer: Layer, params: Sequence[Any], sources: Sequence[Any], ctx: Context, grad: Any, needs: Sequence[bool]
) -> Passes:
    """Run the forward pass and, for a loss or with a ``grad`` for the feature, the backward pass."""
    output, ops = layer.compute_feature(params, sources, ctx), ctx.ops
    check_output(layer, params, sources, output)
    if grad is None and not layer.is_loss:
        return Passes(output_on_host(output, ops), (), ())
    kept = output if layer.keeps.feature else output._replace(feature=None)
    gradients = layer.compute_gradient(params, layer.keeps.of(sources), kept, on_device(grad, ops), needs, ctx)
    check_gradients(layer, params, sources, gradients)
    for_sources, for_params = (on_host(list(arrays), ops) for arrays in gradients)
    return Passes(output_on_host(output, ops), for_sources, for_params)


def feature_parts(layer: Layer, output: Output) -> list[Any]:
    """Return the arrays of a feature: one, or one for each layer that reads it."""
    return list(output.feature) if layer.part_shapes else [output.feature]


def random_gradient(layer: Layer, output: Output) -> Any:
    """Return a random gradient for the feature, in host memory, or a list for several parts; None for a loss."""
    if layer.is_loss:
        return None
    rng = np.random.default_rng(1)
    grads = [rng.uniform(-1, 1, part.shape).astype(part.dtype) for part in feature_parts(layer, output)]
    grads = [read_only(np.copy(grad)) for grad in grads]
    return grads if layer.part_shapes else grads[0]


def objective(layer: Layer, output: Output, grad: Any) -> float:
    """Return the number that is differentiated: the mean loss, or the feature times ``grad``."""
    if layer.is_loss:
        total, count = output.metrics["loss"]
        return total / count
    grads = grad if layer.part_shapes else [grad]
    return sum(float((part * g).sum()) for part, g in zip(feature_parts(layer, output), grads, strict=True))


def assert_slopes(
    function: Callable[[np.ndarray], float], at: np.ndarray, gradient: np.ndarray, step: float = 1e-6
) -> None:
    """Assert that ``gradient`` agrees with the central differences of ``function`` at ``at``.

    All elements are checked, or MOST_SLOPES random ones. The others are then checked together, along a random
    direction.
    """
    rng, elements = np.random.default_rng(2), np.arange(at.size)
    directions = []
    if at.size > MOST_SLOPES:
        elements = np.sort(rng.choice(at.size, MOST_SLOPES, replace=False))
        direction = rng.uniform(-1, 1, at.size)
        direction[elements] = 0
        directions.append(direction)
    expected, actual = [], []
    for element in elements:
        direction = np.zeros(at.size)
        direction[element] = 1
        directions.append(direction)
    for direction in directions:
        change = step * direction.reshape(at.shape)
        expected.append((function(at + change) - function(at - change)) / (2 * step))
        actual.append(np.vdot(direction, gradient))
    np.testing.assert_allclose(actual, expected, rtol=1e-5, atol=1e-7)


def take_rows(source: Any, rows: Rows) -> Any:
    """Return the rows of an array, or of records."""
    if isinstance(source, Records):
        return Records(*(None if field is None else field[rows.start : rows.stop] for field in source))
    return source[rows.start : rows.stop]


def take_columns(array: Any, axis: int | None, columns: Columns) -> Any:
    """Select the share ``columns`` of an array cut along ``axis``, None for no cut."""
    if axis is None:
        return array
    start, stop = (array.shape[axis] * bound // columns.total for bound in columns[:2])
    return array[(slice(None),) * axis + (slice(start, stop),)]


def on_host(value: Any, ops: Ops) -> Any:
    """Copy all arrays in a value to host memory."""
    if isinstance(value, (tuple, list)):
        return [on_host(array, ops) for array in value]
    return ops.to_numpy(value) if hasattr(value, "ndim") else value


def on_device(value: Any, ops: Ops) -> Any:
    """Copy all arrays in a value to the backend."""
    if isinstance(value, (tuple, list)):
        return [on_device(array, ops) for array in value]
    return value if value is None else ops.asarray(value)


def output_on_host(output: Output, ops: Ops) -> Output:
    """Copy an output's arrays to host memory, with metrics as numbers."""
    ((_, metrics),) = read_metrics([("layer", output.metrics)], ops)
    state = {role: ops.to_numpy(array) for role, array in output.state.items()}
    return output._replace(feature=on_host(output.feature, ops), metrics=metrics, state=state)


class ThreadCollectives:
    """``Context.all_reduce`` and ``Context.all_gather`` for parts of a batch, each in its own thread."""

    def __init__(self, parts: int):
        self._barrier = threading.Barrier(parts)
        self._arrays: dict[str, dict[int, np.ndarray]] = {}

    def of(self, part: int, join: Callable[[list[np.ndarray]], Any]) -> Callable[[str, np.ndarray], Any]:
        """Return the collective of ``part``, which applies ``join`` to the arrays of all parts, in order."""

        def joined(key: str, array: np.ndarray) -> Any:
            self._arrays.setdefault(key, {})[part] = array
            self._barrier.wait(WAIT_SECONDS)
            return join([self._arrays[key][k] for k in range(self._barrier.parties)])

        return joined


@dataclass(frozen=True)
class RecordingContext(Context):
    """A context that records which random numbers a layer draws, as (name, numbers in a row)."""

    draws: list[tuple[str, int]] = field(default_factory=list)

    def uniform(self, layer: str, columns: int, part: Columns | None = None) -> np.ndarray:
        """Record the draw; a part of a layer draws the whole layer's numbers and uses its share."""
        self.draws.append((layer, total_columns(columns, part)))
        return super().uniform(layer, columns, part)

    def random(self, layer: str, columns: int, part: Columns | None = None) -> Array:
        """Record the draw, like :meth:`uniform`."""
        self.draws.append((layer, total_columns(columns, part)))
        return super().random(layer, columns, part)


def total_columns(columns: int, part: Columns | None) -> int:
    """Return how many numbers a row the whole layer draws if its ``part`` draws ``columns``."""
    return columns if part is None else columns // (part.stop - part.start) * part.total
