"""Trains a partitioned net in threads, and the whole net beside it, in float32 or float64."""

from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

import numpy as np

from dsinga.cutting.partitioned import PartitionedNet
from dsinga.cutting.thread_group import run_in_threads
from dsinga.layers import Context, Layer, Records, Rows
from dsinga.layers.metrics.composed_metrics import metric_values
from dsinga.layers.metrics.metric_state import MetricState
from dsinga.net import NeuralNet
from dsinga.ops import Ops
from dsinga.ops.interface import NumpyOps
from dsinga.training import Metrics, add_metrics, bp, declared_metrics, forward, name_metrics

RATE = 0.05

Values = dict[str, np.ndarray]
Batch = Mapping[str, Records]


class DoubleOps(NumpyOps):
    """numpy kernels in float64, also those that otherwise return float32: only rounding errors of 1e-16 remain."""

    def images(self, array: Any, scale: float = 1.0, mean: Any = None, std: Any = None) -> Any:
        return super().images(array, scale, mean, std).astype(np.float64)

    def channel_affine(self, x: Any, scale: Any, shift: Any) -> Any:
        return super().channel_affine(x.astype(np.float64), scale, shift)


class Run(NamedTuple):
    """Whole params after the last step, the whole gradients of each step, and the metrics of each step."""

    params: Values
    gradients: list[Values]
    metrics: list[Metrics]


def kernels(values: Values) -> NumpyOps:
    """Return the kernels for values of this precision."""
    return DoubleOps() if any(value.dtype == np.float64 for value in values.values()) else NumpyOps()


def run_partitioned(
    cut: PartitionedNet,
    values: Values,
    batches: Sequence[Batch],
    rows: Sequence[Rows] | None = None,
    ops: Ops | None = None,
) -> Run:
    """Train for a step a batch by plain SGD; ``values`` are of whole params, ``rows`` those of each worker."""
    part_values = {name: part.of(values[part.param]) for name, part in cut.parts.items()}
    gradients, metrics = [], []
    for step, batch in enumerate(batches):

        def iterate(worker: int, ctx: Context, batch: Batch = batch) -> tuple[Values, Metrics]:
            net, pushes = cut.locals[worker], list[tuple[str, np.ndarray]]()
            records = records_for(net, batch, ctx.rows)
            reported = bp(
                net, part_values, records, ctx, lambda param, gradient: pushes.append((param, np.asarray(gradient)))
            )
            assert len(dict(pushes)) == len(pushes), f"worker {worker} pushes a gradient twice"
            return dict(pushes), reported

        done = run_in_threads(cut, ops or kernels(values), iterate, seed=3, step=step, rows=rows)
        static = cut.whole.static
        whole: Values = {name: np.full_like(array, np.nan) for name, array in values.items() if name not in static}
        for name, part in cut.parts.items():
            if part.param in static:
                continue
            users = tuple(worker for worker, (pushed, _) in enumerate(done) if name in pushed)
            assert users == part.users, f"{name} is pushed by {users}, not by its users {part.users}"
            shares = [done[worker][0][name].reshape(part.shape) for worker in users]
            total = shares[0] if part.gathered else sum(shares)  # gathered: each has computed the whole
            part.of(whole[part.param])[...] = total
            part_values[name] = apply(cut.whole.params[part.param].trainable, part_values[name], total)
        gradients.append(whole)
        metrics.append(name_metrics(cut.whole, add_metrics([reported for _, reported in done])))
    params = {name: np.full(array.shape, np.nan, array.dtype) for name, array in values.items()}
    for name, part in cut.parts.items():
        part.of(params[part.param])[...] = part_values[name]
    return Run(params, gradients, metrics)


def run_whole(net: NeuralNet, values: Values, batches: Sequence[Batch], ops: Ops | None = None) -> Run:
    """Train the uncut net in this thread."""
    params, gradients, metrics = dict(values), [], []
    for step, batch in enumerate(batches):
        rows = Rows(0, batch_size(net), batch_size(net))
        ctx = Context(ops or kernels(values), net.phase, rows, seed=3, step=step)
        pushed: Values = {}
        metrics.append(bp(net, params, batch, ctx, pushed.__setitem__))
        numbers = {name for name, figure in metric_values(metrics[-1]).items() if not isinstance(figure, list)}
        assert numbers == {*declared_metrics(net.at(step))}
        gradients.append(
            {name: np.asarray(gradient).reshape(net.params[name].shape) for name, gradient in pushed.items()}
        )
        params.update(
            {name: apply(net.params[name].trainable, params[name], pushed) for name, pushed in gradients[-1].items()}
        )
    return Run(params, gradients, metrics)


def forward_partitioned(cut: PartitionedNet, values: Values, batch: Batch) -> Metrics:
    """Return the metrics of one forward pass."""
    part_values = {name: part.of(values[part.param]) for name, part in cut.parts.items()}

    def compute(worker: int, ctx: Context) -> Metrics:
        net = cut.locals[worker]
        return forward(net, part_values, records_for(net, batch, ctx.rows), ctx)[1]

    return name_metrics(cut.whole, add_metrics(run_in_threads(cut, kernels(values), compute, seed=3)))


def forward_whole(net: NeuralNet, values: Values, batch: Batch) -> Metrics:
    """Return the metrics of one forward pass of the uncut net."""
    rows = Rows(0, batch_size(net), batch_size(net))
    return forward(net, values, batch, Context(kernels(values), net.phase, rows, seed=3))[1]


def apply(trainable: bool, value: np.ndarray, pushed: np.ndarray) -> np.ndarray:
    """Return the param after a step: moved against its gradient, or replaced by its new state."""
    return value - RATE * pushed if trainable else pushed


def batch_size(net: NeuralNet) -> int:
    """Return the number of rows of a batch, which is that of the first layer."""
    return net.nodes[0].layer.shape[0]


def records_for(net: NeuralNet, batch: Batch, rows: Rows) -> dict[str, Records]:
    """Return the records that the input layers of a worker read: those of the rows that they compute."""
    records = {}
    for node in net.nodes:
        if node.layer.is_input:
            start, stop, _ = node.rows or rows
            data, labels = batch[node.layer.name]
            records[node.layer.name] = Records(data[start:stop], None if labels is None else labels[start:stop])
    return records


def initial(net: NeuralNet, dtype: type = np.float64, seed: int = 0) -> Values:
    """Return small params, positive where the layer fills them with ones (scales and variances)."""
    rng = np.random.default_rng(seed)
    params = {}
    for name, param in net.params.items():
        first = param.spec.initial
        numbers = rng.uniform(-0.5, 0.5, param.shape) * (0.2 if np.any(first) else 1)
        params[name] = (numbers + first).astype(dtype)
    return params


def batches_of(net: NeuralNet, count: int, classes: int, dtype: type = np.float64, seed: int = 0) -> list[Batch]:
    """Return random batches for the input layers of a net; labels below ``classes``."""
    rng = np.random.default_rng(seed)
    inputs = [node.layer for node in net.nodes if node.layer.is_input]
    return [{layer.name: records_of(layer, classes, dtype, rng) for layer in inputs} for _ in range(count)]


def records_of(layer: Layer, classes: int, dtype: type, rng: np.random.Generator) -> Records:
    """Return a random batch for an input layer: numbers with labels a row, or codes with one a step, -1 at the end."""
    codes = getattr(layer, "codes", 0)
    if not codes:
        data = rng.normal(size=layer.shape).astype(dtype)
        data = abs(data) if data.ndim == 1 else data  # weights
        shape, is_float = (layer.shape[0], *layer.label_format.shape), layer.label_format.dtype == np.float32
        if is_float and len(shape) > 2:
            return Records(data, fields_of(shape, rng))
        labels = rng.integers(-1 if len(shape) > 2 else 0, classes, shape)  # of points, some are masked
        return Records(data, labels.astype(np.float32) / 2 if is_float else labels)
    rows, steps = layer.shape
    beyond = np.arange(steps) >= rng.integers(1, steps + 1, rows)[:, None]
    words = rng.integers(0, codes, layer.shape, dtype=np.int32)
    return Records(np.where(beyond, -1, words), np.where(beyond, -1, rng.integers(0, classes, layer.shape)))


def assert_equal_runs(first: Run, second: Run, tolerance: float) -> None:
    """Assert that params, gradients and metrics are equal: arrays up to ``tolerance`` of their largest number."""
    for step, (actual, expected) in enumerate(zip(first.gradients, second.gradients, strict=True)):
        assert_close(actual, expected, tolerance, f"gradient of step {step}")
    assert_close(first.params, second.params, tolerance, "param")
    for step, (actual, expected) in enumerate(zip(first.metrics, second.metrics, strict=True)):
        assert list(metric_values(actual)) == list(metric_values(expected)), f"metrics of step {step}"
        assert actual.keys() == expected.keys(), f"metrics of step {step}"
        for name in actual:
            if isinstance(actual[name][0], MetricState):  # rounding may change the order of its rows
                values, others = (metric_values({name: metrics[name]}).values() for metrics in (actual, expected))
                for value, other in zip(values, others, strict=True):
                    np.testing.assert_allclose(value, other, tolerance, tolerance, err_msg=f"{name} of step {step}")
                continue
            np.testing.assert_allclose(
                actual[name], expected[name], tolerance, tolerance, err_msg=f"{name} of step {step}"
            )


def assert_close(actual: Values, expected: Values, tolerance: float, what: str) -> None:
    """Assert that arrays of the same names are equal, up to ``tolerance`` of the largest number in each.

    A gradient may be nothing but rounding (of a bias below batch normalisation): the largest of all counts a bit too.
    """
    assert actual.keys() == expected.keys(), what
    largest = {name: np.abs(array).max() for name, array in expected.items()}
    assert np.isfinite(list(largest.values())).all(), f"{what}: a value is not finite"
    least = 0.1 * max(largest.values(), default=0)
    for name, array in expected.items():
        atol = tolerance * max(largest[name], least)
        np.testing.assert_allclose(actual[name], array, rtol=0, atol=atol, err_msg=f"{what} {name}")


def fields_of(shape: tuple[int, ...], rng: np.random.Generator) -> np.ndarray:
    """Return targets (B, C, *space) with points that are masked, and weights of points in the last channel."""
    fields = rng.normal(size=shape).astype(np.float32)
    fields[:, :-1][rng.uniform(size=fields[:, :-1].shape) < 0.2] = np.nan
    fields[:, -1] = rng.uniform(0.5, 1.5, fields[:, -1].shape)
    return fields
